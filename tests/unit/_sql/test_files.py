"""Complete SQL files in common styles, and the examples of the documentation."""

import re
from pathlib import Path

import pytest

from penstock._api.registry import Registry, registration
from penstock._graph.indexing import build_index
from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation
from penstock._model.pipeline import PipelineSettings
from penstock._sql.declare import SqlContext, declare_sql

SETTINGS = PipelineSettings(name="p", storage="file:///s", root="/r", catalog="main", schema="shop")

LEGACY = """-- Databricks notebook source
-- MAGIC %md
-- MAGIC # It's the "orders" pipeline; in three steps
-- MAGIC SELECT 'nothing

-- COMMAND ----------

-- DBTITLE 1,Ingest
CREATE STREAMING LIVE TABLE orders_raw
COMMENT "The raw orders; don't touch."
TBLPROPERTIES (quality = "bronze", pipelines.autoOptimize.managed = true)
AS SELECT *, _metadata.file_path AS source FROM cloud_files("${root}/orders/", "json",
  map("cloudFiles.inferColumnTypes", "true", "header", "true"))

-- COMMAND ----------

CREATE OR REFRESH STREAMING LIVE TABLE orders_cleaned(
  CONSTRAINT valid_number EXPECT (order_number IS NOT NULL) ON VIOLATION DROP ROW,
  CONSTRAINT valid_clicks EXPECT (size(clicked_items) > 0 OR note LIKE '%;%')
)
PARTITIONED BY (order_date)
COMMENT "Cleaned."
TBLPROPERTIES ("quality" = "silver")
AS
SELECT f.* EXCEPT (note), DATE(from_unixtime(CAST(f.order_datetime AS LONG))) AS order_date
  FROM STREAM(LIVE.orders_raw) f
  LEFT JOIN live.customers c
      ON c.customer_id = f.customer_id

-- COMMAND ----------

-- MAGIC %python
-- MAGIC display(spark.read.table("x"))

-- COMMAND ----------

create temporary live view customers as
select * from ${catalog}.crm.customers where region = "EU"   -- external

-- COMMAND ----------

SELECT * FROM LIVE.orders_cleaned LIMIT 10

-- COMMAND ----------

CREATE OR REFRESH LIVE TABLE
  orders_per_day
COMMENT 'gold' AS
SELECT order_date, count(*) n FROM live.orders_cleaned GROUP BY order_date;
"""

CURRENT = """\ufeff/* Customers, kept as history
   with AUTO CDC */\r
USE CATALOG main;\r
USE SCHEMA shop;\r
SET pipelines.trigger.interval = 10 seconds;\r
\r
CREATE OR REFRESH STREAMING TABLE customers_cdc (\r
  id BIGINT COMMENT 'key',\r
  name STRING,\r
  operation STRING NOT NULL,\r
  sequenceNum BIGINT,\r
  _rescued_data STRING,\r
  CONSTRAINT valid_id EXPECT (id IS NOT NULL) ON VIOLATION FAIL UPDATE\r
) CLUSTER BY AUTO AS\r
SELECT * FROM STREAM read_files(\r
  '/Volumes/main/shop/landing',\r
  format => 'json',\r
  schemaHints => 'id BIGINT'\r
);\r
\r
CREATE OR REFRESH STREAMING TABLE customers;\r
\r
CREATE FLOW customers_flow AS AUTO CDC INTO\r
  customers\r
FROM STREAM(customers_cdc)\r
KEYS\r
  (id)\r
APPLY AS DELETE WHEN\r
  operation = "DELETE"\r
SEQUENCE BY\r
  sequenceNum\r
COLUMNS * EXCEPT\r
  (operation, sequenceNum, _rescued_data)\r
STORED AS\r
  SCD TYPE 2;\r
\r
CREATE MATERIALIZED VIEW current_customers AS\r
SELECT * FROM customers WHERE __END_AT IS NULL QUALIFY row_number() OVER (ORDER BY id) < 10\r
"""


def test_notebook_cells_need_no_semicolons(sql):
    declared = sql(LEGACY, variables={"root": "/data", "catalog": "main"})
    assert [(dataset.name, dataset.kind) for dataset in declared.datasets] == [
        ("orders_raw", DatasetKind.STREAMING_TABLE),
        ("orders_cleaned", DatasetKind.STREAMING_TABLE),
        ("customers", DatasetKind.TEMPORARY_VIEW),
        ("orders_per_day", DatasetKind.MATERIALIZED_VIEW),
    ]
    raw, cleaned, _, _ = declared.datasets
    assert raw.comment == "The raw orders; don't touch."
    assert raw.table_properties["pipelines.autoOptimize.managed"] == "true"
    assert raw.origin.line == 9
    assert [(rule.name, rule.on_violation) for rule in cleaned.expectations] == [
        ("valid_number", OnViolation.DROP),
        ("valid_clicks", OnViolation.WARN),
    ]
    assert cleaned.partition_cols == ("order_date",)
    assert '"/data/orders/"' in declared.flows[0].function.query.text
    assert build_index(declared.registry.build(), SETTINGS).errors == ()


def test_file_with_windows_line_endings_is_declared(sql):
    declared = sql(CURRENT)
    assert [dataset.name for dataset in declared.datasets] == [
        "main.shop.customers_cdc",
        "main.shop.customers",
        "main.shop.current_customers",
    ]
    events, changes, current = declared.flows
    assert events.spark_conf == {"pipelines.trigger.interval": "10 seconds"}
    assert events.function.query.text.startswith("SELECT * FROM STREAM read_files(\r\n")
    assert changes.origin.line == 23
    assert changes.cdc.except_columns == ("operation", "sequenceNum", "_rescued_data")
    assert current.function.query.text.endswith("< 10")
    index = build_index(declared.registry.build(), SETTINGS)
    assert index.errors == ()
    assert set(index.flows) == {"customers_cdc", "customers_flow", "current_customers"}


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?ms)^```sql\n(.*?)^```", PAGE)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_documentation_are_declared(sql, example):
    declared = sql(example, variables={"region": "EU"}, parameters={"since": "2026-01-01"})
    assert declared.errors == ()
    assert not declared.registry.is_empty


def test_the_documentation_has_examples():
    assert len(EXAMPLES) >= 5


def test_statements_without_declarations_are_skipped():
    text = "CREATE TABLE a (b INT); INSERT INTO a VALUES (1); CREATE VIEW v AS SELECT 1; CREAT x"
    registry = Registry()
    with registration(registry):
        declare_sql(text, file="a.py", context=SqlContext(), declarations_only=True)
    assert [error.condition for error in registry.errors] == ["SQL_SYNTAX"]
    assert [flow.target for flow in registry.declared().flows] == ["v"]
