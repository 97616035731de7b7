"""Parquet, ORC, Avro, XML, text and binary files as Auto Loader reads them."""

from pathlib import Path

import pytest
from file_stream import FileStream, rescued

from penstock.errors import ConnectorError, DefinitionError, FlowError

pytestmark = pytest.mark.spark

COLUMNAR = ("parquet", "orc", "avro")


@pytest.fixture
def stream(spark, tmp_path: Path):
    def make(options, schema=None, name="s") -> FileStream:
        return FileStream(spark, tmp_path / name, options, schema)

    return make


@pytest.mark.parametrize("file_format", COLUMNAR)
def test_new_columns_are_added_or_rescued_when_files_have_more(stream, spark, file_format):
    files = stream({"cloudFiles.format": file_format})
    rescuing = stream({"format": file_format, "schemaEvolutionMode": "rescue"}, name="rescuing")
    typed = stream(
        {"format": file_format, "rescuedDataColumn": "_r"}, "id INT, o STRUCT<p: INT>", "g"
    )

    def write(query: str, name: str) -> None:
        for target in (files, rescuing, typed):
            spark.sql(query).coalesce(1).write.format(file_format).save(str(target.folder / name))

    write("SELECT 1 AS id, 'x' AS n, named_struct('p', 1) AS o", "one")
    assert [tuple(row) for row in files.parse()] == [(1, "x", (1,), None)]
    assert [tuple(row) for row in rescuing.parse()] == [(1, "x", (1,), None)]
    write("SELECT 2 AS id, named_struct('p', 2, 'q', 'y') AS o, array(9) AS extra", "two")
    (row,) = files.parse()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert row.asDict(recursive=True) == {
        "id": 2,
        "n": None,
        "o": {"p": 2, "q": "y"},
        "extra": [9],
        "_rescued_data": None,
    }
    (row,) = rescuing.parse()
    assert rescuing.columns == ["id", "n", "o", "_rescued_data"]
    assert tuple(row)[:3] == (2, None, (2,))
    assert rescued(row) == {"o": {"q": "y"}, "extra": [9]}
    in_batch = typed.batch()
    rows = typed.parse()
    assert typed.columns == ["id", "o", "_r"]
    assert sorted((row["id"], str(rescued(row, "_r"))) for row in rows) == [
        (1, str({"n": "x"})),
        (2, str({"o": {"q": "y"}, "extra": [9]})),
    ]
    assert sorted(str(rescued(row, "_r")) for row in in_batch) == sorted(
        str(rescued(row, "_r")) for row in rows
    )


@pytest.mark.parametrize("file_format", COLUMNAR)
def test_corrupt_files_and_files_with_other_types_are_quarantined(stream, spark, file_format):
    files = stream({"cloudFiles.format": file_format})
    spark.sql("SELECT 1 AS id").coalesce(1).write.format(file_format).save(
        str(files.folder / "one")
    )
    files.parse()
    for name, query in {
        "two": "SELECT 2 AS id",
        "long": "SELECT 5000000000 AS id",
        "text": "SELECT 'x' AS id",
    }.items():
        written = files.folder.parent / name
        spark.sql(query).coalesce(1).write.format(file_format).save(str(written))
        (data,) = written.glob("part-*")
        files.put(f"{name}.{file_format}", data.read_bytes())
    good = (files.folder / f"two.{file_format}").read_bytes()
    files.put(f"cut.{file_format}", good[: len(good) // 2])
    files.put(f"empty.{file_format}", "")
    rows = files.parse()
    assert [row["id"] for row in rows] == [2]
    assert set(files.quarantined) == {f"{name}.{file_format}" for name in ("long", "text", "cut")}
    assert all(files.quarantined.values())
    # The same with a schema that the user declares; new columns are then ignored.
    typed = stream({"format": file_format}, "id INT", "typed")
    strict = stream({"format": file_format, "ignoreCorruptFiles": "false"}, "id INT", "strict")
    (text,) = (files.folder.parent / "text").glob("part-*")
    typed.put(f"end.{file_format}", good[:-10])
    assert typed.parse() == []
    for target in (typed, strict):
        target.put(f"two.{file_format}", good)
        target.put(f"text.{file_format}", text.read_bytes())
    assert [row["id"] for row in typed.parse()] == [2]
    assert set(typed.quarantined) == {f"end.{file_format}", f"text.{file_format}"}
    refused = "FILE_TYPES_UNFIT" if file_format == "orc" else "FAILED_READ_FILE"
    for read in (strict.parse, strict.batch):
        with pytest.raises(Exception, match=refused):
            read()
    assert strict.quarantined == {}


@pytest.mark.parametrize("file_format", COLUMNAR)
def test_a_column_with_the_name_of_the_rescued_data_is_rescued(stream, spark, file_format):
    files = stream({"cloudFiles.format": file_format})
    fields = "SELECT 1 AS id", "SELECT 2 AS id, 'x' AS _rescued_data"
    for query, expected in zip(fields, (None, {"_rescued_data": "x"}), strict=True):
        rows = spark.sql(query).coalesce(1)
        rows.write.format(file_format).mode("append").save(str(files.folder))
        (row,) = files.parse()
        assert rescued(row) == expected
    first = stream({"cloudFiles.format": file_format}, name="first")
    rows.write.format(file_format).mode("append").save(str(first.folder))
    assert [rescued(row) for row in (*first.batch(), *first.parse())] == [expected] * 2


@pytest.mark.parametrize("file_format", COLUMNAR)
def test_files_with_columns_that_differ_in_case_only_are_quarantined(stream, spark, file_format):
    files = stream({"cloudFiles.format": file_format})
    known = files.folder.parent
    spark.sql("SELECT 1 AS id").coalesce(1).write.format(file_format).save(str(known / "id"))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        twice = spark.sql("SELECT 2 AS id, 3 AS x, 4 AS X").coalesce(1)
        twice.write.format(file_format).save(str(known / "twice"))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    (data,) = (known / "twice").glob("part-*")
    files.put(f"twice.{file_format}", data.read_bytes())
    with pytest.raises(DefinitionError, match=f"twice.{file_format} cannot be read: .*already ex"):
        files.parse()
    (data,) = (known / "id").glob("part-*")
    files.put(f"id.{file_format}", data.read_bytes())
    assert [row["id"] for row in files.parse()] == [1]
    assert "named 'x'" in files.quarantined[f"twice.{file_format}"]


def test_orc_values_are_cast_when_they_fit_the_columns(stream, spark):
    schema = "s STRING, day STRING, i INT, n DECIMAL(12,2), f FLOAT, at TIMESTAMP"
    files = stream({"format": "orc"}, schema)
    columns = """7 AS s, DATE'2026-01-02' AS day, true AS i, 41 AS n, 3S AS f,
        DATE'2026-01-02' AS at"""
    spark.sql(f"SELECT {columns}").coalesce(1).write.orc(str(files.folder / "one"))
    (row,) = files.parse()
    assert files.quarantined == {}
    values = ["7", "2026-01-02", "1", "41.00", "3.0", "2026-01-02 00:00:00"]
    assert list(map(str, row)) == values


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_files_whose_numbers_would_be_misread_are_quarantined(stream, spark, file_format):
    files = stream({"cloudFiles.format": file_format})
    options = {"cloudFiles.format": file_format, "rescuedDataColumn": "_r"}
    typed = stream(options, "i INT, n BIGINT, d DOUBLE, t DATE", name="typed")

    def write(query: str, name: str) -> None:
        for target in (files, typed):
            rows = spark.sql(query).coalesce(1)
            rows.write.format(file_format).save(str(target.folder / name))

    write("SELECT 1 AS i, 2L AS n, 0.5D AS d, DATE'2026-01-01' AS t", "first")
    files.parse()
    n = "4BD" if file_format == "parquet" else "4"
    write(f"SELECT 3 AS i, {n} AS n, 5 AS d", "narrower")
    write("SELECT 12.50 AS i", "decimal")
    write("SELECT DATE'2026-01-02' AS i, DATE'2026-01-02' AS d", "date")
    write("SELECT TIMESTAMP'2026-01-02 10:00:00' AS n", "timestamp")
    write("SELECT TIMESTAMP'2026-01-02 10:00:00' AS t", "time")
    assert sorted(tuple(row)[:3] for row in files.parse()) == [(3, 4, 5.0)]
    assert len(files.quarantined) == 4
    assert sorted(tuple(row)[:3] for row in typed.batch()) == [(1, 2, 0.5), (3, 4, 5.0)]
    assert "column 'n' is TIMESTAMP in the file and BIGINT in the schema" in set(
        typed.quarantined.values()
    )


def test_new_parquet_columns_fail_the_stream_when_mode_is_fail_on_new_columns(stream, spark):
    options = {"cloudFiles.format": "parquet", "cloudFiles.schemaEvolutionMode": "failOnNewColumns"}
    files = stream(options, "id BIGINT")
    spark.range(1).selectExpr("id", "'x' AS n").write.parquet(str(files.folder / "one"))
    with pytest.raises(FlowError) as caught:
        files.parse()
    assert caught.value.condition == "UNKNOWN_FIELD"
    assert "'n'" in caught.value.message


@pytest.mark.timeout(60)
def test_an_element_with_a_huge_exponent_is_a_corrupt_record(stream):
    options = {"format": "xml", "rowTag": "r", "rescuedDataColumn": "_rescued_data"}
    schema = (
        "_d DECIMAL(9, 2), a DECIMAL(9, 2), n STRING, c STRUCT<_VALUE: DECIMAL(9, 2), _u: STRING>"
    )
    broken = [
        "<r><n>1</n><a>1e300000000</a></r>",
        '<r d="1e300000000"><n>2</n></r>',
        '<r><n>3</n><c u="x">\n-1.5E+300000000</c></r>',
        '<r><x:a k="v"><![CDATA[1e300000000]]></x:a></r>',
    ]
    text = "<r><n>1e300000000</n></r>"
    good = '<r d="1.5"><n>5e12345</n><a>2e2</a></r>'
    files = stream(options, schema)
    files.put("a.xml", f"<rs>{''.join([*broken, text, good])}</rs>")
    rows = files.parse()
    assert [(row["n"], rescued(row)) for row in rows] == [
        *[(None, {"_corrupt_record": text}) for text in broken],
        ("1e300000000", None),
        ("5e12345", None),
    ]
    assert [float(rows[-1][name]) for name in ("_d", "a")] == [1.5, 200.0]


def test_xml_elements_are_rows_and_values_that_do_not_fit_are_rescued(stream):
    options = {"format": "xml", "rowTag": "r", "inferColumnTypes": "true"}
    files = stream(options)
    files.put("a.xml", '<rs>\n<r id="1"><a>1</a><b>x</b></r>\n<r id="2"><a>2</a></r><r/></rs>')
    rows = files.parse()
    assert files.types["_id"] == "bigint"
    assert [(row["_id"], row["a"], row["b"]) for row in rows] == [
        (1, 1, "x"),
        (2, 2, None),
        (None, None, None),
    ]
    files.put("b.xml", '<rs><r id="3"><c><d>1</d></c></r><r id="x"><a>4</a></r><r><a>5</a>')
    rows = files.parse()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert (rows[0]["_id"], rows[0]["c"]) == (3, (1,))
    assert rows[1]["_id"] is None
    assert (rescued(rows[1]) or {})["_id"] == "x"
    assert rescued(rows[2]) == {"_corrupt_record": "<r><a>5</a>"}
    broken = [
        "<r><a>1 & 2</a></r>",
        "<r><a>1</b></r>",
        "<r id=1><a>2</a></r>",
        "<r><b>&nbsp;</b></r>",
        "<r><a>x</a><r><a>1</a></r>",
        "<b>2</b></r>",
    ]
    text = "".join(broken) + "<r><b><![CDATA[</r>]]></b><!-- </r> --></r>"
    files.put(
        "c.xml",
        f'no <rs><!-- <r id="9"/> --><r id="6"/>{text}<r id="y" b="/>"/><r id="7"/><r id="8',
    )
    rows = files.parse()
    assert [(row["_id"], rescued(row)) for row in rows] == [
        (None, {"_corrupt_record": "no "}),
        (6, None),
        *[(None, {"_corrupt_record": record}) for record in broken],
        (None, None),
        (None, {"_id": "y", "_b": "/>"}),
        (7, None),
        (None, {"_corrupt_record": '<r id="8'}),
    ]
    assert rows[-4]["b"] == "</r>"
    with pytest.raises(ConnectorError, match="rowTag"):
        stream({"format": "xml"}, "a INT", "tagless").parse()


def test_attributes_and_repetitions_that_do_not_fit_a_column_are_rescued(stream):
    schema = "a INT, n STRING, l ARRAY<INT>, t ARRAY<STRUCT<u: INT>>, s STRUCT<v: INT>"
    files = stream({"format": "xml", "rowTag": "r", "rescuedDataColumn": "_rescued_data"}, schema)
    fitting = "<n><m>1</m></n><l>1</l><t><u>1</u></t><t><u>2</u></t><s><v>1</v></s><a>1</a>"
    files.put(
        "a.xml",
        f"""<rs><r>{fitting}</r><r><a>1</a><a>02</a></r><r><n k="07">x</n></r>
        <r><l>1</l><l k="v">2</l></r><r><t><u>1</u><u>2</u></t></r>
        <r><s><v k="v">1</v></s></r></rs>""",
    )
    rows = files.parse()
    assert (rows[0]["n"], rows[0]["t"]) == ("<m>1</m>", [(1,), (2,)])
    assert [rescued(row) for row in rows] == [
        None,
        {"a": ["1", "02"]},
        {"n": {"_VALUE": "x", "_k": "07"}},
        {"l": ["1", {"_VALUE": "2", "_k": "v"}]},
        {"t": {"u": ["1", "2"]}},
        {"s": {"v": {"_VALUE": "1", "_k": "v"}}},
    ]


@pytest.mark.parametrize("options", [{"format": "text"}, {"format": "xml", "rowTag": "value"}])
def test_files_in_another_encoding_are_decoded(stream, options):
    files = stream({**options, "encoding": "ISO-8859-1"})
    is_text = options["format"] == "text"
    files.put("k=1/a", ("ä" if is_text else "<value><ö>ä</ö></value>").encode("latin-1"))
    (row,) = files.parse("*", "_metadata.file_name")
    assert (row["value" if is_text else "ö"], row["k"], row["file_name"]) == ("ä", "1", "a")
    if is_text:
        wide = stream({**options, "encoding": "UTF-16"}, name="wide")
        with pytest.raises(ConnectorError, match="by lines"):
            wide.parse()


def test_text_lines_and_binary_contents_are_read(stream):
    text = stream({"cloudFiles.format": "text"})
    assert text.parse() == []
    text.put("k=1/a.txt", "one\r\ntwo\n\nthree")
    text.put("k=1/b.txt", "")
    assert [row["value"] for row in text.parse()] == ["one", "two", "", "three"]
    typed = stream({"cloudFiles.format": "text"}, "value STRING, day DATE", name="t")
    typed.put("day=2026-01-02/a.txt", "one")
    assert [(row["value"], str(row["day"])) for row in typed.parse()] == [("one", "2026-01-02")]
    hinted = stream({"format": "text", "schemaHints": "day DATE"}, name="hinted")
    hinted.put("day=2026-01-02/a.txt", "one")
    assert [str(row["day"]) for row in hinted.parse()] == ["2026-01-02"]
    hinting = {"format": "text", "schemaHints": "value INT"}
    with pytest.raises(ConnectorError, match="schemaHints 'value INT' do not go with"):
        stream(hinting, name="hinting").parse()
    binary = stream({"cloudFiles.format": "BINARYFILE", "pathGlobFilter": "*.bin"}, name="b")
    binary.put("a.bin", b"\x00\x01")
    binary.put("a.txt", b"\x00\x01")
    (row,) = binary.parse()
    assert binary.columns == ["path", "modificationTime", "length", "content"]
    assert (row["length"], bytes(row["content"])) == (2, b"\x00\x01")


def test_format_is_detected_from_file_names_when_not_set(stream):
    files = stream({"inferColumnTypes": "true"})
    files.put("a.jsonl.gz", __import__("gzip").compress(b'{"id":1}\n'))
    assert [row["id"] for row in files.parse()] == [1]
    unknown = stream({}, name="unknown")
    unknown.put("README", "x")
    with pytest.raises(ConnectorError, match="format"):
        unknown.parse()
