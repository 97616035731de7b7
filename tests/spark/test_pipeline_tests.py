"""`PipelineTest` with an unchanged DLT project: rows in, tables out."""

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SpecError
from penstock.testing import Counts, PipelineTest, assert_rows
from penstock.testing.time import FrozenTime

PIPELINE = """
import dlt
from pyspark.sql import functions as F


@dlt.table
def raw():
    return (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", "broker:9092")
        .option("subscribe", "orders").load()
        .select(F.from_json(F.col("value").cast("string"), "id INT, amount INT").alias("o"))
        .select("o.*")
    )


@dlt.table
@dlt.expect_or_drop("positive", "amount > 0")
def orders():
    return dlt.read_stream("raw").join(spark.read.table("main.ref.names"), "id", "left")


@dlt.table
def totals():
    return dlt.read("orders").groupBy("name").agg(F.sum("amount").alias("amount"))


@dlt.table(path="/data/of/production/notes")
def notes():
    return spark.read.schema("id INT, note STRING").json("/Volumes/raw/notes")


@dlt.table
@dlt.expect_or_drop("january", "CURRENT_DATE = day AND now() < '2026-02-01T00:00:00Z'")
def seen():
    days = spark.sql("SELECT current_date() AS day, 'now()' AS text")
    return dlt.read_stream("raw").select("id", F.current_timestamp().alias("time")).join(days)


dlt.create_streaming_table("latest")
dlt.apply_changes(target="latest", source="raw", keys=["id"], sequence_by="amount")
"""


RAW = "id INT, amount INT"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
SHOWN_PIPELINE, *SHOWN_TESTS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
)


@pytest.fixture
def pipeline(tmp_path: Path, spark: Any) -> PipelineTest:
    project = tmp_path / "project"
    project.mkdir()
    (project / "orders.py").write_text(PIPELINE, encoding="utf-8")
    (project / "penstock.yaml").write_text("catalog: {type: hive}", encoding="utf-8")
    kit = PipelineTest(project, tmp_path / "storage", spark)
    kit.add_rows("main.ref.names", [{"id": 1, "name": "ada"}])
    return kit.add_file("/Volumes/raw/notes/1.json", '{"id": 1, "note": "paid"}')


@pytest.mark.parametrize(
    "code", SHOWN_TESTS, ids=re.findall(r"def (test_\w+)", "".join(SHOWN_TESTS))
)
def test_tests_in_the_docs_pass(code: str, tmp_path: Path, spark: Any) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "orders.py").write_text(SHOWN_PIPELINE, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(code, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(PipelineTest(project, tmp_path / "storage", spark))


def test_rows_flow_through_all_tables_in_two_updates(pipeline: PipelineTest) -> None:
    before = Path.cwd()
    pipeline.add_rows(
        "raw", [{"id": 1, "amount": 5}, {"id": 2, "amount": -1}], "id INT, amount INT"
    )
    pipeline.run()
    assert_rows(pipeline.table("orders"), [{"id": 1, "amount": 5, "name": "ada"}])
    assert_rows(pipeline.quarantine("orders"), [{"id": 2, "_failed_rules": ["positive"]}])
    assert_rows(pipeline.quarantine("raw"), [])
    assert_rows(pipeline.table("notes"), [{"note": "paid"}])
    assert not Path("/data/of/production").exists()
    assert pipeline.counts("orders") == Counts(written=1, dropped=1, quarantined=1)

    pipeline.add_rows("raw", [{"id": 1, "amount": 7}, {"id": 3, "amount": 0}], RAW)
    pipeline.run()
    assert_rows(pipeline.table("orders"), [{"amount": 5}, {"amount": 7}])
    assert_rows(pipeline.table("totals"), [{"name": "ada", "amount": 12}])
    assert_rows(pipeline.quarantine("orders"), [{"id": 2}, {"id": 3}])
    assert_rows(
        pipeline.table("latest"),
        [{"id": 1, "amount": 7}, {"id": 2, "amount": -1}, {"id": 3, "amount": 0}],
    )
    assert Path.cwd() == before
    with pytest.raises(AssertionError, match="DIFFERENT_ROWS"):
        assert_rows(pipeline.table("orders"), [{"amount": 5}, {"amount": 8}])
    with pytest.raises(AssertionError, match="no rows are expected"):
        assert_rows(pipeline.table("orders"), [])


def test_queries_and_expectations_use_the_frozen_time(pipeline: PipelineTest) -> None:
    pipeline.add_rows("raw", [{"id": 1, "amount": 5}], RAW)
    pipeline.freeze_time("2026-02-01T00:59:59+01:00").run("raw", "seen")
    row = {"id": 1, "time": datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC), "day": date(2026, 1, 31)}
    assert_rows(pipeline.table("seen"), [{**row, "text": "now()"}])
    pipeline.add_rows("raw", [{"id": 2, "amount": 5}], RAW)
    pipeline.freeze_time(datetime.fromisoformat("2026-02-01")).run("raw", "seen")
    assert_rows(pipeline.table("seen"), [row])
    assert_rows(pipeline.quarantine("seen"), [{"id": 2, "day": date(2026, 2, 1)}])


def test_frozen_date_is_in_the_time_zone_of_the_session(spark: Any) -> None:
    time = FrozenTime(datetime(2026, 1, 31, 23, tzinfo=UTC), spark)
    query = time.query(lambda: spark.sql("SELECT current_date() AS day"))
    spark.conf.set("spark.sql.session.timeZone", "+02:00")  # Spark's format for an offset
    try:
        assert query().first().day == date(2026, 2, 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_unknown_crash_step_and_rows_of_a_cdc_target_are_errors(pipeline: PipelineTest) -> None:
    with pytest.raises(AssertionError, match="no flow reached the step"):
        pipeline.add_rows("raw", [], RAW).run_and_crash("befor_write")
    with pytest.raises(SpecError, match="add the change events"):
        pipeline.add_rows("latest", [{"id": 1, "amount": 1}]).run()
