"""A pipeline that ran once runs again: nothing that a process makes up is compared later.

In one process every counter goes on (views of SQL, lambda variables, common table expressions), so
each update here numbers everything anew, as processes do that set flows up in another order.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from update_project import Project

from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._spark.plans import has_state, query_text, result_confs
from penstock._tables.write.assignment import assigned
from penstock._tables.write.table_spec import parse_schema, table_state
from penstock._update import UpdateOptions, plan_update
from penstock.errors import DefinitionErrors

SPEC = """
name: repeated
libraries:
  - file: {path: shapes.py}
  - file: {path: shapes.sql}
"""

R12 = """
CREATE OR REFRESH STREAMING TABLE src AS
SELECT * FROM STREAM read_files('csv', format => 'csv', header => true,
  schema => 'id STRING, v STRING, ts TIMESTAMP');
CREATE OR REFRESH STREAMING TABLE src2 AS
SELECT CAST(id AS BIGINT) AS id, CAST(v AS BIGINT) AS v, ts FROM STREAM(src);
CREATE OR REFRESH STREAMING TABLE agg3 AS
SELECT id, SUM(v) AS total FROM STREAM(src2) GROUP BY id;
CREATE OR REFRESH STREAMING TABLE agg5 AS SELECT id, SUM(v) AS total FROM STREAM(src) GROUP BY id
"""

R13 = """
CREATE OR REFRESH STREAMING TABLE agg (id STRING NOT NULL, total DOUBLE, note STRING) AS
SELECT id, SUM(v) AS total FROM STREAM(src2) GROUP BY id;
CREATE OR REFRESH MATERIALIZED VIEW typed_view (id INT NOT NULL COMMENT 'of a row', total STRING) AS
WITH sums AS (SELECT id, SUM(v) AS total FROM src2 GROUP BY id) SELECT * FROM sums
"""

SHAPES = """
CREATE OR REFRESH STREAMING TABLE windows AS
SELECT window.start AS started, id, COUNT(*) AS n FROM STREAM(timed)
GROUP BY window(ts, '1 minute'), id;
CREATE OR REFRESH STREAMING TABLE common AS
WITH big AS (SELECT id, v FROM STREAM(src2) WHERE v > 1)
SELECT id, MAX(v) AS most FROM big GROUP BY id;
CREATE OR REFRESH STREAMING TABLE lambdas AS
SELECT transform(array(id), x -> x + 1) AS k, COUNT(*) AS n
FROM (SELECT id FROM STREAM(src2) WHERE id IN (SELECT CAST(id AS BIGINT) FROM known))
GROUP BY transform(array(id), x -> x + 1);
CREATE OR REFRESH STREAMING TABLE pairs AS
SELECT l.id, l.v, r.v AS other FROM STREAM(timed) l JOIN STREAM(timed) r
ON l.id = r.id AND l.ts BETWEEN r.ts AND r.ts + INTERVAL 1 MINUTE;
CREATE OR REFRESH STREAMING TABLE ids AS SELECT DISTINCT id FROM STREAM(src);
CREATE OR REFRESH STREAMING TABLE cubes AS
SELECT id, v, COUNT(*) AS n, (SELECT MAX(id) FROM known) AS most FROM STREAM(src2)
GROUP BY CUBE (id, v);
CREATE OR REFRESH MATERIALIZED VIEW known AS
WITH one AS (SELECT 1 AS id), two AS (SELECT 2 AS id) SELECT * FROM one UNION ALL SELECT * FROM two
"""

HEADER = """
import pandas as pd
import penstock as dp
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor


@F.udf("string")
def shout(text):
    return str(text).upper()
"""
TYPED = """
@dp.table(output_mode="update", schema="id INT, total DOUBLE")
def updated():
    return spark.readStream.table("src2").groupBy("id").agg(F.sum("v").alias("total"))


@dp.table(deduplicate_by=["id"], schema="id INT NOT NULL, v DECIMAL(10, 2), note VARCHAR(5)")
def first_of_each():
    rows = spark.readStream.table("src2").where("v <> 5")
    return rows.select("id", "v", F.lit(None).alias("note"))
"""
SHAPES_OF_PYTHON = """
@dp.temporary_view
def timed():
    return spark.readStream.table("src2").withWatermark("ts", "1 minute")


@dp.table
def formatted():
    rows = spark.readStream.table("src2")
    return spark.sql("SELECT id, SUM(v) AS total FROM {df} GROUP BY id", df=rows)


@dp.table
def by_function():
    return spark.readStream.table("src2").groupBy(shout("id").alias("k")).agg(F.max("v").alias("m"))


@dp.table
def lambda_join():
    left = spark.readStream.table("timed")
    right = spark.readStream.table("timed").selectExpr("id AS other", "array(v) AS vs")
    return left.join(
        right, (F.col("id") == F.col("other")) & F.exists("vs", lambda x: x == F.col("v"))
    ).select("id", "v")


@dp.table
def distinct_within():
    return spark.readStream.table("timed").dropDuplicatesWithinWatermark(["id", "v"])


class Counter(StatefulProcessor):
    def init(self, handle):
        self._count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        known = self._count.get()
        n = (known[0] if known else 0) + sum(len(part) for part in rows)
        self._count.update((n,))
        yield pd.DataFrame({"id": [key[0]], "n": [n]})

    def close(self):
        pass


@dp.table
def counted():
    rows = spark.readStream.table("src2").groupBy("id")
    return rows.transformWithStateInPandas(Counter(), "id BIGINT, n BIGINT", "append", "none")


dp.create_streaming_table("several")


@dp.append_flow(target="several")
def from_windows():
    rows = spark.readStream.table("timed")
    return rows.groupBy(F.window("ts", "1 minute"), "id").count().select("id")


@dp.append_flow(target="several")
def from_rows():
    return spark.readStream.table("timed").select("id")
"""
REFUSED = """
CREATE STREAMING TABLE t1 (id BIGINT, v STRING) AS SELECT id, v FROM STREAM(src);
CREATE STREAMING TABLE t2 (id STRING, total DOUBLE) AS
SELECT id, SUM(v) FROM STREAM(src) GROUP BY id;
CREATE STREAMING TABLE t3 (pair STRUCT<id: BIGINT, v: BOOLEAN>) AS
SELECT struct(CAST(id AS INT) AS id, v) AS pair FROM STREAM(src);
CREATE MATERIALIZED VIEW t4 (n DATE) AS SELECT COUNT(*) AS n FROM src;
CREATE STREAMING TABLE t5 TBLPROPERTIES ('delta.appendOnly' = 'maybe') AS
SELECT id FROM STREAM(src);
CREATE STREAMING TABLE t7 TBLPROPERTIES ('delta.feature.catalogManaged' = 'supported') AS
SELECT id FROM STREAM(src);
CREATE STREAMING TABLE t6 TBLPROPERTIES ('delta.unknown' = '1') AS SELECT id FROM STREAM(src)
"""
ADDED = """
CREATE OR REFRESH STREAMING TABLE added AS SELECT id, MIN(v) AS least FROM STREAM(src2) GROUP BY id;
"""


def statements(*texts: str) -> list[str]:
    return [one.strip() for text in texts for one in text.split(";") if one.strip()]


class Shapes(Project):
    def write(self, sql: list[str], *, before: str = "", python: str = "") -> None:
        (self.root / "penstock.yaml").write_text(SPEC)
        (self.root / "shapes.py").write_text(HEADER + python)
        (self.root / "shapes.sql").write_text(before + ";\n".join(sql) + ";\n")

    def rows_of(self, number: int, rows: list[tuple[int, int]]) -> None:
        lines = [f"{i},{v},2026-01-01 00:{number * 10:02}:00" for i, v in rows]
        folder = self.root / "csv"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.csv").write_text("\n".join(["id,v,ts", *lines]) + "\n")

    def types(self, table: str) -> dict[str, str]:
        return {f.name: f.dataType.simpleString() for f in self.table(table).schema}

    def flow_states(self) -> dict[str, Any]:
        folder = self.root / ".penstock" / "state" / "flows"
        return {f.stem: json.loads(f.read_text())["stateful_operators"] for f in folder.iterdir()}

    def view_fingerprints(self) -> dict[str, str]:
        folder = self.root / ".penstock" / "state" / "views"
        return {f.stem: json.loads(f.read_text())["fingerprint"] for f in folder.iterdir()}


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch) -> Iterator[Shapes]:
    monkeypatch.chdir(tmp_path)
    return Shapes(tmp_path, spark)


def test_an_unchanged_pipeline_runs_three_times_in_any_order_with_flows_added_before(project):
    order = random.Random(12)
    sql = [one for one in statements(R12, R13) if "TABLE agg3" not in one]
    states: dict[str, Any] = {}
    views: list[dict[str, str]] = []
    before = ""
    for number in range(1, 4):
        project.rows_of(number, [(1, 10), (2, number), (number, 5)])
        order.shuffle(sql)
        project.write(sql, before=before, python=TYPED)
        before = ADDED
        result = project.run()
        assert result.state is UpdateState.COMPLETED, result.failures
        now = project.flow_states()
        assert {flow: now[flow] for flow in states} == states
        states = now
        views.append(project.view_fingerprints())
    assert "__penstock_" not in json.dumps(states)
    assert views[0] == views[1] == views[2]

    sums = [(1, 35), (2, 11), (3, 5)]
    assert project.rows("agg5") == [(str(i), float(v)) for i, v in sums]
    assert project.rows("agg") == [(str(i), float(v), None) for i, v in sums]
    assert project.types("agg") == {"id": "string", "total": "double", "note": "string"}
    state = table_state(project.spark, str(project.path("agg")))
    assert state is not None and not state.schema["id"].nullable
    assert project.types("typed_view") == {"id": "int", "total": "string"}
    assert project.rows("typed_view") == [(i, str(v)) for i, v in sums]
    assert project.types("updated") == {"id": "int", "total": "double"}
    assert project.rows("updated") == [(i, float(v)) for i, v in sums]
    firsts = {"id": "int", "v": "decimal(10,2)", "note": "string"}
    assert project.types("first_of_each") == firsts
    assert project.rows("first_of_each") == [(1, 10, None), (2, 1, None)]


def test_every_shape_of_query_is_described_alike_in_any_order(project):
    project.rows_of(1, [(1, 10)])
    sql = statements(R12, R13, SHAPES)
    described = []
    for before in ("", ADDED):
        project.write(sql, before=before, python=SHAPES_OF_PYTHON)
        graph, _ = plan_update(load_settings(project.root), UpdateOptions())
        lines = {name: node.analysis.stateful_operators for name, node in graph.flows.items()}
        described.append({name: lines[name] for name in lines if name != "added"})
        sql.reverse()
    assert described[0] == described[1]
    stateful = {name for name, lines in described[0].items() if has_state(lines)}
    assert stateful >= {
        *("agg", "agg3", "agg5", "by_function", "common", "counted", "cubes", "distinct_within"),
        *("formatted", "from_windows", "ids", "lambda_join", "lambdas", "pairs", "windows"),
    }


def test_a_type_that_spark_does_not_assign_is_refused_before_the_first_update(project):
    project.rows_of(1, [(1, 10)])
    project.write([*statements(R12)[:1], *statements(REFUSED)])
    with pytest.raises(DefinitionErrors) as refused:
        plan_update(load_settings(project.root), UpdateOptions())
    errors = refused.value.errors
    assert [error.condition for error in errors[:4]] == ["SCHEMA_INCOMPATIBLE"] * 4
    assert all(error.origin and error.origin.file == "shapes.sql" for error in errors)
    told = [(error.message, error.hint or "") for error in errors]
    for (message, hint), (wanted, way) in zip(
        told,
        [
            ("column 'id' of t1 is declared BIGINT, but is STRING in the query", "CAST(... AS BIG"),
            ("the query for t2 has an expression without an alias, sum(v)", "sum(v) AS total"),
            ("column 'pair.v' of t3 is declared BOOLEAN, but is STRING", "CAST(... AS BOOLEAN)"),
            ("column 'n' of t4 is declared DATE, but is BIGINT", "CAST(... AS DATE)"),
            ("table property of t5 is refused by Delta", ""),
            ("delta.feature.catalogManaged of t7 is not supported", ""),
            ("table property of t6 is refused by Delta", ""),
        ],
        strict=True,
    ):
        assert wanted in message
        assert way in hint


def test_a_value_that_does_not_fit_its_declared_type_fails_whatever_the_ansi_mode_is(spark):
    declared = parse_schema(spark, "n INT, word VARCHAR(3), at STRING")
    assert declared.simpleString() == "struct<n:int,word:string,at:string>"
    rows = "SELECT 1 + id * 3000000000 AS n, concat('a', id) AS word FROM range(2)"
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        df = spark.sql(rows)
        fitting = assigned(df.where("n = 1"), declared)
        assert [tuple(row) for row in fitting.collect()] == [(1, "a0")]
        with pytest.raises(Exception, match=r"CAST_OVERFLOW_IN_TABLE_INSERT.*`n`"):
            assigned(df, declared).collect()
        with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
            assigned(
                spark.sql("SELECT concat('abc', id) AS word FROM range(1)"), declared
            ).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_constants_are_part_of_the_text_of_a_query(spark):
    def text(query: str) -> str:
        return query_text(spark.sql(query))

    rows = "SELECT x FROM VALUES {} AS t(x)"
    assert text(rows.format("('a'), ('b')")) == text(rows.format("('a'), ('b')"))
    assert text(rows.format("('a'), ('b')")) != text(rows.format("('a'), ('c')"))
    # They look like generated names and versions of tables.
    for prefix in ("user@", "version=", "CTERelationDef "):
        query = f"SELECT id FROM range(1) WHERE '{prefix}{{}}' = CAST(id AS STRING)"
        assert text(query.format(1)) != text(query.format(2))
    lag = "SELECT lag(id) {} NULLS OVER (ORDER BY id) AS x FROM range(1)"
    assert text(lag.format("IGNORE")) != text(lag.format("RESPECT"))


def test_legacy_settings_change_the_result_of_a_query(spark):
    before = result_confs(spark.range(1))
    assert all("legacy" not in line for line in before)
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        after = result_confs(spark.range(1))
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert after == [*before, "spark.sql.legacy.timeParserPolicy=LEGACY"]


def test_operands_are_in_the_order_of_their_text_and_not_of_hash_codes(spark):
    df = spark.range(1).selectExpr("id AS a", "id AS b", "id AS c", "CAST(id AS STRING) AS s")

    def line(condition: str) -> str:
        return query_text(df.where(condition)).partition("\n")[0]

    # Spark's hash codes of classes and of evaluators, such as that of to_json, are of one process.
    groups = [f"(a = {n} OR b = {n} OR c = {n})" for n in range(8)]
    text = line(" AND ".join(groups))
    assert [int(n) for n in re.findall(r"cast\((\d) as bigint\)", text)] == [
        n for n in range(8) for _ in range(3)
    ]
    assert text == line(" AND ".join(reversed(groups)))
    for n in range(8):
        text = line(f"s = to_json(named_struct('x', a + {n}))")
        assert "= none#" in text
        assert text == line(f"to_json(named_struct('x', {n} + a)) = s")
        text = line(f"to_json(named_struct('x', {n})) > to_json(array(b))")
        assert text == line(f"to_json(array(b)) < to_json(named_struct('x', {n}))")
        assert text.index("evaluate(array") < text.index("evaluate(named_struct")
    assert line("a IN (9, 7, 8, 5)") == line("a IN (5, 8, 9, 7)")
    assert line("a > 1") != line("a < 1")
    many = ", ".join(f"a + {n}" for n in range(40))
    assert line(f"coalesce({many}, 1) = 1") != line(f"coalesce({many}, 2) = 1")


def test_properties_that_only_tune_databricks_are_left_out_with_one_note(project):
    project.rows_of(1, [(1, 10)])
    project.write(
        [
            *statements(R12)[:1],
            "CREATE MATERIALIZED VIEW tuned TBLPROPERTIES ("
            "'delta.targetFileSize' = '64mb', 'delta.tuneFileSizesForRewrites' = 'true', "
            "'delta.autoOptimize.autoCompact' = 'auto', 'delta.autoOptimize.optimizeWrite' = "
            "'true', 'pipelines.autoOptimize.managed' = 'true', 'quality' = 'gold') "
            "AS SELECT 1 AS id",
        ]
    )
    assert project.run(refresh=("tuned",)).state is UpdateState.COMPLETED
    (note,) = [e.message for e in project.events if "only tune Databricks" in e.message]
    assert "delta.targetFileSize = 64mb (tuned)" in note
    assert "quality" not in note
    assert "utoOptimize" not in note  # read by the maintenance
    state = table_state(project.spark, str(project.path("tuned")))
    assert state is not None
    kept = {
        key: state.properties.get(key) for key in ("delta.autoOptimize.optimizeWrite", "quality")
    }
    assert kept == {"delta.autoOptimize.optimizeWrite": "true", "quality": "gold"}
    assert not [key for key in state.properties if "FileSize" in key or "ompact" in key]
