import pytest

from penstock._model.name import DatasetName, find_name, resolve_name, split_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("orders", ("orders",)),
        ("sales.orders", ("sales", "orders")),
        ("main.sales.orders", ("main", "sales", "orders")),
        (" sales . orders ", ("sales", "orders")),
        ("`order lines`", ("order lines",)),
        ("a.`b.c`", ("a", "b.c")),
        ("`tick``ed`", ("tick`ed",)),
        ("größe-1", ("größe-1",)),
        ("a.b.c.d", ("a", "b", "c", "d")),
    ],
)
def test_name_is_split_into_its_parts(name, parts):
    assert split_name(name) == parts


@pytest.mark.parametrize("name", ["", "   ", ".a", "a.", "a..b", "a b", "`a", "a`b`", "``"])
def test_invalid_name_cannot_be_split(name):
    with pytest.raises(ValueError, match="not a dataset name"):
        split_name(name)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("orders", "main.bronze.orders"),
        ("silver.orders", "main.silver.orders"),
        ("other.silver.orders", "other.silver.orders"),
        ("LIVE.orders", "main.bronze.orders"),
        ("live.orders", "main.bronze.orders"),
        ("Live.silver.orders", "main.silver.orders"),
        ("LIVE.other.silver.orders", "other.silver.orders"),
        ("live", "main.bronze.live"),
    ],
)
def test_missing_name_parts_are_filled_with_the_defaults(name, full):
    assert str(resolve_name(name, catalog="main", schema="bronze")) == full


@pytest.mark.parametrize("name", ["a.b.c.d", "LIVE.a.b.c.d", ""])
def test_name_with_too_many_parts_or_none_is_refused(name):
    with pytest.raises(ValueError, match="dataset name"):
        resolve_name(name, catalog="main", schema="bronze")


@pytest.mark.parametrize(
    ("text", "name"),
    [("ids.of orders", "`ids.of orders`"), ("OUT", "out"), ("`out`", "out"), ("Out", "Out")],
)
def test_name_of_a_flow_is_found_without_backticks_and_in_any_case(text, name):
    assert find_name(text, ["out", "Out", "`ids.of orders`"]) == name
    assert find_name("others", ["out"]) is None


def test_names_that_differ_only_in_case_have_the_same_key():
    upper = resolve_name("Silver.ORDERS", catalog="Main", schema="x")
    lower = DatasetName("main", "silver", "orders")
    assert upper.key == lower.key == "main.silver.orders"
    assert str(upper) == "Main.Silver.ORDERS"
