"""CSV files as Auto Loader reads them: by the names in each file's header, without data loss."""

import bz2
import gzip
import random
from decimal import Decimal
from pathlib import Path

import pytest
from file_stream import FileStream, rescued
from pyspark.sql.functions import udf

from penstock._formats import csv_rows
from penstock._spark.plans import is_deterministic, query_text
from penstock.errors import FlowError
from penstock.sources.files.opening import read_source

pytestmark = pytest.mark.spark

CSV = {"cloudFiles.format": "csv", "header": "true"}
TYPED = {**CSV, "cloudFiles.inferColumnTypes": "true"}
FIRST = "id,name,amount\n1,a,1.5\n2,b,2.5\n"


@pytest.fixture
def stream(spark, tmp_path: Path):
    def make(options=TYPED, schema=None, name="s") -> FileStream:
        return FileStream(spark, tmp_path / name, options, schema)

    return make


@pytest.fixture(scope="module")
def first(spark, tmp_path_factory: pytest.TempPathFactory) -> FileStream:
    """A source that has inferred the schema of `FIRST`."""
    return FileStream(spark, tmp_path_factory.mktemp("first"), TYPED).learn("a.csv", FIRST)


def row_values(rows) -> list[tuple]:
    return [(*(row[name] for name in ("id", "name", "amount")), rescued(row)) for row in rows]


def test_csv_source_is_deterministic_unless_its_query_is_not(first):
    df = read_source(first._open())
    assert is_deterministic(df.where("id > 1"))
    assert not is_deterministic(df.selectExpr("id", "uuid() AS name"))
    assert not is_deterministic(df.select(udf(str).asNondeterministic()("id")))
    options = first.options
    for more in ({}, {"dateFormat": "dd.MM.yyyy"}, {"sep": ";"}):
        first.options = {**options, **more}
        same = query_text(read_source(first._open())) == query_text(df)
        assert same is not bool(more), more
    first.options = options


@pytest.mark.timeout(60)
def test_a_number_with_a_huge_exponent_is_rescued(stream):
    files = stream(
        {**CSV, "rescuedDataColumn": "_rescued_data"},
        "id STRING, name STRING, amount DECIMAL(9, 2)",
    )
    files.put(
        "a.csv",
        "id,name,amount\n1,a,1e300000000\n2,a,1.5\n5e12345,1e2,1e2\n3,b, -1.0E+4000\n",
    )
    files.put("b.csv", "amount,id\n1e-300000000,6\n1e300000000,4\n2.25,5e12345\n")
    huge = {"amount": "1e300000000"}
    assert sorted(row_values(files.parse()), key=str) == [
        ("1", "a", None, huge),
        ("2", "a", Decimal("1.50"), None),
        ("3", "b", None, {"amount": " -1.0E+4000"}),
        ("4", None, None, huge),
        ("5e12345", "1e2", Decimal(100), None),
        ("5e12345", None, Decimal("2.25"), None),
        ("6", None, None, {"amount": "1e-300000000"}),
    ]


def test_every_value_is_in_a_column_or_rescued_when_lines_do_not_fit(stream, first):
    files = stream({**TYPED, "cloudFiles.schemaEvolutionMode": "rescue"}).remember(first)
    cases = {
        "1,a,1.5": (1, "a", 1.5, None),
        "3,c,3": (3, "c", 3.0, None),
        "x,d,4": (None, "d", 4.0, {"id": "x"}),
        "5": (5, None, None, None),
        "6,e": (6, "e", None, None),
        "7,f,7,more,,and more": (7, "f", 7.0, {"_c3": "more", "_c5": "and more"}),
        '8,"g,h",8': (8, "g,h", 8.0, None),
        '9,5" pipe,9': (9, '5" pipe', 9.0, None),
        '10,"open,10': (None, None, None, {"_corrupt_record": '10,"open,10'}),
        '11,"say \\"hi\\"",11': (11, 'say "hi"', 11.0, None),
        ",,": (None, None, None, None),
        '12,"",bad': (12, None, None, {"amount": "bad"}),
        "1.5,ü,1e3": (None, "ü", 1000.0, {"id": "1.5"}),
    }
    files.put("b.csv", "id,name,amount\n" + "\n".join(cases) + "\n\n   \n")
    assert row_values(files.parse()) == list(cases.values())
    many = ",".join(["13"] * 80)
    files.put("c.csv", f"id,name,amount\n{many}\n")
    (wide,) = row_values(files.parse())
    assert wide[:3] == (13, "13", 13.0)
    assert len(wide[3] or {}) == 77


def test_columns_are_matched_by_name_when_headers_differ(stream, first):
    files = stream({**TYPED, "cloudFiles.schemaEvolutionMode": "rescue"}).remember(first)
    files.put("b.csv", '\ufeffamount,id,name\r\n7.25,10,z\r\nbad,11,"q, r"\r\n,12\r\n')
    assert row_values(files.parse()) == [
        (10, "z", 7.25, None),
        (11, "q, r", None, {"amount": "bad"}),
        (12, None, None, None),
    ]
    files.put("c.csv", "id,Name,amount,city,\n20,x,1,Bonn\n21,y,,,extra\n22\n")
    assert row_values(files.parse()) == [
        (20, None, 1.0, {"Name": "x", "city": "Bonn"}),
        (21, None, None, {"Name": "y", "_c4": "extra"}),
        (22, None, None, None),
    ]
    files.put("d.csv", "name\nonly\n")
    files.put("e.csv", "")
    files.put("f.csv", "id,name,amount\n")
    assert row_values(files.parse()) == [(None, "only", None, None)]
    files.put("g.csv", "id,id,name\n1,2,x\n")
    assert row_values(files.parse()) == [(None, "x", None, {"id0": "1", "id1": "2"})]
    tabs = stream({**TYPED, "sep": r"\t"}, name="tabs").learn("a.tsv", "id\tname\n1\ta\n")
    tabs.put("b.tsv", "name\tid\nx\t2\ty\n")
    (row,) = tabs.parse()
    assert (row["id"], row["name"], rescued(row)) == (2, "x", {"_c2": "y"})


def test_columns_are_added_when_a_header_has_new_names(stream):
    files = stream(CSV)
    files.put("a.csv", FIRST)
    assert [row["amount"] for row in files.run()] == ["1.5", "2.5"]
    files.put("b.csv", "city,id,ID,home town\nBonn,3,4,\n")
    (row,) = files.run()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert files.columns == ["id", "name", "amount", "city", "home town", "_rescued_data"]
    assert (row["id"], row["city"], rescued(row)) == ("3", "Bonn", {"ID": "4"})
    either = stream({**CSV, "cloudFiles.readerCaseSensitive": "false"}, "id INT, name STRING", "e")
    either.put("a.csv", "NAME,Id\nx,1\n")
    assert [tuple(row) for row in either.parse()] == [(1, "x")]
    refusing = stream(
        {**CSV, "cloudFiles.schemaEvolutionMode": "failOnNewColumns"}, name="refusing"
    )
    refusing.learn("a.csv", FIRST)
    refusing.put("b.csv", "city,id\nBonn,3\n")
    with pytest.raises(FlowError) as caught:
        refusing.parse()
    assert caught.value.condition == "UNKNOWN_FIELD"


def test_partition_value_is_that_of_the_path_when_a_header_has_the_column_too(stream):
    files = stream(TYPED)
    files.put("year=2024/a.csv", "year,id,Year\n1999,1,x\n")
    files.put("year=2025/b.csv", "id,Year\n2,x\n")
    rows = files.parse()
    assert files.columns == ["id", "year", "_rescued_data"]
    assert {(row["id"], row["year"], str(rescued(row))) for row in rows} == {
        (1, 2024, "{'Year': 'x'}"),
        (2, 2025, "{'Year': 'x'}"),
    }


@pytest.mark.parametrize("reordered", [False, True])
def test_values_equal_those_of_spark_when_reader_options_are_set(stream, spark, reordered):
    options = {
        "header": "true",
        "sep": ";",
        "quote": "'",
        "escape": "'",
        "nullValue": "NA",
        "comment": "#",
        "dateFormat": "dd.MM.yyyy",
        "timestampFormat": "dd.MM.yyyy HH:mm",
        "ignoreLeadingWhiteSpace": "true",
        "ignoreTrailingWhiteSpace": "true",
        "multiLine": "true",
        "encoding": "ISO-8859-1",
    }
    schema = "a INT, b STRING, d DATE, t TIMESTAMP"
    text = (
        "a;b;d;t\n# nothing\n1; 'it''s\nü; so' ;05.01.2024;05.01.2024 10:30\n"
        "2; plain ;NA;NA\nNA;NA;31.12.2023;\n3;'';;\n"
    )
    files = stream({**options, "cloudFiles.format": "csv", "rescuedDataColumn": "_r"}, schema)
    path = files.put("a.csv", text.encode("iso-8859-1"))
    expected = spark.read.options(**options).schema(schema).csv(str(path)).collect()
    if reordered:
        files.schema = "t TIMESTAMP, b STRING, a INT, d DATE"
        rows = files.parse(*"abdt", "_r")
    else:
        rows = files.parse()
    assert [tuple(row)[:4] for row in rows] == [tuple(row) for row in expected]
    assert [row["_r"] for row in rows] == [None] * len(expected)


def test_a_header_is_read_when_the_format_is_detected(stream):
    files = stream({"inferColumnTypes": "true"})
    files.put("a.csv", "id,name\n1,a\n")
    (row,) = files.run()
    assert (row["id"], row["name"]) == (1, "a")


def test_columns_are_matched_by_position_when_there_is_no_header(stream):
    schema = "a INT, d DATE, s STRING"
    text = "1,2024-01-05,x\n2,bad,y,z\n3\n\n"
    expected = [
        (1, "2024-01-05", "x", None),
        (2, "None", "y", {"d": "bad", "_c3": "z"}),
        (3, "None", None, None),
    ]
    files = stream({"cloudFiles.format": "csv", "rescuedDataColumn": "_r"}, schema)
    files.put("a.csv", text)
    rows = files.parse()
    assert [(r["a"], str(r["d"]), r["s"], rescued(r, "_r")) for r in rows] == expected
    skipping = stream(
        {"cloudFiles.format": "csv", "rescuedDataColumn": "_r", "skipRows": "2"}, schema, "skipping"
    )
    skipping.put("a.csv", "about\nthis file\n" + text)
    rows = skipping.parse()
    assert [(r["a"], str(r["d"]), r["s"], rescued(r, "_r")) for r in rows] == expected
    named = stream({"cloudFiles.format": "csv", "header": "false"}, name="named")
    named.put("a.csv", "1,x\n")
    (row,) = named.parse()
    assert named.columns == ["_c0", "_c1", "_rescued_data"]
    assert tuple(row)[:2] == ("1", "x")
    inferred = stream({"cloudFiles.format": "csv"}, name="inferred")
    inferred.put("a.csv", "id,name\n1,x\n")
    (row,) = inferred.parse()
    assert inferred.columns == ["id", "name", "_rescued_data"]
    assert tuple(row)[:2] == ("1", "x")


def test_header_is_read_after_blank_lines_and_comments(stream):
    files = stream({**CSV, "comment": "#", "rescuedDataColumn": "_r"}, "id INT, name STRING")
    files.put("a.csv", "\n \t\n# about\n  # it\nname,id\n#no\nid,1\n\nname,id\n")
    files.put("b.csv", "\r#\r\n\nid,name\r2,b\r\n\n3,#c")
    files.put("c.csv", "# nothing\n \n#")
    rows = sorted(((r["id"], r["name"], rescued(r, "_r")) for r in files.parse()), key=str)
    assert rows == [
        (1, "id", None),
        (2, "b", None),
        (3, "#c", None),
        (None, "name", {"id": "id"}),
    ]


def test_splits_of_a_large_file_use_its_header(stream, spark):
    files = stream(
        # Spark's reader of CSV ignores `wholetext`.
        {**CSV, "comment": "#", "rescuedDataColumn": "_r", "wholetext": "true"},
        "id INT, name STRING, n DECIMAL(9, 2)",
    )
    numbers = range(400)
    files.put("a.csv", "id,name,n\n" + "".join(f"{i},a{i},{i}.5\n" for i in numbers))
    files.put("b.csv", "\ufeff\n# x\nn,x,id\n" + "".join(f'{i}.5,"b",{i}\n' for i in numbers))
    files.put("c.csv.bz2", bz2.compress(b"name,id\n" + b"".join(b"c,%d\n" % i for i in numbers)))
    try:
        spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
        rows = files.parse()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    half = Decimal("0.50")
    assert {(r["id"], r["name"], r["n"], str(rescued(r, "_r"))) for r in rows} == {
        *((i, f"a{i}", i + half, "None") for i in numbers),
        *((i, None, i + half, "{'x': 'b'}") for i in numbers),
        *((i, "c", None, "None") for i in numbers),
    }
    assert len(rows) == 3 * len(numbers)


def test_rows_are_the_same_when_a_session_has_no_java_classes(stream, monkeypatch):
    """Without the Java classes, files are read as a whole, then split and parsed in SQL."""
    source = random.Random(5)
    values = ["1", "-2.5", "", " ", "x", '"q"', '"a,b"', '"a ""b"""', '"open', 'mid"dle', "1e400"]
    values += ["2024-01-05", "NaN", "ü", "\t", "#", "NA", ' "s" ', "00", "1e-5000", '"\\"x"', "\\"]
    names = ["id", "name", "amount", "Id", "new", " id ", "", '"amount"', "NA", "_c1", "name"]
    texts = []
    for _ in range(40):
        header = source.choice([["id", "name", "amount"], source.choices(names, k=4)])
        lines = [",".join(header)]
        for _ in range(15):
            odd = source.choices(values, k=source.randint(0, 5))
            lines.append(",".join(source.choice([odd, ["1", "x", "2.5"], ["", '"q"', "NA"]])))
        texts.append("\n".join(lines) + "\n")
    options = {**CSV, "rescuedDataColumn": "_r", "nullValue": "NA", "comment": "#"}
    schema = "id BIGINT, name STRING, amount DECIMAL(9, 2)"
    results = []
    for name in ("java", "sql"):
        files = stream(options, schema, name)
        for number, text in enumerate(texts):
            files.put(f"{number}.csv", text)
        rows = [(*tuple(row)[:3], rescued(row, "_r")) for row in files.parse()]
        results.append(sorted(rows, key=str))
        monkeypatch.setattr(csv_rows, "own_class", lambda *_: None)
    assert results[0] == results[1]
    assert 100 < sum(row[3] is None for row in results[0]) < len(results[0]) - 100


def test_malformed_lines_are_handled_by_the_parse_mode(stream):
    text = 'id,name\n1,a\n2,"open\n3,c\n'
    dropping = stream({**CSV, "mode": "DROPMALFORMED"}, "id INT, name STRING")
    dropping.put("a.csv", text)
    assert [tuple(row) for row in dropping.parse()] == [(1, "a"), (3, "c")]
    permissive = stream(
        {**CSV, "columnNameOfCorruptRecord": "_c"}, "id INT, name STRING, _c STRING", "permissive"
    )
    permissive.put("a.csv", text)
    assert [tuple(row) for row in permissive.parse()] == [
        (1, "a", None),
        (None, None, '2,"open'),
        (3, "c", None),
    ]
    failing = stream({**CSV, "mode": "FAILFAST"}, name="failing")
    failing.put("a.csv", text)
    with pytest.raises(FlowError) as caught:
        failing.parse()
    assert caught.value.condition == "MALFORMED_RECORD"


def test_inferred_types_fit_the_values_of_all_files(stream):
    files = stream()
    files.put("a.csv", "id,n,d\n1,1,2024-01-01\n")
    files.put("b.csv", "n,id,s\n1.5,99999999999,x\n")
    files.put("c.csv.gz", gzip.compress(b"id,n\n" + b"1,2\n" * 20_000)[:-30])
    rows = files.parse()
    assert (files.types["id"], files.types["n"], files.types["d"]) == ("bigint", "double", "date")
    assert sorted((row["id"], row["n"], row["s"]) for row in rows) == [
        (1, 1.0, None),
        (99999999999, 1.5, "x"),
    ]
    assert list(files.quarantined) == ["c.csv.gz"]
