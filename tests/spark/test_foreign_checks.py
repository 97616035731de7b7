"""`check` of a project with many features of projects for Databricks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._check import ProjectCheck, check_project
from penstock._cli.check import _needs
from penstock._project.spec import load_settings

pytestmark = pytest.mark.spark

CLOUD = """
import dlt, json, sys
from pyspark.sql import functions as F

sys.path.append("../common/lib")
from foreign_rules import LIMIT

catalog = spark.conf.get("shop.catalog")
schema = spark.conf.get("shop.schema")
numbers = spark.createDataFrame([(1, "a"), (2, "b")], "rate FLOAT, name STRING")
early = spark.read.table("own").columns

for store in ("s3://raw/a", "abfss://c@x.dfs.core.windows.net/a",
              "wasbs://c@x.blob.core.windows.net/a"):
    scheme = store.split(":")[0]

    @dlt.table(name=f"batch_{scheme}")
    def batch(store=store):
        return spark.read.format("json").load(store).select("id")

    @dlt.table(name=f"files_{scheme}")
    def files(store=store):
        stream = spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv")
        return stream.option("cloudFiles.schemaHints", "id INT, at TIMESTAMP").load(store + "/f")

@dlt.table
def landed():
    stream = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    return (stream.option("cloudFiles.schemaHints", "id INT").load("/Volumes/main/landed")
            .select("id", "amount", F.col("customer.name").alias("who")))

@dlt.table
def beside():
    return spark.read.schema("id INT").json("landing").limit(LIMIT)

@dlt.table
def messages():
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "prod:9092")
    return reader.option("subscribe", "orders").load()

dlt.create_streaming_table("latest")
dlt.apply_changes(target="latest", source="messages", keys=["key"], sequence_by="offset AS o d")

dlt.create_sink("copy", "kafka", {"kafka.bootstrap.servers": "copy:9092", "topic": "t"})

@dlt.table
def own():
    return numbers.where(F.col("rate") < LIMIT)

@dlt.table
def below_own():
    return spark.read.table(f"{catalog}.{schema}.own")

@dlt.table
@dlt.expect("bad_name", "amnt > 0")
@dlt.expect("bad_sql", "amount >")
@dlt.expect("good", "amount > 0")
def judged():
    return spark.range(3).withColumn("amount", F.lit(1))
"""
SECRETS = """
import dlt, json
password = json.loads(dbutils.secrets.get("scope", "key"))["password"]

@dlt.table
def never():
    return spark.range(1)
"""
SQL = """
CREATE OR REFRESH MATERIALIZED VIEW scored AS
SELECT id, ai_query('m', text) AS score FROM main.raw.texts;
CREATE OR REFRESH STREAMING TABLE strict (
  CONSTRAINT has_id EXPECT (id IS NOT NULL) ON VIOLATION FAIL
) AS
SELECT id, a, b, c + 1 AS d, upper(e) AS f, g.h
FROM STREAM read_files("s3://raw/sql", format => "json")
"""


@pytest.fixture(scope="module")
def checked_project(
    spark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ProjectCheck, Path]]:
    root = tmp_path_factory.mktemp("foreign")
    for name, text in (
        ("etl/cloud.py", CLOUD), ("etl/secrets.py", SECRETS), ("etl/scored.sql", SQL),
        ("common/lib/foreign_rules.py", "LIMIT = 3\n"), ("landing/a.json", '{"id": 1}\n'),
    ):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield check_project(load_settings(root, source=root / "etl")), root


def test_reasons_name_the_paths_setting_and_the_file_system(checked_project):
    check, _ = checked_project
    reasons = {source.name: source.reason for source in check.missing}
    for store, scheme in (
        ("s3://raw/a", "s3"),
        ("abfss://c@x.dfs.core.windows.net/a", "abfss"),
        ("wasbs://c@x.blob.core.windows.net/a", "wasbs"),
    ):
        for name in (f"json {store}", f"csv {store}/f"):
            assert "map its prefix under `paths` in the settings" in reasons[name]
            assert f"no file system for {scheme}:" in reasons[name]
    landed = "json /Volumes/main/landed"
    hint = "map its prefix under `paths` in the settings"
    assert reasons[landed] == f"the path does not exist; {hint}"
    for text in (str(check), *map(str, check.refused), *map(str, check.unsure.values())):
        assert "calling o" not in text
        assert "Py4J" not in text


def test_schema_hints_are_part_of_the_inferred_columns(checked_project):
    check, _ = checked_project
    columns = {source.name: dict(source.columns) for source in check.missing}
    assert columns["json /Volumes/main/landed"] == {
        "id": "int",
        "amount": "void",
        "customer": "map<string,void>",
    }
    assert columns["csv s3://raw/a/f"] == {"id": "int", "at": "timestamp"}
    assert set(columns["json s3://raw/sql"]) == {"id", "a", "b", "c", "e", "g"}


def test_only_certain_errors_are_refused_and_with_the_messages_of_a_run(checked_project):
    check, _ = checked_project
    errors = {error.message: error for error in check.refused}
    assert [error.condition for error in errors.values()].count("EXPECTATION_INVALID") == 2
    (name,) = [text for text in errors if "'bad_name'" in text]
    assert "did you mean 'amount'?" in (errors[name].hint or "")
    assert any("'bad_sql'" in text for text in errors)
    assert [e.condition for e in errors.values() if "ai_query" in e.message] == [
        "FEATURE_NOT_AVAILABLE"
    ]
    assert any("`sequence_by` cannot be used" in text for text in errors)
    assert len(errors) == 4, errors
    assert list(check.unsure) == ["secrets.py:3"]


def test_datasets_of_the_pipeline_are_not_missing_tables(checked_project):
    check, _ = checked_project
    assert [s.name for s in check.missing if s.name.startswith("table")] == ["table main.raw.texts"]
    assert any("dataset 'own' of this pipeline" in note for note in check.notes)
    assert check.needs.imports == ()


def test_report_counts_flows_and_lists_each_need_once(checked_project):
    check, _ = checked_project
    assert (len(check.flows), len(check.planned)) == (15, 12)
    needs = [(kind, name) for kind, name, _ in _needs(check)]
    assert len(set(needs)) == len(needs)
    assert ("secret", "scope/key") in needs
    assert {("broker", "prod:9092"), ("broker", "copy:9092")} <= set(needs)
    assert all("own" not in name for kind, name in needs if kind == "source")


def test_relative_paths_are_also_resolved_in_the_working_directory(checked_project):
    check, root = checked_project
    (note,) = [note for note in check.notes if "'landing'" in note]
    assert f"is read from the working directory {root}" in note
    assert not any("landing" in s.name and "Volumes" not in s.name for s in check.missing)
