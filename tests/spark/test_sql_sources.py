"""Analysis of SQL source files: kinds, schemas, inputs, and errors of Spark."""

from pathlib import Path

import pytest
from sql_dialect import is_known
from update_project import Project

from penstock._analysis.analysis import analyse
from penstock._api.registry import Registry, registration
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.indexing import build_index
from penstock._launch import read_context
from penstock._model.dataset import DatasetKind
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import UpdateState
from penstock._sql.declare import SqlContext, declare_sql
from penstock.errors import DefinitionErrors

pytestmark = pytest.mark.spark

RAW = """
CREATE OR REFRESH STREAMING TABLE raw
COMMENT 'numbers'
AS SELECT value AS id, timestamp AS ts, '{"a": 1}' AS body FROM STREAM numbers;
"""


@pytest.fixture
def analysed(spark, tmp_path: Path, monkeypatch):
    """Declares SQL files and a Python view of a rate source, and analyses them."""
    monkeypatch.chdir(tmp_path)

    def run(*files: str, **context) -> DataflowGraph:
        import penstock as dp

        registry = Registry()
        with registration(registry):

            @dp.temporary_view
            def numbers():
                return spark.readStream.format("rate").load()

            for position, text in enumerate(files):
                declare_sql(text, file=f"part{position}.sql", context=SqlContext(**context))
        settings = PipelineSettings(
            name="sql", storage=tmp_path.as_uri(), root=str(tmp_path), catalog="main", schema="shop"
        )
        index = build_index(registry.build(), settings)
        return analyse(spark, index, read_context(settings, spark))

    return run


def columns(graph: DataflowGraph, name: str) -> list[str]:
    import json

    node = next(node for node in graph.datasets.values() if node.display == name)
    return [f"{field['name']} {field['type']}" for field in json.loads(node.schema_json)["fields"]]


def kinds(graph: DataflowGraph) -> dict[str, DatasetKind]:
    return {node.display: node.kind for node in graph.datasets.values()}


def test_a_chain_of_tables_and_views_is_analysed_when_declared_in_any_order(analysed):
    graph = analysed(
        """
        CREATE MATERIALIZED VIEW per_day AS
          SELECT DATE(ts) AS day, count(*) AS n FROM clean GROUP BY ALL;
        CREATE OR REFRESH STREAMING LIVE TABLE clean (
          CONSTRAINT has_id EXPECT (id IS NOT NULL) ON VIOLATION DROP ROW
        ) TBLPROPERTIES ("quality" = "silver") AS
          SELECT * EXCEPT (body) FROM STREAM(LIVE.raw);
        CREATE TEMPORARY VIEW recent AS SELECT * FROM live.clean WHERE id > 10;
        CREATE LIVE TABLE few AS WITH raw AS (SELECT * FROM recent) SELECT max(id) AS top FROM raw;
        """,
        RAW,
    )
    assert kinds(graph) == {
        "numbers": DatasetKind.TEMPORARY_VIEW,
        "raw": DatasetKind.STREAMING_TABLE,
        "clean": DatasetKind.STREAMING_TABLE,
        "recent": DatasetKind.TEMPORARY_VIEW,
        "per_day": DatasetKind.MATERIALIZED_VIEW,
        "few": DatasetKind.MATERIALIZED_VIEW,
    }
    assert columns(graph, "clean") == ["id long", "ts timestamp"]
    assert columns(graph, "per_day") == ["day date", "n long"]
    assert columns(graph, "few") == ["top long"]
    assert graph.flows["clean"].analysis.inputs == {"main.shop.raw"}
    assert graph.flows["few"].analysis.inputs == {"main.shop.recent"}


def test_names_follow_use_statements_and_views_stay_visible(analysed):
    graph = analysed(
        RAW,
        "CREATE TEMPORARY VIEW odd AS SELECT * FROM shop.raw WHERE id % 2 = 1;",
        """
        USE SCHEMA gold;
        CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n FROM odd;
        CREATE MATERIALIZED VIEW doubled AS SELECT 2 * n AS n FROM totals;
        USE CATALOG other;
        CREATE MATERIALIZED VIEW far AS SELECT n FROM main.gold.totals;
        """,
        """
        CREATE MATERIALIZED VIEW last AS
          SELECT t.n FROM gold.totals t JOIN other.shop.far f USING (n)
        """,
        pipeline_schema="shop",
    )
    assert set(kinds(graph)) == {
        *("numbers", "raw", "odd", "gold.totals", "gold.doubled", "other.shop.far", "last"),
    }
    assert graph.flows["gold.doubled"].analysis.inputs == {"main.gold.totals"}
    assert graph.flows["last"].analysis.inputs == {"main.gold.totals", "other.shop.far"}


def test_flows_of_several_kinds_are_analysed_when_declared_apart_from_the_target(analysed):
    graph = analysed(
        RAW,
        """
        CREATE STREAMING TABLE everything (id BIGINT, ts TIMESTAMP COMMENT "seen");
        CREATE FLOW live AS INSERT INTO everything BY NAME SELECT id, ts FROM STREAM(raw);
        CREATE FLOW old COMMENT 'history' AS
          INSERT INTO ONCE everything BY NAME SELECT 1L AS id, TIMESTAMP '2020-01-01' AS ts;
        """,
    )
    assert graph.flows["live"].analysis.is_streaming
    assert not graph.flows["old"].analysis.is_streaming
    assert graph.flows["old"].flow.comment == "history"
    assert kinds(graph)["everything"] is DatasetKind.STREAMING_TABLE


def test_table_has_the_columns_of_all_its_flows(analysed):
    graph = analysed(
        """
        CREATE STREAMING TABLE everything;
        CREATE FLOW first AS INSERT INTO ONCE everything BY NAME SELECT 1 AS id;
        CREATE FLOW second AS INSERT INTO ONCE everything BY NAME SELECT 2L AS id, 'x' AS name;
        """
    )
    assert columns(graph, "everything") == ["id long", "name string"]


def test_column_list_without_types_sets_names_and_comments(analysed):
    graph = analysed(
        "CREATE MATERIALIZED VIEW v (`the id` COMMENT 'first', b, `c.d` COMMENT 'third') "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name') AS SELECT 1 AS x, 2 AS y, 3 AS z;"
    )
    assert columns(graph, "v") == ["the id integer", "b integer", "c.d integer"]
    (node,) = (node for node in graph.datasets.values() if node.display == "v")
    for comment in ("first", "third"):
        assert f'"comment":"{comment}"' in node.schema_json.replace(" ", "")


def test_column_list_is_refused_when_the_query_has_more_columns(analysed):
    with pytest.raises(DefinitionErrors) as caught:
        analysed("\nCREATE MATERIALIZED VIEW v (a) AS SELECT 1 AS x, 2 AS y;")
    (error,) = caught.value.errors
    assert error.condition == "SQL_COLUMN_LIST_MISMATCH"
    assert error.origin.line == 2


def test_error_names_the_line_of_the_file_when_a_query_is_invalid(analysed):
    with pytest.raises(DefinitionErrors) as caught:
        analysed(
            """
            CREATE TEMPORARY VIEW a AS SELECT 1 AS x;
            CREATE TEMPORARY VIEW b AS
              SELECT x,
                     nowhere
              FROM a;
            CREATE TEMPORARY VIEW c AS
              SELECT x FROM a WHERE WHERE;
            """
        )
    unresolved, unparsed = caught.value.errors
    assert unresolved.condition == unparsed.condition == "QUERY_INVALID"
    assert "line 5" in unresolved.message
    assert unresolved.origin.line == 3
    assert "line 8" in unparsed.message


def test_hint_names_the_field_syntax_when_a_json_path_reads_a_struct(analysed):
    with pytest.raises(DefinitionErrors) as caught:
        analysed(
            RAW,
            """
            CREATE STREAMING TABLE t AS
              SELECT s:a FROM (SELECT named_struct('a', body) AS s FROM STREAM(raw))
            """,
        )
    (error,) = caught.value.errors
    assert error.condition == "QUERY_INVALID"
    assert "`column.field`" in error.hint


def test_rows_flow_through_tables_and_rules_when_an_update_runs_sql(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark)
    statements = """
        SET least = 0;
        CREATE TEMPORARY VIEW plus AS SELECT *, amount + 1 AS more FROM STREAM(arrived);
        CREATE OR REFRESH STREAMING TABLE checked (
          CONSTRAINT positive EXPECT (amount > ${least}) ON VIOLATION DROP ROW
        ) TBLPROPERTIES (quality = silver) AS SELECT id, amount, more FROM STREAM(LIVE.plus);
        CREATE MATERIALIZED VIEW total (n COMMENT 'rows', amount) AS
          SELECT count(*), sum(amount) FROM checked;
    """
    project.source(
        f"""
from penstock._sql.declare import SqlContext, declare_sql

@dp.temporary_view
def arrived():
    return rows()

declare_sql({statements!r}, file="orders.sql", context=SqlContext())
"""
    ).add("a.json", [{"id": 1, "amount": 5}, {"id": 2, "amount": -5}, {"id": 3, "amount": 7}])
    assert project.run().state is UpdateState.COMPLETED
    project.add("b.json", [{"id": 4, "amount": 1}])
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("checked", "id", "more") == [(1, 6), (3, 8), (4, 2)]
    assert [row["id"] for row in project.table("checked_quarantine").collect()] == [2]
    assert project.rows("total", "n", "amount") == [(3, 13)]
    assert project.table("total").schema["n"].metadata == {"comment": "rows"}


def test_parameters_and_variables_are_replaced_by_their_values(analysed):
    graph = analysed(
        """
        SET tier = gold;
        CREATE MATERIALIZED VIEW ${tier}_v AS
          SELECT :who AS who, '${tier}' AS tier, parse_json('{"who": 1}'):who::INT AS n
          FROM IDENTIFIER(:source);
        CREATE TEMPORARY VIEW src AS SELECT 1 AS one;
        """,
        parameters={"who": "it's; -- me", "source": "src"},
    )
    assert columns(graph, "gold_v") == ["who string", "tier string", "n integer"]
    assert graph.flows["gold_v"].analysis.inputs == {"main.shop.src"}
    function = graph.flows["gold_v"].flow.function
    assert "'it\\'s; -- me' AS who" in function.query.text


DIALECT = {
    "stream_parentheses": "SELECT id FROM STREAM(LIVE.raw)",
    "stream_bare": "SELECT id FROM STREAM raw AS r",
    "stream_options": "SELECT id FROM STREAM raw WITH ('skipChangeCommits' = 'true')",
    "watermark": "SELECT count(*) AS n FROM STREAM raw WATERMARK ts DELAY OF INTERVAL 10 MINUTES "
    "GROUP BY window(ts, '1 hour')",
    "watermark_text": "SELECT count(*) AS n FROM STREAM(raw) WATERMARK ts DELAY OF "
    "INTERVAL '10 minutes' GROUP BY window(ts, '1 hour')",
    "double_quotes": 'SELECT id, "a;b" AS s FROM STREAM(raw) WHERE body LIKE "%a%"',
    "except": "SELECT * EXCEPT (ts, body) FROM STREAM(raw)",
    "casts": "SELECT id::STRING, CAST(ts AS DATE) d, try_cast(body AS INT) x FROM STREAM(raw)",
    "lateral": "SELECT id, w FROM STREAM(raw) LATERAL VIEW explode(split(body, ' ')) t AS w",
    "intervals": "SELECT id, ts - INTERVAL 7 DAYS w, ts + INTERVAL '1' HOUR h FROM STREAM(raw)",
    "stream_static": "SELECT s.id FROM STREAM(raw) s JOIN lookup l ON s.id = l.id",
}
BATCH = {
    "qualify": "SELECT id FROM raw QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts) = 1",
    "group_by_all": "SELECT id, count(*) AS n FROM raw GROUP BY ALL ORDER BY ALL",
    "pivot": "SELECT * FROM (SELECT id, body FROM raw) PIVOT (count(1) FOR body IN ('x', 'y'))",
    "json": "SELECT parse_json(body):a::INT AS a, from_json(body, 'a INT').a AS b FROM raw",
    "subquery": "SELECT id FROM raw WHERE id IN (SELECT id FROM LIVE.lookup) AND EXISTS (SELECT 1)",
    "with_shadow": "WITH lookup AS (SELECT 7 AS id) SELECT id FROM lookup",
    # The name of the view itself, which is no cycle.
    "recursive": "WITH RECURSIVE b_recursive AS (SELECT 1 AS n UNION ALL "
    "SELECT n + 1 FROM b_recursive WHERE n < 3) SELECT n FROM b_recursive",
    "pipe": "FROM raw |> WHERE id > 1 |> SELECT id",
    "table_function": "SELECT * FROM range(3)",
}


DIALECT = {name: text for name, text in DIALECT.items() if is_known(text)}
BATCH = {name: text for name, text in BATCH.items() if is_known(text)}


def test_dialect_of_other_platforms_is_analysed_when_spark_can_parse_it(analysed):
    statements = [RAW, "CREATE TEMPORARY VIEW lookup AS SELECT 1L AS id;"]
    statements += [f"CREATE STREAMING TABLE {name} AS {text};" for name, text in DIALECT.items()]
    statements += [f"CREATE MATERIALIZED VIEW b_{name} AS {text};" for name, text in BATCH.items()]
    graph = analysed("\n".join(statements))
    assert all(kinds(graph)[name] is DatasetKind.STREAMING_TABLE for name in DIALECT)
    assert all(kinds(graph)[f"b_{name}"] is DatasetKind.MATERIALIZED_VIEW for name in BATCH)
    assert graph.flows["b_with_shadow"].analysis.inputs == frozenset()


def test_source_of_apply_changes_is_read_as_a_stream(analysed):
    graph = analysed(
        RAW,
        """
        USE SCHEMA silver;
        CREATE STREAMING TABLE people;
        APPLY CHANGES INTO people FROM STREAM(shop.raw) KEYS (id) SEQUENCE BY ts;
        """,
    )
    flow = graph.flows["silver.people"]
    assert flow.flow.cdc is not None
    assert flow.analysis.inputs == {"main.shop.raw"}
    assert flow.analysis.is_streaming


def test_column_list_with_types_keeps_generated_columns_and_comments(analysed, spark):
    from penstock._tables.write.table_spec import parse_schema

    graph = analysed(
        RAW,
        """
        CREATE OR REFRESH STREAMING TABLE dated (
          id BIGINT NOT NULL COMMENT 'the "id"', -- the key
          ts TIMESTAMP,
          `a day` DATE GENERATED ALWAYS AS (CAST(ts AS DATE)),
          nested ARRAY<STRUCT<a: INT, b: MAP<STRING, DECIMAL(10, 2)>>>,
          CONSTRAINT pk PRIMARY KEY (id)
        ) PARTITIONED BY (`a day`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')
        AS SELECT id, ts, NULL AS nested FROM STREAM(raw)
        """,
    )
    (node,) = (node for node in graph.datasets.values() if node.display == "dated")
    schema = parse_schema(spark, node.declared.schema)
    assert [field.name for field in schema] == ["id", "ts", "a day", "nested"]
    assert not schema["id"].nullable
    assert schema["id"].metadata["comment"] == 'the "id"'
    assert "CAST(ts AS DATE)" in schema["a day"].metadata["delta.generationExpression"]
    assert node.declared.partition_cols == ("a day",)


@pytest.mark.parametrize("source", ["delta", "json"])
def test_auto_cdc_reads_a_stream_by_its_path(analysed, spark, tmp_path: Path, source: str):
    changes = tmp_path / "changes"
    rows = spark.range(1).selectExpr("id", "id + 1 AS at")
    rows.write.format(source).save(str(changes))
    graph = analysed(
        f"""
        CREATE OR REFRESH STREAMING TABLE customers;
        CREATE FLOW changes AS AUTO CDC INTO customers FROM STREAM({source}.`{changes}`)
          KEYS (id) SEQUENCE BY at;
        """
    )
    assert sorted(columns(graph, "customers")) == ["at long", "id long"]
