"""Another engine: plain Spark with a Hive metastore, without Penstock; prints JSON.

python hive_reader.py JARS KEY=VALUE... -- TABLE...   rows; description of the first table
"""

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def rows(spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(name).collect())


def described(spark: SparkSession, name: str) -> dict[str, Any]:
    details = {
        row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()
    }
    columns = spark.catalog.listColumns(name)
    properties = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    return {
        "rows": rows(spark, name),
        "columns": {column.name: column.description for column in columns},
        "comment": details.get("Comment"),
        "location": details["Location"],
        "properties": {row.key: row.value for row in properties},
    }


def main() -> None:
    jars, *rest = sys.argv[1:]
    at = rest.index("--")
    builder = SparkSession.builder.master("local[1]").config(
        map={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.extraClassPath": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            **dict(pair.split("=", 1) for pair in rest[:at]),
        }
    )
    spark = builder.enableHiveSupport().getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    first, *others = rest[at + 1 :]
    result = {first: described(spark, first), **{name: rows(spark, name) for name in others}}
    print(json.dumps(result), flush=True)
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
