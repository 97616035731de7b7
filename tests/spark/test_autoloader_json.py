"""JSON files as Auto Loader reads them: every line is in a column, in the rescued data, or both."""

import bz2
import gzip
import json
import random
from pathlib import Path

import pytest
from file_stream import FileStream, rescued

from penstock._formats import json_rows
from penstock.errors import ConnectorError, FlowError

pytestmark = pytest.mark.spark

TYPED = {"cloudFiles.format": "json", "cloudFiles.inferColumnTypes": "true"}
FIRST = '{"id":1,"name":"a","price":12.5,"o":{"p":1,"q":"x"},"l":[1,2]}\n{"id":2}\n'


@pytest.fixture
def stream(spark, tmp_path: Path):
    def make(options=TYPED, schema=None, name="s") -> FileStream:
        return FileStream(spark, tmp_path / name, options, schema)

    return make


@pytest.fixture(scope="module")
def first(spark, tmp_path_factory: pytest.TempPathFactory) -> FileStream:
    """A source that has inferred the schema of `FIRST`."""
    return FileStream(spark, tmp_path_factory.mktemp("first"), TYPED).learn("a.json", FIRST)


def test_every_value_is_in_a_column_or_rescued_when_lines_do_not_fit(stream, first):
    files = stream({**TYPED, "cloudFiles.schemaEvolutionMode": "rescue"}).remember(first)
    cases = {
        '{"id":3,"name":"c"}': ((3, "c"), None),
        '{"id":"x","name":"d"}': ((None, "d"), {"id": "x"}),
        '{"name":5,"id":1.5}': ((None, "5"), {"id": 1.5}),
        '{"ID":9}': ((None, None), {"ID": 9}),
        '{"id":4,"new":{"a":[1.50,null]}}': ((4, None), {"new": {"a": [1.5, None]}}),
        '{"id":5,"o":{"p":"no","q":"y","r":true}}': ((5, None), {"o": {"p": "no", "r": True}}),
        '{"id":6,"o":"text"}': ((6, None), {"o": "text"}),
        '{"id":7,"l":[1,"x"]}': ((7, None), {"l": [1, "x"]}),
        '{"id":8,"l":{}}': ((8, None), {"l": {}}),
        '{"id":99999999999999999999}': ((None, None), {"id": 99999999999999999999}),
        '{"id":10, "name"': ((None, None), {"_corrupt_record": '{"id":10, "name"'}),
        '{"id":11} {"id":12}': ((11, None), {"_corrupt_record": '{"id":11} {"id":12}'}),
        '{"id":13,"id":14}': ((14, None), {"_corrupt_record": '{"id":13,"id":14}'}),
        "no json": ((None, None), {"_corrupt_record": "no json"}),
        "5": ((None, None), {"_corrupt_record": "5"}),
        "null": ((None, None), {"_corrupt_record": "null"}),
        "[5]": ((None, None), {"_corrupt_record": "5"}),
        '[{"id":15}] x': ((None, None), {"_corrupt_record": '[{"id":15}] x'}),
        '{"id":16,"name":null,"o":null}': ((16, None), None),
        ' \t{ "name" : "sp\\"ace\\u00e9" , "id" : 17 } ': ((17, 'sp"aceé'), None),
        '{"id":18,"":1}': ((18, None), {"": 1}),
        '{"id":19,"a.b":{"`":1}}': ((19, None), {"a.b": {"`": 1}}),
    }
    files.put("b.json", "\n".join(cases) + "\n\n  \n")
    rows = files.parse()
    actual = [((row["id"], row["name"]), rescued(row)) for row in rows]
    assert actual == list(cases.values())
    assert files.restarts == []


@pytest.mark.timeout(60)
def test_a_number_with_a_huge_exponent_is_a_corrupt_record(stream):
    hints = {**TYPED, "cloudFiles.schemaHints": "price DECIMAL(10, 2)"}
    files = stream({**hints, "cloudFiles.schemaEvolutionMode": "rescue"})
    files.learn("a.json", '{"id":"1","price":12.5}\n')
    broken = ['{"id":"2","price":1e300000000}', '{"id":"3","price":"1e300000000"}',
              '{"price":1e300000000,"id":"4","more":1}']  # fmt: skip
    files.put("b.json", "\n".join([*broken, '{"id":"5e12345","price":1e2}']) + "\n")
    rows = files.parse()
    assert [(row["id"], rescued(row)) for row in rows] == [
        *[(None, {"_corrupt_record": line}) for line in broken],
        ("5e12345", None),
    ]
    assert float(rows[-1]["price"]) == 100.0


def test_numbers_keep_their_digits_when_columns_are_strings(stream):
    files = stream({"cloudFiles.format": "json"})
    files.learn("a.json", '{"n":1,"s":"x","o":{"n":2},"l":[1.0]}\n')
    files.put(
        "b.json",
        '{"n":12.50,"s":"1.10","o":{"n":0.12345678901234567890123},"l":[1.0,20]}\n'
        '{"n":1e3,"s":"a \\"7.0\\" b"}\n'
        '{"n":12345678901234567890123456789012345678901}\n'
        '[{"n":0.12345678901234567890123},{"n":true}]\n',
    )
    rows = files.parse()
    assert files.types["o"] == "struct<n:string>"
    assert [row["n"] for row in rows] == [
        "12.50",
        "1e3",
        "12345678901234567890123456789012345678901",
        "0.12345678901234567890123",
        "true",
    ]
    assert rows[0]["s"] == "1.10"
    assert rows[0]["o"]["n"] == "0.12345678901234567890123"
    assert rows[0]["l"] == ["1.0", "20"]
    assert rows[1]["s"] == 'a "7.0" b'
    assert [row["_rescued_data"] for row in rows] == [None] * 5


def test_a_record_is_one_variant_when_single_variant_column_is_set(stream):
    files = stream({"cloudFiles.format": "json", "singleVariantColumn": "whole"})
    files.put("a.json", '{"n":1}\n{"n":"x"}\n')
    assert [row["whole"].toPython() for row in files.parse()] == [{"n": 1}, {"n": "x"}]
    assert files.types == {"whole": "variant"}
    headers = stream({"format": "csv", "header": "true", "singleVariantColumn": "whole"}, name="h")
    with pytest.raises(ConnectorError, match="cannot be combined with header"):
        headers.parse()


def test_a_column_with_a_string_hint_keeps_all_digits(stream):
    files = stream({**TYPED, "cloudFiles.schemaHints": "n STRING"})
    numbers = ["1.50", "0.12345678901234567890123", "1234567890123456789012345.678", "1e3"]
    files.put("a.json", "".join(f'{{"id":1,"n":{number},"new":1}}\n' for number in numbers))
    assert [(row["n"], row["_rescued_data"]) for row in files.parse()] == [
        (number, None) for number in numbers
    ]


def test_long_fractions_are_rescued_when_a_session_has_no_java_classes(stream, monkeypatch):
    monkeypatch.setattr(json_rows, "own_class", lambda *_: None)
    files = stream({**TYPED, "cloudFiles.schemaHints": "n STRING"})
    files.put(
        "a.json",
        '{"id":1,"n":1.50}\n{"id":2,"n":0.12345678901234567890123}\n'
        '{"id":3,"n":1234567890123456789012345.678}\n{"id":4,"n":1e3}\n',
    )
    rows = files.parse()
    assert [rescued(row) is not None for row in rows] == [False, True, True, False]
    assert '"n":0.12345678901234567890123' in rows[1]["_rescued_data"]
    assert '"n":1234567890123456789012345.678' in rows[2]["_rescued_data"]


def test_a_new_nested_field_is_a_string_when_types_of_its_parent_conflict(stream, first):
    files = stream().remember(first)
    files.put("b.json", '{"id":3,"o":{"extra":[1]}}\n{"id":4,"o":"text"}\n')
    rows = files.parse()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert [(row["id"], row["o"] and row["o"]["extra"], rescued(row)) for row in rows] == [
        (3, "[1]", None),
        (4, None, {"o": "text"}),
    ]


def test_new_fields_restart_the_stream_even_if_the_query_does_not_select_them(stream, first):
    files = stream().remember(first)
    files.put("b.json", '{"id":3,"new":1}\n')
    assert [row["id"] for row in files.parse("id")] == [3]
    assert files.restarts == ["SCHEMA_EVOLVED"]


def test_a_field_without_a_name_is_rescued(stream, first):
    files = stream({**TYPED, "cloudFiles.schemaHints": "s ARRAY<STRUCT<p: INT>>"}).remember(first)
    files.put("a.json", '{"id":3,"":1,"o":{"":2,"p":3},"s":[{"p":4,"":5}]}\n')
    (row,) = files.parse()
    assert (files.restarts, row["id"], row["o"]["p"], row["s"]) == ([], 3, 3, [(4,)])
    assert rescued(row) == {"": 1, "o": {"": 2}, "s": [{"": 5, "p": 4}]}


def test_new_fields_are_ignored_rescued_or_refused_by_evolution_mode(stream):
    text = '{"id":1,"new":5}\n{"id":"x"}\n'
    none = stream({"cloudFiles.format": "json"}, "id INT", "none")
    none.put("a.json", text)
    assert [tuple(row) for row in none.parse()] == [(1,), (None,)]
    rescuing = stream(
        {"cloudFiles.format": "json", "rescuedDataColumn": "_r"}, "id INT", "rescuing"
    )
    rescuing.put("a.json", text)
    rows = rescuing.parse()
    assert rescuing.columns == ["id", "_r"]
    assert [(row["id"], rescued(row, "_r")) for row in rows] == [
        (1, {"new": 5}),
        (None, {"id": "x"}),
    ]
    refusing = stream(
        {"cloudFiles.format": "json", "cloudFiles.schemaEvolutionMode": "failOnNewColumns"},
        "id INT",
        "refusing",
    )
    refusing.put("a.json", text)
    with pytest.raises(FlowError) as caught:
        refusing.parse()
    assert caught.value.condition == "UNKNOWN_FIELD"
    assert "'new'" in caught.value.message
    refusing.schema = "id INT, new INT"
    assert [tuple(row) for row in refusing.parse()] == [(1, 5), (None, None)]


def test_schema_hints_set_types_and_add_columns(stream):
    files = stream(
        {**TYPED, "cloudFiles.schemaHints": "id STRING, o.p DOUBLE, extra MAP<STRING,INT>"}
    )
    files.put("a.json", FIRST + '{"extra":{"k":1}}\n{"extra":{"k":"x"}}\n')
    rows = files.parse()
    assert files.types["o"] == "struct<p:double,q:string>"
    assert [row["id"] for row in rows[:2]] == ["1", "2"]
    assert rows[2]["extra"] == {"k": 1}
    assert rescued(rows[3]) == {"extra": {"k": "x"}}
    only = stream({**TYPED, "cloudFiles.schemaHints": "id INT"}, name="only")
    assert only.parse() == []
    only.put("a.json", '{"id":1}\n')
    assert [row["id"] for row in only.parse()] == [1]
    wrong = stream({**TYPED, "cloudFiles.schemaHints": "id NUMBER(3"}, name="wrong")
    with pytest.raises(ConnectorError, match="SCHEMA_HINTS_INVALID"):
        wrong.parse()


def test_fields_are_added_inside_hinted_types_when_files_have_more(stream):
    hints = "o STRUCT<p: INT>, m MAP<STRING, STRUCT<a: INT>>"
    files = stream({**TYPED, "cloudFiles.schemaHints": hints})
    files.put("a.json", '{"o":{"p":1},"m":{"k":{"a":1}}}\n')
    files.parse()
    files.put("b.json", '{"o":{"p":2,"q":3},"m":{"k":{"a":1,"b":2},"l":{"b":"x"}}}\n')
    (row,) = files.parse()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert files.types["o"] == "struct<p:int,q:bigint>"
    assert files.types["m"] == "map<string,struct<a:int,b:string>>"
    assert (row["o"], row["m"]) == ((2, 3), {"k": (1, "2"), "l": (None, "x")})
    assert rescued(row) is None


def test_malformed_lines_are_handled_by_the_parse_mode(stream):
    text = '{"id":1}\n{"id":\n{"id":"x"}\n'
    for mode, expected in {
        "PERMISSIVE": [(1, None), (None, '{"id":'), (None, None)],
        "DROPMALFORMED": [(1, None), (None, None)],
    }.items():
        options = {"cloudFiles.format": "json", "mode": mode}
        files = stream(options, "id INT, _corrupt_record STRING", mode)
        files.put("a.json", text)
        assert [tuple(row) for row in files.parse()] == expected
    failing = stream({**TYPED, "mode": "FAILFAST"})
    failing.put("a.json", text)
    with pytest.raises(FlowError) as caught:
        failing.parse()
    assert caught.value.condition == "MALFORMED_RECORD"
    assert "a.json" in caught.value.message


def test_records_may_span_lines_when_multi_line_is_on(stream):
    files = stream({**TYPED, "multiLine": "true"})
    files.put("a.json", '\ufeff[\n {"id":1,\n "x":"1\\n2"},\n {"id":2}\n]\n')
    files.put("b.json", '{\n"id":3\n}\n')
    files.put("c.json", '{"id":4}\n{"id":5}\n')
    files.put("d.json", '{"id":6\n')
    files.put("e.json", "  \n")
    files.put("f.json", "")
    rows = files.parse()
    assert sorted(row["id"] for row in rows if row["id"]) == [1, 2, 3, 4, 5]
    assert [rescued(row) for row in rows if row["_rescued_data"]] == [
        {"_corrupt_record": '{"id":6\n'}
    ]
    assert [row["x"] for row in rows if row["id"] == 1] == ["1\n2"]


def test_rows_are_the_same_when_files_are_compressed_or_encoded(stream):
    zstandard = pytest.importorskip("zstandard")
    line = '{"id":1,"name":"für"}\r\n'
    files = stream()
    files.put("a.json", "\ufeff" + line)
    files.put("b.json.gz", gzip.compress(line.encode()))
    files.put("c.json.bz2", bz2.compress(line.encode()))
    files.put("d.json.zst", zstandard.compress(line.encode()))
    assert [tuple(row) for row in files.parse()] == [(1, "für", None)] * 4
    for encoding in ("ISO-8859-1", "UTF-16LE"):
        other = stream({**TYPED, "encoding": encoding}, name=encoding)
        other.put("a.json", (line * 2).encode(encoding))
        assert [row["name"] for row in other.parse()] == ["für", "für"]


def test_partition_columns_are_read_from_folder_names(stream):
    name = "region=eu west/day=2024-01-02/c=10%3A00/h=__HIVE_DEFAULT_PARTITION__/a.json"
    files = stream()
    files.put(name, '{"id":1,"day":"other"}\n')
    (row,) = files.parse()
    assert files.columns == ["id", "region", "day", "c", "h", "_rescued_data"]
    assert files.types["day"] == "date"
    assert (row["region"], str(row["day"]), row["c"], row["h"]) == (
        "eu west",
        "2024-01-02",
        "10:00",
        None,
    )
    off = stream({**TYPED, "cloudFiles.partitionColumns": ""}, name="off")
    off.put(name, '{"id":1}\n')
    off.parse()
    assert off.columns == ["id", "_rescued_data"]
    typed = stream({"cloudFiles.format": "json"}, "Day DATE, id INT, region STRING", "typed")
    typed.put(name, '{"id":1}\n')
    (row,) = typed.parse()
    assert typed.columns == ["Day", "id", "region"]
    assert (str(row["Day"]), row["id"], row["region"]) == ("2024-01-02", 1, "eu west")


def test_partition_values_are_parsed_or_rescued_when_folder_names_are_unusual(stream):
    files = stream({**TYPED, "cloudFiles.schemaHints": "Rate STRING"})
    files.learn("rate=1/n=1/order no=1/a.json", '{"id":0}\n')
    for number, folder in enumerate(["rate=5%/n=1", "rate=a%zz/n=x", "rate=a+b/order no=7"]):
        files.put(f"{folder}/{number}.json", f'{{"id":{number}}}\n')
    rows = {row["id"]: row for row in files.parse()}
    assert files.columns == ["id", "Rate", "n", "order no", "_rescued_data"]
    assert {number: (*row[1:-1], rescued(row)) for number, row in rows.items()} == {
        0: ("5%", 1, None, None),
        1: ("a%zz", None, None, {"n": "x"}),
        2: ("a+b", None, 7, None),
    }


def test_one_name_is_the_column_when_names_differ_only_in_case(stream):
    files = stream()
    files.put("a.json", '{"ID":1}\n{"id":2}\n{"id":3}\n')
    rows = files.parse()
    assert files.columns == ["id", "_rescued_data"]
    assert [(row["id"], rescued(row)) for row in rows] == [(None, {"ID": 1}), (2, None), (3, None)]
    either = stream({**TYPED, "cloudFiles.readerCaseSensitive": "false"}, name="either")
    either.put("a.json", '{"ID":1}\n{"id":2}\n{"id":3}\n{"Id":5,"id":4}\n')
    rows = either.parse()
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert rescued(rows[3]) == {"Id": 5}
    encoded = stream({**TYPED, "encoding": "UTF-16LE"}, name="encoded")
    encoded.put("a.json", '{"ID":1}\n{"id":2}\n{"id":3}\n'.encode("UTF-16LE"))
    assert [row["id"] for row in encoded.parse()] == [None, 2, 3]


def test_no_value_is_lost_when_records_are_random(stream, first):
    """Each value of a record is in its columns or in its rescued data."""
    random.seed(7)
    values = [
        1,
        -3,
        2**40,
        1.25,
        "t",
        "1",
        "",
        True,
        None,
        [],
        [1, 2],
        ["a"],
        {},
        {"p": 1},
        {"q": [1]},
    ]
    names = ["id", "Id", "name", "o", "l", "new"]
    records = [
        {name: random.choice(values) for name in random.sample(names, random.randint(0, 5))}
        for _ in range(400)
    ]
    files = stream({**TYPED, "cloudFiles.schemaEvolutionMode": "rescue"}).remember(first)
    files.put("b.json", "".join(json.dumps(record) + "\n" for record in records))
    rows = files.parse()
    assert len(rows) == len(records)
    for record, row in zip(records, rows, strict=True):
        rescued_data = rescued(row) or {}
        typed = {k: v for k, v in row.asDict(recursive=True).items() if k != "_rescued_data"}
        for key, value in record.items():
            if value is None or (key in rescued_data and rescued_data[key] == value):
                continue
            cell = typed.get(key)
            assert cell is not None, (record, row)
            if isinstance(cell, str) and not isinstance(value, str):
                assert json.loads(cell) == value, (record, row)
            elif isinstance(value, dict):
                whole = {k: _value(v, value.get(k)) for k, v in cell.items() if v is not None}
                assert whole | rescued_data.get(key, {}) == value, (record, row)
            else:
                assert cell == value, (record, row)


def test_rows_are_the_same_when_a_session_has_no_java_classes(stream, first, monkeypatch):
    """Without them, Spark's `from_json` parses, and each line is compared."""
    values = ["1", "-3", "1.5", "99999999999999999999"]
    values += ['"t"', '""', '"1"', '"a\\"b"', '"x\\":1,\\"y"', '": {},"', '"}]"', '"it\'s"', "'q'"]
    values += ["true", "null", '"NaN"', "01", "{}", '{"p":1}', '{"q":"s","p":2}', "[1,2]"]
    values += [
        '{"p":1,"p":2}',
        '{"r":null}',
        "[]",
        '["a"]',
        '[[1],"b"]',
        "[{}]",
        "[1,]",
        '{"p":[1]}',
    ]
    keys = ["id", "name", "price", "o", "l", "id", "name", "l", "Id", "new", "a\\nb"]
    between, tails = (
        [":", ": ", " :", ":\t"],
        ["", "", "", "", " ", "x", "}", ",", " {}", ',"z":1}'],
    )
    source = random.Random(11)

    def line() -> str:
        chosen = sorted(source.choices(keys, k=source.randint(0, 4)), key=keys.index)
        spaced = source.choice([",", ", ", ",", " ,", ",,"])
        pairs = [f'"{key}"{source.choice(between)}{source.choice(values)}' for key in chosen]
        return "{" + spaced.join(pairs) + "}" + source.choice(tails)

    lines = [line() for _ in range(900)]
    files = stream({**TYPED, "cloudFiles.schemaEvolutionMode": "rescue"}).remember(first)
    results = []
    for name in ("b.json", "c.json"):
        files.put(name, "".join(text + "\n" for text in lines))
        rows = [
            row.asDict(recursive=True) | {"_rescued_data": rescued(row)} for row in files.parse()
        ]
        results.append([str(row) for row in rows])
        monkeypatch.setattr(json_rows, "own_class", lambda *_: None)
    assert len(results[0]) == len(lines)
    for text, quick, slow in zip(lines, *results, strict=True):
        assert quick == slow, text
    assert 80 < sum("'_rescued_data': None" in row for row in results[0]) < 820


def _value(cell, value):
    """The parsed value of a string column if the original value was not a string."""
    return json.loads(cell) if isinstance(cell, str) and not isinstance(value, str) else cell
