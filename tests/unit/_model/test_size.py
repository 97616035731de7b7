import pytest

from penstock._model.size import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
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
def test_a_size_is_understood_when_it_has_a_unit(text: str, size: int):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "mb", "-1", "10 miles", "1 k b"])
def test_a_text_is_refused_when_it_is_no_size(text: str):
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)
