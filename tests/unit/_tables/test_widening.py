"""Types that are widened, and the resulting schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType, DecimalType, StructType

from penstock._tables.write.schema import compare, conformed
from penstock._tables.write.widening import TypeChange, common_schema, widen, widened
from penstock.errors import PlanError

INTEGERS = ("tinyint", "smallint", "int", "bigint")


def kind(name: str) -> DataType:
    """A type by its name; `DataType.fromDDL` would need a JVM."""
    names = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
    column = {"name": "x", "type": names.get(name, name), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [column]})[0].dataType


@pytest.mark.parametrize(
    ("have", "want", "gets"),
    [
        ("tinyint", "smallint", "smallint"),
        ("tinyint", "bigint", "bigint"),
        ("smallint", "int", "int"),
        ("int", "bigint", "bigint"),
        ("int", "double", "double"),
        ("int", "float", "double"),
        ("float", "double", "double"),
        ("float", "int", "double"),
        ("int", "decimal(5,2)", "decimal(12,2)"),
        ("tinyint", "decimal(3,0)", "decimal(10,0)"),
        ("bigint", "decimal(21,0)", "decimal(21,0)"),
        ("bigint", "decimal(5,2)", "decimal(22,2)"),
        ("decimal(10,2)", "decimal(8,4)", "decimal(12,4)"),
        ("decimal(10,2)", "bigint", "decimal(21,2)"),
        ("date", "timestamp_ntz", "timestamp_ntz"),
    ],
)
def test_widened_type_can_store_values_of_both_types(have: str, want: str, gets: str) -> None:
    assert widened(kind(have), kind(want)) == kind(gets)


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("bigint", "int"),
        ("bigint", "double"),
        ("bigint", "float"),
        ("double", "bigint"),
        ("double", "float"),
        ("double", "decimal(10,2)"),
        ("decimal(10,2)", "double"),
        ("decimal(20,0)", "bigint"),
        ("decimal(38,10)", "decimal(38,0)"),
        ("float", "bigint"),
        ("int", "string"),
        ("string", "int"),
        ("boolean", "int"),
        ("date", "timestamp"),
        ("timestamp_ntz", "date"),
        ("timestamp", "timestamp_ntz"),
        ("int", "int"),
    ],
)
def test_type_is_not_widened_when_it_is_wide_enough_or_delta_cannot_widen_it(
    have: str, want: str
) -> None:
    assert widened(kind(have), kind(want)) is None


decimals = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: DecimalType(digits, scale))
)
kinds = st.one_of(
    decimals,
    st.sampled_from(
        [kind(n) for n in (*INTEGERS, "float", "double", "date", "timestamp_ntz", "string")]
    ),
)


@given(kinds, kinds)
def test_both_types_conform_to_the_widened_type(have: DataType, want: DataType) -> None:
    gets = widened(have, want)
    if gets is None:
        return
    table, query = StructType().add("a", gets), StructType().add("A", want)
    assert conformed(query, table) == StructType().add("A", gets)
    assert conformed(StructType().add("a", have), table) == table
    assert widened(gets, want) is None
    assert widened(gets, have) is None


def test_nested_fields_are_widened_and_keep_their_names() -> None:
    def schema(number: str, spelling: str) -> StructType:
        inner = {"type": "struct", "fields": [field(spelling, kind(number).jsonValue())]}
        return StructType.fromJson(
            {
                "type": "struct",
                "fields": [
                    field("id", kind(number).jsonValue()),
                    field("list", {"type": "array", "elementType": inner, "containsNull": True}),
                    field(
                        "map",
                        {
                            "type": "map",
                            "keyType": kind(number).jsonValue(),
                            "valueType": inner,
                            "valueContainsNull": True,
                        },
                    ),
                    field("text", "string"),
                ],
            }
        )

    def field(name: str, of_type: object) -> dict[str, object]:
        return {"name": name, "type": of_type, "nullable": True, "metadata": {}}

    table, query = schema("int", "x"), schema("bigint", "X")
    wide, changes = widen(table, query)
    assert wide == schema("bigint", "x")
    int_, long = kind("int"), kind("bigint")
    assert changes == tuple(
        TypeChange(path, int_, long)
        for path in (("id",), ("list", "element", "x"), ("map", "key"), ("map", "value", "x"))
    )
    assert not compare(wide, query).conflicts
    assert widen(wide, query) == (wide, ())
    # A narrower column of the query is cast; the table does not change.
    assert widen(schema("bigint", "x"), schema("int", "x"))[1] == ()
    assert conformed(schema("int", "x"), wide) == wide


def test_table_of_several_flows_has_types_that_can_store_the_values_of_all() -> None:
    def columns(**names: str) -> str:
        schema = StructType()
        for name, text in names.items():
            schema = schema.add(name, kind(text))
        return schema.json()

    flows = {
        "first": columns(a="int", b="float", c="decimal(10,2)", d="smallint"),
        "second": columns(d="decimal(7,2)", A="bigint", b="int", c="int", e="string"),
    }
    table = common_schema("t", flows).simpleString()
    assert table == ("struct<a:bigint,b:double,c:decimal(12,2),d:decimal(7,2),e:string>")
    assert common_schema("t", {"only": columns(a="int")}).simpleString() == "struct<a:int>"
    with pytest.raises(PlanError, match="column 'e' of t is INT in flow 'third', but STRING in"):
        common_schema("t", {**flows, "third": columns(e="int")})
