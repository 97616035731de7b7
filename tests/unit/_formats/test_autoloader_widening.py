"""Widened schemas of files. Queries with these schemas are tested in tests/spark."""

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
    ("known", "inferred", "text", "parquet", "avro"),
    [
        (IntegerType(), LongType(), LongType(), LongType(), LongType()),
        (IntegerType(), DecimalType(12, 2), DecimalType(12, 2), DecimalType(12, 2), None),
        (DecimalType(5, 2), DecimalType(6, 3), *[DecimalType(6, 3)] * 3),
        (DateType(), TimestampNTZType(), None, TimestampNTZType(), None),
        (LongType(), DoubleType(), None, None, None),
        (LongType(), StringType(), None, None, None),
    ],
)
def test_column_is_widened_when_the_format_reads_old_files_with_the_new_type(
    known: DataType, inferred: DataType, text: DataType, parquet: DataType, avro: DataType
) -> None:
    for file_format, expected in (("json", text), ("parquet", parquet), ("avro", avro)):
        assert widen_columns(of(known), of(inferred, "A"), file_format) == of(expected or known)


def test_nested_fields_are_widened_and_new_fields_left_out() -> None:
    known = of(ArrayType(of(IntegerType(), "x")))
    inferred = of(ArrayType(StructType([*of(LongType(), "x"), *of(LongType(), "y")])))
    wide = widen_columns(known, StructType([*inferred, *of(LongType(), "b")]), "json")
    assert wide == of(ArrayType(of(LongType(), "x")))
    assert changed_types(known, wide) == ["'a.element.x' BIGINT"]


def test_hint_applies_unless_the_column_is_wider() -> None:
    def column_type(hinted: DataType, known: DataType) -> DataType:
        return keep_wider(of(hinted), of(known))[0].dataType

    assert column_type(IntegerType(), LongType()) == LongType()
    assert column_type(LongType(), IntegerType()) == LongType()
    assert column_type(StringType(), LongType()) == StringType()
    assert column_type(DecimalType(5, 2), IntegerType()) == DecimalType(5, 2)
    assert keep_wider(of(IntegerType(), "new"), of(LongType())) == of(IntegerType(), "new")


def test_only_integers_and_decimals_can_widen() -> None:
    assert all(can_widen(kind) for kind in (IntegerType(), LongType(), DecimalType(5, 2)))
    assert not any(can_widen(kind) for kind in (DoubleType(), StringType(), DateType()))


def test_quoted_and_nested_paths_are_resolved_to_columns() -> None:
    inner = StructType([*of(IntegerType(), "n.1"), *of(IntegerType(), "kept")])
    known = StructType([*of(ArrayType(inner), "Items"), *of(LongType(), "id")])
    widened = ["items.`n.1` BIGINT", "id DECIMAL(22,1)", "gone BIGINT"]
    wide = StructType([*of(LongType(), "n.1"), *of(IntegerType(), "kept")])
    expected = StructType([*of(ArrayType(wide), "Items"), *of(DecimalType(22, 1), "id")])
    assert widen_paths(known, widened) == expected
    assert widen_paths(expected, widened) == expected
    assert named_columns(widened) == {"items", "id", "gone"}
