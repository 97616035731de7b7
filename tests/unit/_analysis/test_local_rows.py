"""Rows that user code creates are converted as in Spark Connect."""

import pytest
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from penstock._analysis.local_rows import with_floats

SCHEMA = StructType([StructField("rate", DoubleType()), StructField("name", StringType())])


@pytest.mark.parametrize(
    ("row", "converted"),
    [
        ((1, "a"), (1.0, "a")),
        ([1, "a"], (1.0, "a")),
        (Row(rate=1, name="a"), (1.0, "a")),
        ({"rate": 1, "name": "a"}, {"rate": 1.0, "name": "a"}),
        ((None, "a"), (None, "a")),
        ((True, "a"), (True, "a")),  # refused by Spark and Spark Connect
        ((), ()),
        ("text", "text"),
    ],
)
def test_integers_become_floats_in_double_columns(row, converted):
    (result,) = with_floats([row], SCHEMA)
    assert result == converted
    value = result.get("rate") if isinstance(result, dict) else next(iter(result), None)
    assert type(value) is type(
        converted.get("rate") if isinstance(converted, dict) else next(iter(converted), None)
    )


def test_other_data_and_schemas_are_unchanged():
    data = [(1, "a")]
    assert with_floats(data, ["rate", "name"]) is data
    assert with_floats(data, StructType([StructField("n", StringType())])) is data
    frame = iter(data)
    assert with_floats(frame, SCHEMA) is frame
