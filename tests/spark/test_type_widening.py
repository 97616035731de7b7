"""Columns are widened for files of Auto Loader and for the query of a table."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from file_stream import FileStream, rescued
from update_project import Project

from penstock._observe.events import UpdateState

pytestmark = pytest.mark.spark

WIDENING = {
    "cloudFiles.inferColumnTypes": "true",
    "cloudFiles.schemaEvolutionMode": "addNewColumnsWithTypeWidening",
}
BIG = 99_999_999_999_999_999_999


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def types(project: Project, table: str) -> dict[str, str]:
    return dict(project.table(table).dtypes)


PIPELINE = """
@dp.table
@dp.expect_or_drop("known", "id > 0")
def bronze():
    return (
        spark.readStream.format("cloudFiles")
        .option("cloudFiles.format", "json")
        .option("cloudFiles.inferColumnTypes", True)
        .option("cloudFiles.schemaHints", "n INT, price DECIMAL(5,2)")
        .option("cloudFiles.schemaEvolutionMode", "addNewColumnsWithTypeWidening")
        .load("landing")
    )


@dp.table
@dp.expect("cheap", "price < 100")
def silver():
    return spark.readStream.table("bronze").select("id", "n", "price")


@dp.materialized_view
def totals():
    rows = spark.read.table("silver")
    return rows.groupBy().agg(F.sum("n").alias("n"), F.max("price").alias("p"))
"""


@pytest.mark.long
def test_tables_are_widened_like_the_files_after_an_interrupted_update(
    tmp_path, spark, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(PIPELINE)
    bronze = project.path("bronze")
    project.add("a.json", [{"id": 1, "n": 1, "price": 1.5}, {"id": 0, "n": 2}], "landing")
    assert project.run().state is UpdateState.COMPLETED
    properties = spark.sql(f"SHOW TBLPROPERTIES delta.`{bronze}`").collect()
    assert "delta.enableTypeWidening" not in {row["key"] for row in properties}

    # The schema of the files is wider, but the table is not, as after a kill in between.
    spark.sql(f"ALTER TABLE delta.`{bronze}` ADD CONSTRAINT small CHECK (n < 1000000000000)")
    rows = [{"id": 2, "n": 5_000_000_000, "price": 1234.5}, {"id": -1, "n": 6_000_000_000}]
    project.add("b.json", [*rows, {"id": 3, "n": "none"}], "landing")
    result = project.run()
    assert [failure.condition for failure in result.failures] == ["SCHEMA_INCOMPATIBLE"]
    assert "check constraint" in str(result.failures[0])
    assert types(project, "bronze")["n"] == "int"

    # The table is wider, but its quarantine and its readers are not; the batch is not written.
    spark.sql(f"ALTER TABLE delta.`{bronze}` DROP CONSTRAINT small")
    spark.sql(f"ALTER TABLE delta.`{bronze}` SET TBLPROPERTIES('delta.enableTypeWidening'='true')")
    spark.sql(f"ALTER TABLE delta.`{bronze}` ALTER COLUMN n TYPE BIGINT")
    assert project.run().state is UpdateState.COMPLETED
    wide = {"n": "bigint", "price": "decimal(6,2)"}
    for table in ("bronze", "bronze_quarantine", "silver"):
        assert {name: types(project, table)[name] for name in wide} == wide, table
    expected = [(1, 1, Decimal("1.50")), (2, 5_000_000_000, Decimal("1234.50")), (3, None, None)]
    assert project.rows("bronze", "id", "n", "price") == expected
    assert project.rows("silver") == expected
    assert project.rows("bronze_quarantine", "id", "n") == [(-1, 6_000_000_000), (0, 2)]
    assert project.rows("totals") == [(5_000_000_001, Decimal("1234.50"))]

    # Values of incompatible types are rescued; other values widen the column.
    project.add("c.json", [{"id": 4, "n": True}, {"id": 5, "n": BIG}, {"id": 0}], "landing")
    assert project.run().state is UpdateState.COMPLETED
    (message,) = [event.message for event in project.events if "starts again" in event.message]
    assert "'n' DECIMAL(20,0)" in message
    assert types(project, "silver")["n"] == "decimal(20,0)"
    assert project.rows("silver", "id", "n")[3:] == [(4, None), (5, Decimal(BIG))]
    texts = project.table("bronze").where("_rescued_data IS NOT NULL").select("_rescued_data")
    rescued_values = [json.loads(row[0]) for row in texts.collect()]
    assert sorted(str(row["n"]) for row in rescued_values) == ["True", "none"]
    assert project.rows("totals", "n") == [(Decimal(BIG + 5_000_000_001),)]
    assert project.table("bronze_quarantine").count() == 3


TABLES = """
@dp.table({table})
@dp.expect_or_drop("small", "amount < 100")
def t():
    return rows().select("id", F.col("amount").cast("{kind}").alias("amount"))


@dp.table
def reader():
    return spark.readStream.table("t")


@dp.materialized_view(table_properties={{"delta.enableTypeWidening": "true"}})
def view():
    return spark.read.table("t").groupBy("id").agg(F.max("amount").alias("most"))
"""


def test_table_is_widened_when_its_property_or_a_setting_allows_it(
    tmp_path: Path, spark, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    allowed = 'table_properties={"delta.enableTypeWidening": "true"}'
    project.source(TABLES.format(table=allowed, kind="smallint"))
    project.add("a.json", [{"id": 1, "amount": 1}, {"id": 2, "amount": 200}])
    assert project.run().state is UpdateState.COMPLETED
    project.source(TABLES.format(table=allowed, kind="decimal(5,2)"))
    project.add("b.json", [{"id": 1, "amount": 3}, {"id": 2, "amount": 400}])
    result = project.run()
    # The table `reader` does not have the property.
    assert [failure.condition for failure in result.failures] == ["SCHEMA_INCOMPATIBLE"]
    assert "reader" in str(result.failures[0])
    assert "delta.enableTypeWidening" in (result.failures[0].hint or "")
    assert types(project, "t")["amount"] == "decimal(12,2)"
    assert types(project, "t_quarantine")["amount"] == "decimal(12,2)"
    assert types(project, "view")["most"] == "decimal(12,2)"
    assert project.rows("t", "amount") == [(1,), (3,)]
    assert project.rows("t_quarantine", "amount") == [(200,), (400,)]

    settings = "configuration:\n  pipelines.enableTypeWidening: 'true'\n"
    (project.root / "pipeline.yaml").write_text(settings)
    project.source(TABLES.format(table="", kind="int"))
    project.add("c.json", [{"id": 1, "amount": 5}])
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("t", "amount") == project.rows("reader", "amount") == [(1,), (3,), (5,)]
    assert types(project, "reader")["amount"] == "decimal(12,2)"


def wide_types(stream: FileStream) -> dict[str, str]:
    return {name: kind for name, kind in stream.types.items() if name != "_rescued_data"}


def test_json_columns_are_widened_for_new_values_at_any_depth(spark, tmp_path):
    hints = (
        "i INT, kept INT, small SMALLINT, price DECIMAL(4,1), s.n TINYINT, l.element INT, day DATE"
    )
    options = {**WIDENING, "cloudFiles.format": "json", "cloudFiles.schemaHints": hints}
    stream = FileStream(spark, tmp_path, options)
    first = {"id": 1, "i": 1, "small": 1, "price": 1.5, "s": {"n": 1}, "l": [1], "o": [{"q": 1}]}
    stream.put("a.json", lines(first))
    stream.run()
    before = wide_types(stream)
    stream.put(
        "b.json",
        lines(
            {"id": 2, "i": 5_000_000_000, "kept": 7, "s": {"n": 300}, "day": "2026-01-01"},
            {"id": BIG, "small": 1.5, "price": 12.25, "l": [2, 2.5], "o": [{"q": 1}, {"q": BIG}]},
            {"id": 3, "price": 98765.5, "new": 1, "l": [4]},
        ),
    )
    rows = {row["id"]: row for row in stream.run()}
    # One restart for each row, because columns are widened only when a value needs it.
    assert stream.restarts == ["SCHEMA_EVOLVED"] * 3
    assert wide_types(stream) == {
        **before,
        "id": "decimal(20,0)",
        "i": "bigint",
        "small": "double",
        "price": "decimal(7,2)",
        "s": "struct<n:bigint>",
        "l": "array<double>",
        "o": "array<struct<q:decimal(20,0)>>",
        "new": "bigint",
    }
    assert all(rescued(row) is None for row in rows.values())
    assert (rows[2]["i"], rows[2]["s"]["n"]) == (5_000_000_000, 300)
    assert rows[BIG]["l"] == [2.0, 2.5]
    assert [item["q"] for item in rows[BIG]["o"]] == [1, BIG]
    assert (rows[3]["price"], rows[BIG]["price"]) == (Decimal("98765.50"), Decimal("12.25"))

    # Values of types that cannot be widened, and fractions.
    stream.put(
        "c.json",
        lines(
            {"id": 4, "i": 2.5, "small": "x", "day": "2026-01-01T10:00:00"},
            {"id": 5, "s": {"n": 0.5}, "l": ["x"], "new": True},
            # A fraction in a column that has become a decimal is kept, not rounded.
            {"id": 6.25},
        ),
    )
    rows = {row["id"]: row for row in stream.run()}
    assert stream.restarts == ["SCHEMA_EVOLVED"]
    assert [rescued(rows[number]) for number in (4, 5, Decimal("6.25"))] == [
        {"i": 2.5, "small": "x"},
        {"s": {"n": 0.5}, "l": ["x"], "new": True},
        None,
    ]
    assert wide_types(stream)["id"] == "decimal(22,2)"
    assert str(rows[4]["day"]) == "2026-01-01"


@pytest.mark.parametrize("kind", ["csv", "xml"])
def test_csv_and_xml_columns_are_widened_for_new_values(spark, tmp_path, kind):
    hints = "n INT, m INT, id BIGINT"
    options = {**WIDENING, "cloudFiles.format": kind, "cloudFiles.schemaHints": hints}
    stream = FileStream(spark, tmp_path, {**options, "rowTag": "r"})

    def put(name: str, *rows: tuple[object, object, object]) -> None:
        if kind == "csv":
            text = "n,m,id\n" + "".join(f"{n},{m},{id}\n" for n, m, id in rows)
        else:
            records = [f"<r><n>{n}</n><m>{m}</m><id>{id}</id></r>" for n, m, id in rows]
            text = f"<x>{''.join(records)}</x>"
        stream.put(f"{name}.{kind}", text)

    put("a", (1, 1, 1))
    stream.parse()
    put("b", (2.5, 5_000_000_000, BIG), (2, 2, 2))
    values = {(row["n"], row["m"], row["id"]) for row in stream.parse()}
    assert values == {(2.5, 5_000_000_000, BIG), (2.0, 2, 2)}
    assert stream.restarts == ["SCHEMA_EVOLVED"]
    put("c", ("x", 2.5, 8), (5, 5, 12.5))
    rows = stream.parse()
    assert stream.restarts == ["SCHEMA_EVOLVED"]
    assert wide_types(stream) == {"n": "double", "m": "bigint", "id": "decimal(21,1)"}
    assert [row["id"] for row in rows if row["n"] == 5] == [Decimal("12.5")]
    (rescued_data,) = [json.loads(row["_rescued_data"]) for row in rows if row["n"] is None]
    assert rescued_data.items() >= {("n", "x"), ("m", 2.5 if kind == "xml" else "2.5")}


def test_parquet_columns_are_widened_and_narrow_files_are_still_read(spark, tmp_path):
    stream = FileStream(spark, tmp_path, {**WIDENING, "cloudFiles.format": "parquet"})

    def put(name: str, query: str) -> None:
        spark.sql(query).write.parquet(str(stream.folder / name))

    narrow = (
        "SELECT 1 AS i, 1 AS j, 1 AS k, float(1.5) AS f, 1.25BD AS d, date'2024-01-01' AS day, "
        "named_struct('x', 1) AS s, array(1) AS l, 2L AS big"
    )
    put("a", narrow)
    stream.parse()
    put(
        "b",
        "SELECT 5L AS i, 2.5D AS j, 7.25BD AS k, 2.5D AS f, 12345.678BD AS d, "
        "timestamp_ntz'2024-01-01 10:00:00' AS day, named_struct('x', 5L, 'y', 1) AS s, "
        "array(5L) AS l, 3BD AS big",
    )
    put("c", narrow)
    put("d", "SELECT 2.5D AS big")
    assert [row["k"] for row in stream.parse()] == [Decimal("7.25"), Decimal("1.00")]
    assert stream.restarts == ["SCHEMA_EVOLVED", "FILES_QUARANTINED"]
    assert len(stream.quarantined) == 1
    assert wide_types(stream) == {
        "i": "bigint",
        "j": "double",
        "k": "decimal(12,2)",
        "f": "double",
        "d": "decimal(8,3)",
        "day": "timestamp_ntz",
        "s": "struct<x:bigint,y:int>",
        "l": "array<bigint>",
        "big": "decimal(20,0)",
    }
