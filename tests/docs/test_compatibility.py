from surface_table import PAGE, table, written


def test_table_of_functions_matches_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == table(), "run `python tests/docs/surface_table.py`"
