import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock._formats.json_rows import clean_line, key_order, quote_numbers

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("n.a-me", StringType()),
        StructField(
            "o", StructType([StructField("p", DoubleType()), StructField("q", StringType())])
        ),
        StructField("l", ArrayType(LongType())),
        StructField("items", ArrayType(StructType([StructField("k", StringType())]))),
    ]
)


def matches(text: str, *, order=None, exact: bool = True) -> bool:
    pattern = clean_line(SCHEMA, order or {}, exact=exact)
    assert pattern is not None
    return re.search(pattern, text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"id":1}',
        ' {"id" : 1 , "n.a-me" : "x" } ',
        '{"id":1,"n.a-me":"a \\"q\\" } , {","o":{"p":1.5,"q":null},"l":[1, 2],"items":[]}',
        '{"o":null,"l":null,"items":[{"k":"a"},{"k":null}, null]}',
        '{"n.a-me":12,"l":[]}',
    ],
)
def test_a_line_matches_when_the_schema_has_all_of_it(text):
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"ID":1}',
        '{"id":1,"new":2}',
        '{"id":1,"id":2}',
        '{"id":1} {"id":2}',
        '{"id":1}x',
        '{"id":1,}',
        '{"id":1',
        "[]",
        '{"o":{"p":1,"z":2}}',
        '{"items":[{"k":"a","z":1}]}',
        '{"items":[{"k":"a"},{"z":1}]}',
        '{"id":{"a":1}}',
        '{"l":[{"a":1}]}',
        '{"l":[[1]]}',
        '{"nXa-me":"x"}',
    ],
)
def test_a_line_does_not_match_when_something_has_no_place(text):
    assert not matches(text)


@pytest.mark.parametrize("number", ["1.5", "1e3", "12345678901234567890", "-0.10"])
def test_numbers_that_would_change_do_not_match_when_a_string_takes_them(number):
    text = f'{{"n.a-me":{number}}}'
    assert not matches(text)
    assert matches(text, exact=False)


def test_keys_match_in_the_order_of_the_files_when_it_is_known():
    text = '{"l":[1],"o":{"q":"x","p":1},"id":2}'
    assert not matches(text)
    order = key_order([text, '{"l":[1],"n.a-me":"x","id":3}', "no json", "[]", "7"])
    assert order == {"": ["l", "n.a-me", "o", "id"], "/o": ["q", "p"]}
    assert matches(text, order=order)
    assert matches('{"n.a-me":"x","id":3,"items":[]}', order=order)


def test_a_long_line_matches_without_recursion_when_it_has_many_elements():
    elements = ",".join(["123"] * 50_000)
    assert matches(f'{{"l":[{elements}]}}')
    escapes = "\\n" * 50_000
    assert matches(f'{{"n.a-me":"{escapes}"}}')


@pytest.mark.parametrize("exact", [True, False])
def test_the_narrow_expression_matches_when_a_line_is_as_writers_write_it(exact):
    pattern = clean_line(SCHEMA, {}, exact=exact, plain=True)
    assert pattern is not None
    usual = ['{"id":1,"n.a-me":"x","o":{"p":1.5,"q":null},"l":[1,2],"items":[{"k":"a"},null]}']
    usual += ['{"id": 1, "o": {"p": null, "q": "y"}, "l": null, "items": [{"k": "a"}, {"k": "b"}]}']
    for text in usual:
        assert re.search(pattern, text) is not None
        assert matches(text, exact=exact)
    for text in (
        '{"n.a-me":"\\n"}',
        ' {"id":1}',
        '{"id" :1}',
        '{"id":1}x',
        '{"new":1}',
        '{"l":{}}',
    ):
        assert re.search(pattern, text) is None
    elements = ",".join(["123"] * 50_000)
    assert re.search(pattern, f'{{"l":[{elements}]}}') is not None


def test_there_is_no_expression_when_a_schema_is_huge_or_never_a_match_when_it_has_maps():
    wide = StructType([StructField(f"c{i}", StringType()) for i in range(1001)])
    assert clean_line(wide, {}) is None
    pattern = clean_line(StructType([StructField("m", MapType(StringType(), LongType()))]), {})
    assert pattern is not None
    assert re.search(pattern, '{"m":{"a":1}}') is None
    assert re.search(pattern, "{}") is not None


def test_only_numbers_outside_of_strings_are_quoted_when_asked():
    pattern, _ = quote_numbers()
    # Python has no `\G`: the matches follow each other, so each starts where the last one ended.
    compiled, text, done, position = (
        re.compile(pattern[2:]),
        '{"a":1.50,"b":"x 7 \\" 8","c":[-1e3,7]}',
        "",
        0,
    )
    while (match := compiled.match(text, position)) is not None:
        done += f'{match.group(1)}"{match.group(2)}"'
        position = match.end()
    assert done + text[position:] == '{"a":"1.50","b":"x 7 \\" 8","c":["-1e3",7]}'


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("123.45", True),
        ("-0.5", True),
        ("null", True),
        ("1234", False),
        ("1.234", False),
        ("1.2e1", False),
        ('"1.5"', False),
        ("[1.5, 2]", True),
        ("[1.5, 2.345]", False),
    ],
)
def test_decimals_match_when_nothing_of_them_is_rounded(value: str, fits: bool) -> None:
    kind: DataType = DecimalType(5, 2)
    schema = StructType([StructField("d", ArrayType(kind) if "[" in value else kind)])
    pattern = clean_line(schema, {}, rounds=False)
    assert pattern is not None
    assert (re.search(pattern, f'{{"d":{value}}}') is not None) is fits
    assert re.search(clean_line(schema, {}) or "", f'{{"d":{value}}}') is not None


def test_whole_decimals_match_without_a_fraction_when_nothing_of_them_is_rounded() -> None:
    pattern = clean_line(StructType([StructField("d", DecimalType(3, 0))]), {}, rounds=False)
    found = [
        text for text in ("1", "999", "1000", "1.0") if re.search(pattern or "", f'{{"d":{text}}}')
    ]
    assert found == ["1", "999"]
