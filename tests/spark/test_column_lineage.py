"""Column lineage of real Spark plans."""

from pathlib import Path

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._analysis.column_lineage import column_lineage
from penstock._analysis.table_sources import SchemaSource
from penstock._model.lineage import FlowLineage, LineageSource
from penstock.sources.base import NOWHERE

pytestmark = pytest.mark.spark

ROWS = (
    StructType()
    .add("id", "long")
    .add("amount", "integer")
    .add("name", "string")
    .add("ts", "timestamp")
)


def summary(lineage: FlowLineage | None) -> dict[str, set[str]]:
    """`column: {source.column kind}`."""
    assert lineage is not None

    def described(column):
        source = lineage.sources[column.source]
        source_name = source.dataset or source.name.rpartition("/")[2]
        return f"{source_name}.{column.column} {column.transformation}"

    columns = {
        name: {described(column) for column in inputs} for name, inputs in lineage.columns.items()
    }
    columns["*"] = {described(column) for column in lineage.influences}
    return columns


def test_columns_are_traced_to_their_source_datasets_and_files(spark, tmp_path: Path):
    source = SchemaSource()
    source.schemas.update({"a": ROWS, "b": ROWS, "c.s.odd näme": ROWS})
    a, b = source.batch("a", spark.read), source.batch("b", spark.read)
    stream = source.stream("a", spark.readStream, NOWHERE).df
    odd = source.batch("c.s.odd näme", spark.read)
    (tmp_path / "in").mkdir()
    files = spark.read.schema(ROWS).json(str(tmp_path / "in"))

    def of(df):
        return summary(column_lineage(df, source.dataset_at))

    assert of(a.select("id", F.col("name").alias("n"), (F.col("amount") + 1).alias("more"))) == {
        "id": {"a.id IDENTITY"},
        "n": {"a.name IDENTITY"},
        "more": {"a.amount TRANSFORMATION"},
        "*": set(),
    }
    grouped = (
        stream.withWatermark("ts", "1 minute")
        .where("amount > 1")
        .groupBy(F.window("ts", "5 minutes"), "id")
        .agg(F.sum(F.col("amount") * 2).alias("total"), F.count("*").alias("n"))
    )
    lineage = of(grouped)
    assert lineage["total"] == {"a.amount AGGREGATION"}
    assert lineage["n"] == set()
    assert lineage["id"] == {"a.id IDENTITY"}
    assert lineage["window"] == {"a.ts TRANSFORMATION"}
    assert lineage["*"] == {"a.amount FILTER", "a.id GROUP_BY", "a.ts GROUP_BY", "a.ts FILTER"}

    joined = a.alias("l").join(b.alias("r"), F.col("l.id") == F.col("r.id"))
    assert of(joined.select("l.id", "r.name", F.concat("l.name", "r.name").alias("both"))) == {
        "id": {"a.id IDENTITY"},
        "name": {"b.name IDENTITY"},
        "both": {"a.name TRANSFORMATION", "b.name TRANSFORMATION"},
        "*": {"a.id JOIN", "b.id JOIN"},
    }
    itself = a.alias("l").join(a.alias("r"), "id").select("id", F.col("r.amount").alias("other"))
    assert of(itself)["other"] == {"a.amount IDENTITY"}
    united = a.select("id").union(b.select(F.col("amount").cast("bigint"))).union(odd.select("id"))
    assert of(united)["id"] == {
        "a.id IDENTITY",
        "b.amount TRANSFORMATION",
        "c.s.odd näme.id IDENTITY",
    }
    exploded = a.select("id", F.explode(F.array("amount", "id")).alias("e"))
    assert of(exploded)["e"] == {"a.amount TRANSFORMATION", "a.id TRANSFORMATION"}
    opaque = a.select("id", "name").mapInPandas(lambda rows: rows, "x STRING")
    assert of(opaque)["x"] == {"a.id TRANSFORMATION", "a.name TRANSFORMATION"}
    assert of(files.select("id"))["id"] == {"in.id IDENTITY"}
    (location,) = column_lineage(files, source.dataset_at).sources
    assert location == LineageSource(namespace="file", name=str(tmp_path / "in"))

    a.createOrReplaceTempView("lineage_a")
    b.createOrReplaceTempView("lineage_b")
    query = spark.sql(
        """
        WITH c AS (SELECT id, amount * 2 AS twice FROM lineage_a)
        SELECT c.id, d.twice, (SELECT max(amount) FROM lineage_b) AS most,
               row_number() OVER (PARTITION BY d.id ORDER BY d.twice) AS n,
               sum(d.twice) OVER (PARTITION BY d.id) AS running
        FROM c JOIN c AS d ON c.id = d.id
        WHERE EXISTS (SELECT 1 FROM lineage_b WHERE lineage_b.id = c.id)
        """
    )
    lineage = of(query)
    assert lineage["id"] == {"a.id IDENTITY"}
    assert lineage["twice"] == {"a.amount TRANSFORMATION"}
    assert lineage["most"] == {"b.amount AGGREGATION"}
    assert lineage["n"] == set()
    assert lineage["running"] == {"a.amount AGGREGATION"}
    assert {"a.id WINDOW", "a.amount WINDOW", "a.id JOIN"} <= lineage["*"]
    cube = a.cube("id", "name").agg(F.max("amount").alias("m"))
    assert of(cube)["m"] == {"a.amount AGGREGATION"}
    assert "a.id TRANSFORMATION" in of(cube)["id"]
    assert of(spark.range(3).select("id"))["id"] == set()
    source.close()


def test_a_plan_that_cannot_be_read_has_no_lineage(spark, monkeypatch):
    monkeypatch.setattr("penstock._analysis.column_lineage.analyzed", lambda df: None)
    assert column_lineage(spark.range(1), lambda path: None) is None
