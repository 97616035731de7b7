import pytest

from penstock._tables.read.row_selection import RowSelection, row_id
from penstock.errors import SpecError

FIRST, OTHER = row_id("a=1/part-0.parquet", 0), row_id("part-1.parquet", 7)


def test_row_id_identifies_file_and_position():
    assert FIRST == row_id("a=1/part-0.parquet", 0) != row_id("a=2/part-0.parquet", 0)
    positions = RowSelection(
        rows=(FIRST, OTHER, row_id("part-1.parquet", 123_456_789_012))
    ).positions()
    assert list(positions.values()) == [{0}, {7, 123_456_789_012}]


def test_equal_selections_have_the_same_record():
    first = RowSelection(rules=("b", "a", "b"), where="x > 1", rows=(OTHER, FIRST))
    second = RowSelection(rules=("a", "b"), where="x > 1", rows=(FIRST, OTHER, FIRST))
    assert first.record() == second.record() != RowSelection(rules=("a", "b")).record()
    assert RowSelection().is_all and RowSelection().record() == {}
    assert not any(
        chosen.is_all
        for chosen in (
            RowSelection(rules=("a",)),
            RowSelection(where="x"),
            RowSelection(rows=(FIRST,)),
        )
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"rules": ("",)},
        {"where": ""},
        {"where": "  "},
        *({"rows": (FIRST, bad)} for bad in ("", "1", f"{FIRST} ", f"{FIRST}\n", FIRST.upper())),
        {"rows": ("0" * 16 + "-01",)},
        {"rows": ("0" * 16 + "-1" + "0" * 12,)},
    ],
)
def test_invalid_selection_is_refused(arguments):
    with pytest.raises(SpecError, match="QUARANTINE_SELECTION_INVALID") as caught:
        RowSelection(**arguments)
    assert caught.value.hint
