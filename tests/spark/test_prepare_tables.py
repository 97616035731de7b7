from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from writer_harness import Harness, rule

from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.write.create import reset_table
from penstock._tables.write.fenced import FencedTable
from penstock._tables.write.prepare import prepare_quarantine, prepare_table
from penstock._tables.write.table_spec import TableSpec, parse_schema, read_version, table_state
from penstock.errors import DefinitionError, PlanError


def table(tmp_path: Path, name: str = "t") -> TableRef:
    return TableRef(str(tmp_path / name), name)


DDL = """id BIGINT NOT NULL COMMENT 'key', at TIMESTAMP,
  day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), amount DECIMAL(10, 2)"""


def test_created_table_has_everything_that_is_declared(spark: SparkSession, tmp_path: Path) -> None:
    ref = table(tmp_path)
    spec = TableSpec(
        schema=parse_schema(spark, DDL),
        declared=True,
        partition_cols=("DAY",),
        comment="orders of the day",
        properties={
            "delta.appendonly": "true",
            "team": "sales",
            "pipelines.reset.allowed": "false",
        },
    )
    state = prepare_table(spark, ref, spec)
    assert state.version == 0
    assert state.partition_columns == ("day",)
    assert state.comment == "orders of the day"
    assert state.properties["delta.appendOnly"] == "true"
    assert state.properties["team"] == "sales"
    assert not state.schema["id"].nullable
    assert state.schema["id"].metadata["comment"] == "key"
    spark.sql(
        f"INSERT INTO delta.`{ref.path}` (id, at, amount) VALUES (1, '2024-05-06 07:08:09', 1.5)"
    )
    assert str(spark.read.load(ref.path).first()["day"]) == "2024-05-06"
    assert prepare_table(spark, ref, spec).version == 1


def test_generated_partition_column_is_filled_when_the_writer_splits_rows(
    spark: SparkSession, harness: Harness
) -> None:
    df = spark.range(10).selectExpr(
        "id", "timestamp_seconds(1700000000 + id * 86400) AS at", "CAST(1 AS DECIMAL(10, 2)) amount"
    )
    schema = parse_schema(spark, DDL)
    df = harness.prepare(
        df, [rule("small", "id < 8")], schema=schema, declared=True, partition_cols=("day",)
    )
    harness.writer().write(df, 0)
    assert harness.rows().where("day = CAST(at AS DATE)").count() == 8
    assert harness.bad().where("day = CAST(at AS DATE)").count() == 2


def test_comment_property_and_column_are_altered_when_the_declaration_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    ref = TableRef(str(tmp_path / "a`b"), "t")
    schema = parse_schema(spark, "id BIGINT, a STRING")
    prepare_table(spark, ref, TableSpec(schema=schema, declared=True, properties={"team": "a"}))
    wider = parse_schema(spark, "a STRING COMMENT 'new', id BIGINT, b STRUCT<x: INT>")
    spec = TableSpec(
        schema=wider,
        declared=True,
        comment="c",
        properties={"team": "b", "delta.checkpointInterval": "7"},
    )
    state = prepare_table(spark, ref, spec)
    assert (state.comment, state.properties["team"]) == ("c", "b")
    assert state.properties["delta.checkpointInterval"] == "7"
    assert state.schema.simpleString() == "struct<id:bigint,a:string,b:struct<x:int>>"
    assert state.schema["a"].metadata["comment"] == "new"
    assert prepare_table(spark, ref, spec).version == state.version


def test_change_is_refused_with_a_hint_when_rows_would_be_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    ref = table(tmp_path)
    df = spark.range(3).selectExpr("id", "1 AS p")
    prepare_table(spark, ref, TableSpec(schema=df.schema))
    df.write.format("delta").mode("append").save(ref.path)
    partitioned = TableSpec(schema=df.schema, partition_cols=("p",))
    other_type = TableSpec(schema=parse_schema(spark, "id STRING, p INT"))
    declared = replace(other_type, declared=True)
    required = TableSpec(schema=parse_schema(spark, "id BIGINT NOT NULL, p INT"), declared=True)
    keyed = TableSpec(schema=parse_schema(spark, "id BIGINT, p INT, k INT"), keys=("ID", "K"))
    for spec, condition, message in (
        (partitioned, "PARTITIONING_CHANGED", "declared with p"),
        (other_type, "SCHEMA_INCOMPATIBLE", "BIGINT in the table and STRING in the query"),
        (declared, "SCHEMA_INCOMPATIBLE", "BIGINT in the table and is declared STRING"),
        (required, "SCHEMA_INCOMPATIBLE", "is declared NOT NULL, but is nullable"),
        (keyed, "SCHEMA_INCOMPATIBLE", "has rows, but no column 'K', which is a key of its flow"),
    ):
        with pytest.raises(PlanError) as caught:
            prepare_table(spark, ref, spec)
        assert caught.value.condition == condition
        assert message in caught.value.message
        assert "--full-refresh" in (caught.value.hint or "")
    assert reset_table(spark, ref) == 2
    assert table_state(spark, ref.path).version == 2
    assert spark.read.load(ref.path).count() == 0
    assert prepare_table(spark, ref, partitioned).partition_columns == ("p",)
    assert prepare_table(spark, ref, other_type).schema["id"].dataType.simpleString() == "string"


def test_clustered_table_is_created_and_altered(spark: SparkSession, tmp_path: Path) -> None:
    ref = TableRef((tmp_path / "t").as_uri(), "t")  # as in a pipeline
    schema = parse_schema(spark, "s STRUCT<x: BIGINT>, `b``c` BIGINT, `d.e` BIGINT")
    escaped = TableSpec(schema=schema, cluster_by=("b`c",))
    assert prepare_table(spark, ref, escaped).cluster_by == ("b`c",)
    assert prepare_table(spark, ref, escaped).version == 0
    changed = prepare_table(spark, ref, TableSpec(schema=schema, cluster_by=("s.x",)))
    assert changed.cluster_by == ("s.x",)
    assert prepare_table(spark, ref, escaped).cluster_by == ("b`c",)
    dotted = TableSpec(schema=schema, cluster_by=("d.e",))
    assert prepare_table(spark, ref, dotted).cluster_by == ("d.e",)
    assert prepare_table(spark, table(tmp_path, "new"), dotted).cluster_by == ("d.e",)


def test_state_is_none_when_there_is_no_table(spark: SparkSession, tmp_path: Path) -> None:
    ref = table(tmp_path)
    assert table_state(spark, ref.path) is None
    assert read_version(spark, ref.path) is None
    assert reset_table(spark, ref) is None
    assert not Path(ref.path).exists()


@pytest.mark.parametrize(
    ("columns", "options", "condition", "hint"),
    [
        ("1 AS `a b`", {}, "COLUMN_NAME_INVALID", ""),
        ("NULL AS a", {}, "SCHEMA_INCOMPATIBLE", ""),
        ("1 AS a, 2 AS A", {}, "SCHEMA_INCOMPATIBLE", ""),
        ("1 AS a", {"partition_cols": ("b",)}, "PARTITION_COLUMN_UNKNOWN", "columns: a"),
        ("1 AS `a.b`", {"partition_cols": ("a",)}, "PARTITION_COLUMN_UNKNOWN", "columns: a.b"),
        ("1 AS a", {"properties": {"delta.noSuchThing": "1"}}, "TABLE_PROPERTY_INVALID", "remove"),
    ],
)
def test_table_is_refused_when_its_columns_or_options_are_invalid(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict, condition: str, hint: str
) -> None:
    schema = spark.sql(f"SELECT {columns}").schema
    with pytest.raises(PlanError) as caught:
        prepare_table(spark, table(tmp_path), TableSpec(schema=schema, **options))
    assert caught.value.condition == condition
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("ddl", ["id BIGNT", "id BIGINT,,", "", "id BIGINT DEFAULT 3"])
def test_schema_is_refused_when_it_is_not_valid_ddl(spark: SparkSession, ddl: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        parse_schema(spark, ddl)
    assert caught.value.condition == "SCHEMA_INVALID"


def test_column_mapped_table_is_written_when_names_have_spaces(
    spark: SparkSession, harness: Harness
) -> None:
    df = spark.range(10).selectExpr("id", "id * 2 AS `two times`")
    df = harness.prepare(
        df,
        [rule("small", "`two times` < 10")],
        properties={"delta.columnMapping.mode": "name"},
        quarantine=False,
    )
    result = harness.writer().write(df, 0)
    assert (result.rows_written, result.rows_dropped) == (5, 5)
    assert sorted(r[1] for r in harness.rows().collect()) == [0, 2, 4, 6, 8]


def test_old_rows_keep_their_values_when_column_mapping_is_added_with_a_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    ref = table(tmp_path)
    before = TableSpec(schema=parse_schema(spark, "id BIGINT, amount DOUBLE"), comment="old")
    prepare_table(spark, ref, before)
    spark.range(2).selectExpr("id", "id * 1.5D amount").write.mode("append").save(ref.path)
    after = replace(
        before,
        schema=parse_schema(spark, "id BIGINT, amount DOUBLE, `order id` STRING"),
        properties={"delta.columnMapping.mode": "name"},
        comment="new",
    )
    state = prepare_table(spark, ref, after)
    assert state.comment == "new"
    rows = spark.read.load(ref.path).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, 0.0, None), (1, 1.5, None)]


def test_a_table_column_with_a_name_of_the_quarantine_is_refused(
    spark: SparkSession, harness: Harness
) -> None:
    harness.prepare(spark.sql("SELECT 1 AS id, 'a' AS _Source"))
    state = table_state(spark, harness.target.path)
    assert state is not None
    with pytest.raises(PlanError) as caught:
        prepare_quarantine(spark, harness.quarantine, state)
    assert caught.value.condition == "COLUMN_NAME_RESERVED"
    assert "'_Source'" in caught.value.message


def test_identity_values_increase_when_batches_have_good_and_bad_rows(
    spark: SparkSession, harness: Harness
) -> None:
    schema = parse_schema(
        spark, "key BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 100 INCREMENT BY 10), id BIGINT"
    )
    df = harness.prepare(spark.range(5), [rule("small", "id < 4")], schema=schema, declared=True)
    harness.writer().write(df, 0)
    writer = harness.writer()
    writer.write(df.withColumn("id", df["id"] + 10), 1)
    writer.write(df.withColumn("id", df["id"] + 10), 1)  # Spark generates the same values again
    rows = harness.rows().collect()
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 3, 10, 11, 12, 13]
    keys = [row["key"] for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(key >= 100 and key % 10 == 0 for key in keys)
    first = max(row["key"] for row in rows if row["id"] < 10)
    assert all(row["key"] > first for row in rows if row["id"] >= 10)
    assert sorted(row["id"] for row in harness.bad().collect()) == [4, 14]


def test_explicit_identity_values_are_written_when_generated_by_default(
    spark: SparkSession, harness: Harness
) -> None:
    ddl = "key BIGINT GENERATED BY DEFAULT AS IDENTITY, id BIGINT"
    schema = parse_schema(spark, ddl)
    rows = spark.range(2).selectExpr("id + 50 AS key", "id")
    harness.prepare(rows, schema=schema, declared=True)
    harness.writer().write(rows, 0)
    harness.writer().write(spark.range(2), 1)
    assert sorted(row["key"] for row in harness.rows().collect())[:4] == [1, 2, 50, 51]
    with pytest.raises(DefinitionError, match="BIGINT, not INT"):
        parse_schema(spark, ddl.replace("key BIGINT", "key INT"))
    with pytest.raises(DefinitionError, match="DEFAULT has no effect"):
        parse_schema(spark, "id BIGINT DEFAULT 1")


def test_clustered_table_keeps_varchar_lengths_and_no_table_has_defaults(
    spark: SparkSession, tmp_path: Path
) -> None:
    declared = parse_schema(spark, "id BIGINT, name VARCHAR(3)")
    spec = TableSpec(schema=declared, declared=True, cluster_by=("id",))
    assert prepare_table(spark, table(tmp_path, "clustered"), spec).schema == declared
    metadata = {"CURRENT_DEFAULT": "1", "EXISTS_DEFAULT": "1", "comment": "key"}
    schema = StructType([StructField("id", LongType(), True, metadata)])
    state = prepare_table(spark, table(tmp_path, "plain"), TableSpec(schema=schema, declared=True))
    assert state.schema["id"].metadata == {"comment": "key"}


def test_commit_succeeds_on_a_thread_without_session_after_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    ref = table(tmp_path)
    spark.range(3).write.format("delta").save(ref.path)
    DeltaJvm(spark).log(ref.path).checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.crc").unlink()  # missing after RESTORE
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # like a new process

    def replace_rows() -> int:
        # Like threads of flows; otherwise the JVM thread may inherit the session.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()
        fenced = FencedTable(DeltaJvm(spark), ref, "app")
        result = CommitResult(flow="f", app_id="app", batch_id=None, version=None)
        transaction = fenced.begin(None)
        removed = fenced.removals(transaction)
        return fenced.commit(transaction, removed, None, result, complete=True)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(replace_rows).result() == 1
    assert spark.read.format("delta").load(ref.path).count() == 0
