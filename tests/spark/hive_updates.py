"""Updates on a session with an embedded Hive metastore, in a separate process; prints JSON.

python hive_updates.py PROJECT
"""

import json
import sys
from pathlib import Path
from typing import Any

from update_project import shared_project

from penstock._local.cds import java_options
from penstock._local.jars import SPARK_JAR_SETS, class_path
from penstock._spark.hive import hive_configuration
from penstock._spark.session import SessionOptions, build_session, stop_session
from penstock._tables.metastore import HiveMetastore

SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
ORDERS = """
@dp.table(name="orders", comment="{comment}", schema="id BIGINT COMMENT 'number', amount INT{more}",
          table_properties={{"team": "sales"}})
@dp.expect_or_drop("valid_id", "{rule}")
def _():
    return spark.readStream.schema("id BIGINT, amount INT, op STRING").json("data").drop("op")

@dp.temporary_view
def large():
    return spark.read.table("orders").where("amount > 1")

@dp.materialized_view(comment="per order")
def totals():
    return spark.read.table("large").groupBy("id").agg(F.sum("amount").alias("total"))

@dp.materialized_view(private=True)
@dp.expect_or_drop("small", "id < 1")
def internal():
    return spark.range(2)

dp.create_streaming_table("states")
dp.create_auto_cdc_flow(target="states", source="orders", keys=["id"], sequence_by="amount",
                        stored_as_scd_type=2)
"""
MORE = """
@dp.materialized_view
def copied():
    return spark.read.table("elsewhere")

@dp.materialized_view
def taken():
    return spark.range(1)
"""


def entries(spark: Any) -> dict[str, Any]:
    """The metastore entry of each table."""
    catalog = spark._jsparkSession.sharedState().externalCatalog()
    result = {}
    for row in spark.sql("SHOW TABLES IN spark_catalog.default").collect():
        table = catalog.getTable("default", row.tableName)
        comment, properties = table.comment(), table.properties()
        rules, pipeline = (
            properties.get(f"penstock.{key}") for key in ("expectations", "pipeline")
        )
        result[row.tableName] = {
            "comment": comment.get() if comment.isDefined() else None,
            "schema": json.loads(table.schema().json())["fields"],
            "rules": json.loads(rules.get()) if rules.isDefined() else None,
            "pipeline": pipeline.get() if pipeline.isDefined() else None,
            "type": table.tableType().name(),
        }
    return result


def main() -> None:
    root = Path(sys.argv[1])
    storage = (root / ".penstock").as_uri()
    jars = class_path(SPARK_JAR_SETS)
    options = SessionOptions(
        app_name="hive",
        master="local[2]",
        storage_root=storage,
        configuration={**SMALL_QUERIES, **hive_configuration({}, storage)},
        jars=tuple(str(jar) for jar in jars),
        java_options=(*java_options(jars), f"-Dderby.stream.error.file={root}/derby.log"),
        log_file=str(root / "spark.log"),
    )
    calls: list[bool] = []
    register = HiveMetastore.register

    def recorded(metastore: HiveMetastore, table: Any) -> bool:
        calls.append(register(metastore, table))
        return calls[-1]

    HiveMetastore.register = recorded  # type: ignore[method-assign]
    spark = build_session(options)
    result: dict[str, Any] = {}
    with shared_project(root, spark) as project:
        settings = "name: shop\ncatalog:\n  type: hive\nevents:\n  quality_table: quality\n"
        (root / "penstock.yaml").write_text(settings)
        rows = [{"id": 1, "amount": 2}, {"id": 2, "amount": 5}, {"id": -1, "amount": 3}]
        project.add("a.json", rows)
        first = ORDERS.format(comment="of the shop", more="", rule="id > 0")
        project.source(first).run()
        result["first"], result["created"] = entries(spark), sum(calls)
        calls.clear()
        project.source(first).run()
        result["again"], result["looked_up"] = sum(calls), len(calls)
        # A table of another pipeline that is registered only in the metastore.
        spark.range(3).write.format("delta").save(f"{root}/elsewhere")
        for name in ("elsewhere", "taken"):
            spark.sql(f"CREATE TABLE default.{name} USING delta LOCATION '{root}/elsewhere'")
        changed = ORDERS.format(comment="all orders", more=", note STRING", rule="id > -9")
        failures = project.source(changed + MORE).run().failures
        result["refused"] = [str(failure) for failure in failures]
        result["changed"] = entries(spark)
        result["read_by_name"] = len(project.rows("copied"))
        result["rows_of_other"] = spark.table("default.taken").count()
    print(json.dumps(result))
    stop_session(spark)


if __name__ == "__main__":
    main()
