from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.errors import DefinitionError
from penstock.parsing.fit import MisfitError, compile_fit

# Without a JVM, DDL cannot be parsed.
TYPES: dict[str, DataType] = {
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": FloatType(),
    "DECIMAL(10,2)": DecimalType(10, 2),
    "DECIMAL(4,1)": DecimalType(4, 1),
    "DECIMAL(38,4)": DecimalType(38, 4),
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
    "ARRAY<INT>": ArrayType(IntegerType()),
    "MAP<STRING,INT>": MapType(StringType(), IntegerType()),
    "STRUCT<y:INT>": StructType().add("y", IntegerType()),
}


def fit(ddl: str, value: object) -> object:
    name = ddl.removesuffix(" NOT NULL")
    struct = StructType().add("x", TYPES[name], nullable=name == ddl)
    return compile_fit(struct)({"x": value})["x"]


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("INT", 2**31 - 1, 2**31 - 1),
        ("BIGINT", -(2**63), -(2**63)),
        ("DOUBLE", 3, 3.0),
        ("DECIMAL(10,2)", 12.5, Decimal("12.50")),
        ("DECIMAL(10,2)", "12.50", Decimal("12.50")),
        ("DECIMAL(38,4)", "9" * 34, Decimal("9" * 34 + ".0000")),
        ("STRING", {"a": 1}, '{"a": 1}'),
        ("STRING", {"é": [Decimal("1.50"), None, True]}, '{"é": [1.50, null, true]}'),
        ("FLOAT", 3.4e38, 3.4e38),
        ("DOUBLE", float("inf"), float("inf")),
        ("STRING", 5, "5"),
        ("BINARY", "AQI=", b"\x01\x02"),
        ("DATE", "2026-02-28", date(2026, 2, 28)),
        ("TIMESTAMP", "2026-01-01T12:00:00+02:00", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP", "2026-01-01T12:00:00Z", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("ARRAY<INT>", [1, None], [1, None]),
        ("MAP<STRING,INT>", {"a": 1}, [("a", 1)]),
        ("STRUCT<y:INT>", {"y": 1, "z": 2}, {"y": 1}),
        ("INT", None, None),
    ],
)
def test_value_fits_without_loss(ddl, value, expected):
    assert fit(ddl, value) == expected


@pytest.mark.parametrize(
    ("ddl", "value", "reason"),
    [
        ("INT", 2**31, "x: 2147483648 is not an integer of 32 bits"),
        ("INT", "5", "x: '5' is not an integer"),
        ("INT", True, "x: True is not an integer"),
        ("INT", 1.5, "x: 1.5 is not an integer"),
        ("DECIMAL(4,1)", Decimal("12.34"), "x: Decimal('12.34') is not a DECIMAL(4,1)"),
        ("DECIMAL(4,1)", "1_0", "x: '1_0' is not a DECIMAL(4,1)"),
        ("DECIMAL(4,1)", 12345, "x: 12345 is not a DECIMAL(4,1)"),
        ("DECIMAL(4,1)", float("nan"), "x: nan is not a DECIMAL(4,1)"),
        ("BOOLEAN", 1, "x: 1 is not a boolean"),
        ("DATE", "yesterday", "x: 'yesterday' is not a date"),
        ("TIMESTAMP", 5, "x: 5 is not a time"),
        ("BINARY", "not base64!", "x: 'not base64!' is not base64"),
        ("STRING", b"\xff", "x: b'\\xff' is not a string"),
        ("STRING", {"a": [b"x"]}, "x: b'x' is not a part of a string"),
        ("STRING", "a\ud83d", "x: 'a\\ud83d' is not a string of Unicode characters"),
        ("DOUBLE", Decimal("1e400"), "x: Decimal('1E+400') is not a DOUBLE"),
        ("FLOAT", 1e300, "x: 1e+300 is not a FLOAT"),
        (
            "TIMESTAMP",
            "0001-01-01T00:00:00+02:00",
            "x: '0001-01-01T00:00:00+02:00' is not a time between the years 1 and 9999",
        ),
        ("STRUCT<y:INT>", {"y": "a"}, "x.y: 'a' is not an integer"),
        ("STRUCT<y:INT>", 5, "x: 5 is not a record"),
        ("ARRAY<INT>", {"a": 1}, "x: {'a': 1} is not an array"),
        ("INT NOT NULL", None, "x: NULL or missing"),
    ],
)
def test_error_names_the_path_of_a_value_that_does_not_fit(ddl, value, reason):
    with pytest.raises(MisfitError) as raised:
        fit(ddl, value)
    assert str(raised.value).lower() == reason.lower()


def test_unsupported_type_is_refused():
    with pytest.raises(DefinitionError, match="VARIANT"):
        compile_fit(VariantType())
