"""Refreshes of materialized views in updates: techniques, rows and reports."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pytest
from crashes import crashing
from deltalake import DeltaTable, write_deltalake
from update_project import Project

from penstock._observe.events import UpdateState
from penstock._tables.kill_points import step_callback
from penstock._tables.write.schema import LENGTHS

SETTINGS = """
name: views
libraries: [{file: {path: views.sql}}]
quarantine: true
configuration: {pipelines.maxFlowRetryAttempts: '0'}
"""
VIEWS = """
CREATE OR REFRESH MATERIALIZED VIEW clean
  (CONSTRAINT has_value EXPECT (v IS NOT NULL) ON VIOLATION DROP ROW) {policy} AS
SELECT k, v, ts FROM delta.`{src}`;
CREATE OR REFRESH MATERIALIZED VIEW totals {policy} AS
SELECT k, count(*) AS n, sum(v) AS total FROM clean GROUP BY k;
CREATE OR REFRESH MATERIALIZED VIEW latest {policy} AS
SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC, v) AS r FROM clean)
WHERE r = 1;
CREATE OR REFRESH MATERIALIZED VIEW known {policy} AS
SELECT k, v FROM clean WHERE k IN (SELECT k FROM delta.`{other}`);
CREATE OR REFRESH MATERIALIZED VIEW pairs {policy} AS
SELECT s.k, s.v, o.ts FROM delta.`{src}` s JOIN delta.`{other}` o ON s.k = o.k;
CREATE OR REFRESH MATERIALIZED VIEW overall {policy} AS
SELECT max(ts) AS newest, count(*) AS n, sum(v) AS total, min(v) FILTER (WHERE k = 99) AS least
FROM clean;
CREATE OR REFRESH MATERIALIZED VIEW whole {policy} AS SELECT count(*) AS n FROM totals
"""

WORDS = """
CREATE OR REFRESH MATERIALIZED VIEW view {words} AS SELECT id, word FROM delta.`{src}`;
CREATE OR REFRESH STREAMING TABLE stream {words} AS SELECT id, word FROM STREAM(delta.`{src}`);
CREATE OR REFRESH STREAMING TABLE newest {words};
CREATE TEMPORARY VIEW source AS SELECT * FROM STREAM(delta.`{src}`);
CREATE FLOW changes AS AUTO CDC INTO newest FROM STREAM(source)
KEYS (id) SEQUENCE BY id STORED AS SCD TYPE 1;
CREATE OR REFRESH STREAMING TABLE strict (id INT, word VARCHAR({most})) AS
SELECT id, word FROM STREAM(delta.`{src}`)
"""


class Pipeline:
    def __init__(self, root: Path, spark: Any) -> None:
        self.spark, self.root = spark, root
        self.paths = {"src": f"{root}/src", "other": f"{root}/other"}
        self.project = Project(root, spark)
        (root / "penstock.yaml").write_text(SETTINGS, encoding="utf-8")
        self.declare("REFRESH POLICY INCREMENTAL")
        self.add("src", [(k, k + n, n) for k in range(20) for n in range(5)] + [(3, None, 9)])
        self.add("other", [(1, None, 0), (2, None, 0)])

    def declare(self, policy: str, more: str = "", **of_view: str) -> None:
        """Write the views with a policy, or their own policy, and the text `more`."""
        text = VIEWS.format(policy=policy, **self.paths) + more
        for name, own in of_view.items():
            text = text.replace(f"VIEW {name} {policy}", f"VIEW {name} {own}")
        (self.root / "views.sql").write_text(text, encoding="utf-8")

    def add(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        df = self.spark.createDataFrame(rows, "k INT, v INT, ts INT").coalesce(1)
        df.write.format("delta").mode("append").save(self.paths[table])

    def refresh(self, state: UpdateState = UpdateState.COMPLETED) -> dict[str, str]:
        """Run an update; returns the last technique of each view."""
        result = self.project.run()
        assert result.state is state, "\n".join(map(str, result.failures))
        self.failures = result.failures
        self.reasons, techniques = {}, {}
        for event in self.project.events:
            if event.event_type == "planning_information":
                name = event.origin.dataset_name.rpartition(".")[2]
                techniques[name], self.reasons[name] = event.body.technique, event.body.reason
        return techniques

    def check(self) -> None:
        """Check that every view has the rows of its query, and the quarantine the dropped rows."""
        database = duckdb.connect()
        for name, path in self.paths.items():
            database.register(name, pyarrow.table(DeltaTable(path).scan()))
        clean = "(SELECT k, v, ts FROM src WHERE v IS NOT NULL)"
        totals = f"(SELECT k, count(*) AS n, sum(v) AS total FROM {clean} GROUP BY k)"
        known = "(SELECT k FROM other)"
        queries = {
            "clean": f"SELECT * FROM {clean}",
            "totals": f"SELECT * FROM {totals}",
            "latest": f"SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY "
            f"ts DESC, v) AS r FROM {clean}) WHERE r = 1",
            "known": f"SELECT k, v FROM {clean} WHERE k IN {known}",
            "pairs": "SELECT s.k, s.v, o.ts FROM src s JOIN other o ON s.k = o.k",
            "overall": "SELECT max(ts), count(*), sum(v), min(v) FILTER (WHERE k = 99) "
            f"FROM {clean}",
            "whole": f"SELECT count(*) FROM {totals}",
        }
        for name, query in queries.items():
            expected = Counter(database.sql(query).fetchall())
            assert Counter(self.project.rows(name, key=repr)) == expected, name
        bad = database.sql("SELECT k FROM src WHERE v IS NULL").fetchall()
        assert Counter(self.project.rows("clean_quarantine", "k", key=repr)) == Counter(bad)


@pytest.fixture(scope="module")
def pipeline(spark, tmp_path_factory):
    """A pipeline whose views are up to date at the start of each test."""
    pipeline = Pipeline(tmp_path_factory.mktemp("views"), spark)
    assert set(pipeline.refresh().values()) == {"COMPLETE_RECOMPUTE"}
    pipeline.check()
    return pipeline


def test_views_are_updated_by_the_changes_of_their_sources(pipeline, monkeypatch):
    # Like in a large table, which is not rewritten.
    monkeypatch.setattr("penstock._tables.write.keyed.REWRITE_BYTES", -1)
    assert set(pipeline.refresh().values()) == {"NO_OP"}
    src, other = (f"delta.`{pipeline.paths[name]}`" for name in ("src", "other"))
    pipeline.spark.sql(f"COMMENT ON TABLE {src} IS 'orders'")
    # No view reads the new column.
    pipeline.spark.sql(f"ALTER TABLE {src} ADD COLUMN note STRING")
    assert set(pipeline.refresh().values()) == {"NO_OP"}

    rows = [(2, 100, 10), (2, 100, 11), (2, 101, 9), (2, 500, 12), (77, 1, 1)]
    pipeline.add("src", [*rows, (None, 1, 1), (5, None, 1)])
    assert pipeline.refresh() == {
        "clean": "APPEND_ONLY",
        "totals": "GROUP_AGGREGATE",
        "latest": "ROW_BASED",
        "known": "APPEND_ONLY",
        "pairs": "APPEND_ONLY",
        "overall": "COMPLETE_RECOMPUTE",
        "whole": "COMPLETE_RECOMPUTE",
    }
    pipeline.check()
    assert pipeline.reasons["totals"] == "new rows in 3 groups"
    assert pipeline.reasons["latest"] == "rows of 3 keys may have changed: k"
    assert "over all rows" in pipeline.reasons["whole"]
    assert "the row of its table cannot be replaced" in pipeline.reasons["overall"]

    # A table that only a subquery reads.
    pipeline.add("other", [(77, None, 0)])
    assert pipeline.refresh()["known"] == "ROW_BASED"
    pipeline.check()

    # Rows of a join: some have duplicates, or share values with rows that are kept.
    for change, rows, groups in (
        (f"UPDATE {src} SET v = 501 WHERE v = 500", "1 row removed and 1 added", 1),
        (f"DELETE FROM {src} WHERE ts = 11 OR k = 77", "2 rows removed and 0 added", 2),
        (f"UPDATE {other} SET ts = 1 WHERE k = 1", "5 rows removed and 5 added", None),
    ):
        pipeline.spark.sql(change)
        techniques = pipeline.refresh()
        assert techniques["pairs"] == "ROW_BASED"
        assert pipeline.reasons["pairs"] == rows
        assert techniques["totals"] == ("GROUP_AGGREGATE" if groups else "NO_OP")
        if groups:
            assert pipeline.reasons["totals"].startswith(f"changed rows in {groups} group")
        pipeline.check()


def test_a_view_is_recomputed_when_its_changes_are_not_known(spark, pipeline, monkeypatch):
    policy = "REFRESH POLICY INCREMENTAL"
    tables = [f"SELECT k FROM delta.`{path}`" for path in pipeline.paths.values()]
    differing = f"""; CREATE OR REFRESH MATERIALIZED VIEW texts PARTITIONED BY (x) {policy} AS
        SELECT x, k, count(*) AS n FROM (SELECT k, CASE WHEN k = 1 THEN '' WHEN k > 1 THEN 'a' END
        AS x FROM clean) GROUP BY x, k;
        CREATE OR REFRESH MATERIALIZED VIEW differing AS {{}} EXCEPT {{}}"""
    pipeline.declare(policy, differing.format(*tables))
    totals = f"delta.`{pipeline.project.path('totals')}`"
    spark.sql(f"OPTIMIZE {totals}")
    pipeline.add("src", [(1, 5, 5), (99, 7, 5)])
    techniques = pipeline.refresh()
    assert techniques["totals"] == techniques["overall"] == "GROUP_AGGREGATE"
    assert pipeline.reasons["overall"] == "new rows in 1 group"
    pipeline.check()
    pipeline.add("src", [(1, 5, 5)])
    assert pipeline.refresh()["texts"] == "COMPLETE_RECOMPUTE"
    assert "are the same partition of x" in pipeline.reasons["texts"]
    with monkeypatch.context() as patched:
        patched.setattr("penstock._tables.write.keyed.REWRITE_BYTES", -1)
        pipeline.add("src", [(98, 5, 5)])
        assert pipeline.refresh()["texts"] == "GROUP_AGGREGATE"
    totals_of_keys = pipeline.project.rows("totals", "k", "n", key=repr)
    assert pipeline.project.rows("texts", "k", "n", key=repr) == totals_of_keys

    spark.sql(f"DELETE FROM {totals} WHERE k = 1")
    pipeline.declare(policy, differing.format(*reversed(tables)))
    techniques = pipeline.refresh()
    assert techniques["totals"] == techniques["differing"] == "COMPLETE_RECOMPUTE"
    assert pipeline.reasons["differing"] == "the query changed"
    assert pipeline.reasons["totals"] == "the table was changed since the last refresh"
    pipeline.check()

    # The rows of a deleted file are unknown, and Spark may ignore the missing file.
    settings = pipeline.root / "penstock.yaml"
    ignoring = SETTINGS.replace("{pipe", "{spark.sql.files.ignoreMissingFiles: 'true', pipe")
    settings.write_text(ignoring, encoding="utf-8")
    spark.sql(f"UPDATE delta.`{pipeline.paths['src']}` SET v = v + 1 WHERE k = 4")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{pipeline.paths['src']}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    # The newer versions at this path belong to another table.
    versions = DeltaTable(pipeline.paths["other"]).version() + 2
    shutil.rmtree(pipeline.paths["other"])
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for number in range(versions):
        pipeline.add("other", [(number, None, 0)])
    pipeline.declare(policy)
    techniques = pipeline.refresh()
    assert techniques["clean"] == techniques["known"] == "COMPLETE_RECOMPUTE"
    assert "ignoreMissingFiles is true" in pipeline.reasons["clean"]
    assert pipeline.reasons["known"] == "a source was dropped and created again"
    pipeline.check()
    settings.write_text(SETTINGS, encoding="utf-8")


def test_rows_are_added_once_when_a_refresh_is_interrupted(pipeline):
    for point in ("after_quarantine_commit", "after_target_commit"):
        pipeline.add("src", [(1, 5, 5), (1, None, 6)])
        with crashing(point, "clean") as crashed:
            pipeline.refresh(UpdateState.FAILED)
        assert crashed
        assert pipeline.refresh()["clean"] == "COMPLETE_RECOMPUTE"
        pipeline.check()


def test_rows_that_an_interrupted_query_quarantined_are_removed(pipeline):
    path = pipeline.root / "views.sql"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("v IS NOT NULL", "v > 3"), encoding="utf-8")
    with crashing("after_quarantine_commit", "clean"):
        pipeline.refresh(UpdateState.FAILED)
    path.write_text(text, encoding="utf-8")
    assert pipeline.refresh()["clean"] == "COMPLETE_RECOMPUTE"
    pipeline.check()


def test_changes_of_a_view_by_another_writer_are_detected(spark, pipeline):
    known = pipeline.project.path("known")

    def write(step: str, flow: str, batch_id: int | None) -> None:
        if step == "after_target_commit" and flow == "known":
            spark.sql(f"INSERT INTO delta.`{known}` VALUES (0, 0)")

    pipeline.add("src", [(95, 5, 5)])  # no rows and no commit for `known`
    with step_callback(write):
        assert pipeline.refresh()["known"] == "APPEND_ONLY"
    assert pipeline.refresh()["known"] == "COMPLETE_RECOMPUTE"
    # Another table with the same version at the same path.
    version = DeltaTable(known).version()
    shutil.rmtree(known)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    columns = pyarrow.schema([("k", pyarrow.int32()), ("v", pyarrow.int32())])
    for _ in range(version + 1):
        write_deltalake(known, pyarrow.table({"k": [0], "v": [0]}, columns), mode="append")
    assert pipeline.refresh()["known"] == "COMPLETE_RECOMPUTE"
    pipeline.check()


def test_refresh_policy_decides_between_techniques_and_errors(pipeline, monkeypatch):
    monkeypatch.setattr("penstock._execution.incremental._SHORT_GROUPS", 1000.0)
    strict = "REFRESH POLICY INCREMENTAL STRICT"
    dated = f"""; CREATE OR REFRESH MATERIALIZED VIEW dated {strict} AS
        SELECT current_date() AS day, rand() AS r, k FROM totals"""
    pipeline.declare("", dated)
    pipeline.add("src", [(1, 5, 5)])
    techniques = pipeline.refresh()
    assert techniques["clean"] == "APPEND_ONLY"
    assert techniques["totals"] == "COMPLETE_RECOMPUTE"
    assert pipeline.reasons["totals"].startswith("a source changed; a complete refresh takes ")
    assert techniques["dated"] == "COMPLETE_RECOMPUTE"  # the first refresh of the view
    pipeline.check()

    pipeline.declare("REFRESH POLICY FULL", dated, whole=strict)
    pipeline.add("src", [(1, 6, 5), (78, 1, 1)])
    techniques = pipeline.refresh(UpdateState.FAILED)
    assert set(techniques.values()) == {"COMPLETE_RECOMPUTE"}
    of_dated, of_whole = sorted(map(str, pipeline.failures))
    assert "[REFRESH_NOT_INCREMENTAL]" in of_dated and "its result is not determin" in of_dated
    assert "[REFRESH_NOT_INCREMENTAL]" in of_whole and "over all rows" in of_whole


def test_rules_about_columns_that_a_view_does_not_return_are_applied_to_all_rows(pipeline):
    policy = "REFRESH POLICY INCREMENTAL"
    view = """; CREATE OR REFRESH MATERIALIZED VIEW early
      (CONSTRAINT is_early EXPECT (x < 50) ON VIOLATION DROP ROW) {policy} AS
    SELECT k FROM (SELECT k, {columns} FROM delta.`{src}`)"""
    columns = "v AS y, ts AS x"
    pipeline.declare(policy, view.format(policy=policy, columns=columns, **pipeline.paths))
    pipeline.refresh()
    before = len(pipeline.project.rows("early", key=repr))
    pipeline.add("src", [(80, 1, 49), (81, 1, 50)])
    refreshed = [pipeline.refresh()["early"]]
    assert "expectations use columns" in pipeline.reasons["early"]
    assert len(pipeline.project.rows("early", key=repr)) == before + 1
    refreshed.append(pipeline.refresh()["early"])

    columns = "v AS x, ts AS y"
    pipeline.declare(policy, view.format(policy=policy, columns=columns, **pipeline.paths))
    refreshed.append(pipeline.refresh()["early"])
    assert {(80,), (81,)} <= set(pipeline.project.rows("early", key=repr))
    assert refreshed == ["COMPLETE_RECOMPUTE", "NO_OP", "COMPLETE_RECOMPUTE"]


RULE = """
import penstock as dp
from pyspark.sql import functions as F

MORE = int(spark.conf.get("more"))


@F.udf("boolean")
def is_valid(id):
    return id >= {} + MORE


@dp.materialized_view
@dp.expect_or_drop("valid", is_valid("id"))
def valid():
    return spark.range(3)
"""


def test_rows_are_checked_again_if_a_function_of_a_rule_changed(spark, tmp_path):
    project = Project(tmp_path, spark)
    for least, more in ((0, 0), (1, 0), (1, 1)):
        settings = "name: rules\nlibraries: [{file: {path: rules.py}}]\n"
        settings += f"configuration: {{more: '{more}'}}\n"
        (tmp_path / "penstock.yaml").write_text(settings, encoding="utf-8")
        (tmp_path / "rules.py").write_text(RULE.format(least), encoding="utf-8")
        assert project.run().state is UpdateState.COMPLETED
        assert sorted(project.rows("valid")) == [(n,) for n in range(least + more, 3)]


READ_TWICE = """
import penstock as dp
import pyarrow
from deltalake import write_deltalake


@dp.materialized_view(refresh_policy="incremental_strict")
def twice():
    before = spark.read.load("t", format="delta")
    write_deltalake("t", pyarrow.table({"k": [1]}), mode="append")
    return before.union(spark.read.load("t", format="delta"))
"""


def test_a_table_that_changes_while_a_query_function_runs_has_one_version(spark, project):
    write_deltalake(str(project.root / "t"), pyarrow.table({"k": [1]}))
    project.source(READ_TWICE)
    for technique in ("COMPLETE_RECOMPUTE", "APPEND_ONLY"):
        assert not project.run().failures
        (planned,) = (e for e in project.events if e.event_type == "planning_information")
        assert planned.body.technique == technique
        version = DeltaTable(str(project.root / "t")).version()
        assert len(project.rows("twice")) == 2 * (version + 1)


def test_a_view_reads_new_partitions_of_a_table_in_the_spark_catalog(spark, tmp_path):
    project = Project(tmp_path, spark)
    (tmp_path / "penstock.yaml").write_text(SETTINGS, encoding="utf-8")
    query = "SELECT day, sum(k) AS k FROM days GROUP BY day"
    (tmp_path / "views.sql").write_text(
        f"CREATE OR REFRESH MATERIALIZED VIEW sums AS {query}", encoding="utf-8"
    )
    columns = f"(k INT, day INT) USING parquet PARTITIONED BY (day) LOCATION '{tmp_path}/days'"
    spark.sql(f"CREATE TABLE days {columns}")
    try:
        for rows in ([], [(1, 2)], [(1, 2), (3, 4)]):
            for k, day in rows[-1:]:
                spark.sql(f"INSERT INTO days PARTITION (day = {day}) VALUES ({k})")
            result = project.run()
            assert not result.failures
            assert project.rows("sums", "k", "day") == rows
    finally:
        spark.sql("DROP TABLE days")


def test_a_view_that_names_files_is_recomputed_when_they_are_merged(spark, tmp_path):
    project, table = Project(tmp_path, spark), f"delta.`{tmp_path}/t`"
    (tmp_path / "penstock.yaml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "views.sql").write_text(
        "CREATE OR REFRESH MATERIALIZED VIEW places AS "
        f"SELECT id, _metadata.file_name AS file FROM {table}",
        encoding="utf-8",
    )
    for _ in range(2):
        spark.range(1).write.format("delta").mode("append").save(f"{tmp_path}/t")
    for changed in (True, False, True):
        assert not project.run().failures
        techniques = [
            e.body.technique for e in project.events if e.event_type == "planning_information"
        ]
        assert techniques == ["COMPLETE_RECOMPUTE" if changed else "NO_OP"]
        files = {row[1] for row in project.rows("places", "id", "file")}
        assert files == {Path(file).name for file in spark.table(table).inputFiles()}
        if not changed:
            spark.sql(f"OPTIMIZE {table}")


def test_only_declared_lengths_limit_the_values_of_later_updates(spark, tmp_path):
    project = Project(tmp_path, spark)
    (tmp_path / "penstock.yaml").write_text(SETTINGS, encoding="utf-8")
    table = f"delta.`{tmp_path}/src`"
    spark.sql(f"CREATE TABLE {table} (id INT, word VARCHAR(2), code CHAR(2)) USING delta")

    def update(word, most, words=""):
        spark.sql(f"INSERT INTO {table} SELECT length('{word}'), '{word}', 'c'")
        text = WORDS.format(src=tmp_path / "src", words=words, most=most)
        if not words:  # writers of streams add new columns
            text = text.replace("SELECT id, word", "SELECT id, word, code", 2)
        (tmp_path / "views.sql").write_text(text, encoding="utf-8")
        return {failure.flow: str(failure) for failure in project.run().failures}

    def lengths(name):
        return [
            field.metadata.get(LENGTHS) for field in project.table(name).schema if field.metadata
        ]

    names = ("view", "stream", "newest")
    assert not update("ab", 2, "(id INT, word VARCHAR(2))")
    assert [lengths(name) for name in (*names, "strict")] == [["varchar(2)"]] * 4
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN word TYPE VARCHAR(4)")
    assert not update("abcd", 4)  # removes the lengths that earlier versions stored
    assert [lengths(name) for name in names] == [[]] * 3
    assert lengths("strict") == ["varchar(4)"]
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN word TYPE STRING")
    [failure] = update("abcdef", 4).values()
    assert "EXCEED_LIMIT_LENGTH" in failure
    for name in names:
        assert project.rows(name, "word") == [("ab",), ("abcd",), ("abcdef",)]
    assert project.rows("strict", "word") == [("ab",), ("abcd",)]
