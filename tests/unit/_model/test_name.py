import pytest

from penstock._model.name import DatasetName, resolve_name, split_name


@pytest.mark.parametrize(
    ("text", "parts"),
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
def test_a_name_is_split_into_its_parts_when_it_is_one(text, parts):
    assert split_name(text) == parts


@pytest.mark.parametrize("text", ["", "   ", ".a", "a.", "a..b", "a b", "`a", "a`b`", "``"])
def test_splitting_is_refused_when_the_text_is_no_name(text):
    with pytest.raises(ValueError, match="not a dataset name"):
        split_name(text)


@pytest.mark.parametrize(
    ("text", "full"),
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
def test_a_name_is_filled_up_with_the_defaults_when_parts_are_missing(text, full):
    assert str(resolve_name(text, catalog="main", schema="bronze")) == full


@pytest.mark.parametrize("text", ["a.b.c.d", "LIVE.a.b.c.d", ""])
def test_resolving_is_refused_when_there_are_too_many_parts_or_none(text):
    with pytest.raises(ValueError, match="dataset name"):
        resolve_name(text, catalog="main", schema="bronze")


def test_two_names_have_one_key_when_they_differ_in_case_only():
    upper = resolve_name("Silver.ORDERS", catalog="Main", schema="x")
    lower = DatasetName("main", "silver", "orders")
    assert upper.key == lower.key == "main.silver.orders"
    assert str(upper) == "Main.Silver.ORDERS"
