import pytest

from penstock._model.quantity import parse_bytes, plural


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("100", 100),
        ("1k", 1024),
        ("2 KB", 2048),
        ("1.5mb", 1572864),
        ("10b", 10),
        ("1G", 2**30),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_size_is_parsed_with_or_without_a_unit(value: str, size: int):
    assert parse_bytes(value) == size


def test_noun_has_the_plural_of_its_number():
    assert [plural(number, "row") for number in (0, 1, 1234)] == ["0 rows", "1 row", "1,234 rows"]
    assert plural(2, "micro-batch") == "2 micro-batches"


@pytest.mark.parametrize("value", ["", "mb", "-1", "10 miles", "1 k b"])
def test_invalid_size_is_refused(value: str):
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(value)
