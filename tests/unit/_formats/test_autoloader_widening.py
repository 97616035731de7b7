"""Schemas of files that get room for values; what the SQL asks for is tested with Spark."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from penstock._formats.widening import (
    can_widen,
    changed_types,
    keep_wider,
    named_columns,
    widen_columns,
    widen_paths,
)


def of(kind: DataType, name: str = "a") -> StructType:
    return StructType([StructField(name, kind)])


@pytest.mark.parametrize(
    ("known", "seen", "text", "parquet", "avro"),
    [
        (IntegerType(), LongType(), LongType(), LongType(), LongType()),
        (IntegerType(), DecimalType(12, 2), DecimalType(12, 2), DecimalType(12, 2), None),
        (DecimalType(5, 2), DecimalType(6, 3), *[DecimalType(6, 3)] * 3),
        (DateType(), TimestampNTZType(), None, TimestampNTZType(), None),
        (LongType(), DoubleType(), None, None, None),
        (LongType(), StringType(), None, None, None),
    ],
)
def test_a_column_becomes_wider_when_the_format_reads_narrow_files_with_the_type(
    known: DataType, seen: DataType, text: DataType, parquet: DataType, avro: DataType
) -> None:
    for file_format, expected in (("json", text), ("parquet", parquet), ("avro", avro)):
        assert widen_columns(of(known), of(seen, "A"), file_format) == of(expected or known)


def test_new_fields_are_left_out_and_inner_ones_widened_when_files_have_both() -> None:
    known = of(ArrayType(of(IntegerType(), "x")))
    seen = of(ArrayType(StructType([*of(LongType(), "x"), *of(LongType(), "y")])))
    wide = widen_columns(known, StructType([*seen, *of(LongType(), "b")]), "json")
    assert wide == of(ArrayType(of(LongType(), "x")))
    assert changed_types(known, wide) == ["'a.element.x' BIGINT"]


def test_hints_count_when_the_column_has_not_become_wider_than_they_say() -> None:
    def kept(hinted: DataType, known: DataType) -> DataType:
        return keep_wider(of(hinted), of(known))[0].dataType

    assert kept(IntegerType(), LongType()) == LongType()
    assert kept(LongType(), IntegerType()) == LongType()
    assert kept(StringType(), LongType()) == StringType()
    assert kept(DecimalType(5, 2), IntegerType()) == DecimalType(5, 2)
    assert keep_wider(of(IntegerType(), "new"), of(LongType())) == of(IntegerType(), "new")


def test_only_numbers_of_limited_size_can_become_wider_when_a_text_holds_them() -> None:
    assert all(can_widen(kind) for kind in (IntegerType(), LongType(), DecimalType(5, 2)))
    assert not any(can_widen(kind) for kind in (DoubleType(), StringType(), DateType()))


def test_paths_of_rows_lead_to_their_columns_when_names_are_quoted_or_in_arrays() -> None:
    inner = StructType([*of(IntegerType(), "n.1"), *of(IntegerType(), "kept")])
    known = StructType([*of(ArrayType(inner), "Items"), *of(LongType(), "id")])
    told = ["items.`n.1` BIGINT", "id DECIMAL(22,1)", "gone BIGINT"]
    wide = StructType([*of(LongType(), "n.1"), *of(IntegerType(), "kept")])
    expected = StructType([*of(ArrayType(wide), "Items"), *of(DecimalType(22, 1), "id")])
    assert widen_paths(known, told) == expected
    assert widen_paths(expected, told) == expected
    assert named_columns(told) == {"items", "id", "gone"}
