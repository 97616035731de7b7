"""Joins of rows with keys, which are structs in a column `k`."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._model.sql_text import quoted

SMALL_ROWS = 50_000
"""Up to this number, rows are written by one task, for fewer files and less scheduling."""
_KEY = "penstock_key"
_MARK = "penstock_mark"


def key_struct(names: Iterable[str]) -> Column:
    return F.struct(*[F.col(quoted(name)).alias(name) for name in names])


def key_type(touched: DataFrame) -> StructType:
    kind = touched.schema["k"].dataType
    assert isinstance(kind, StructType)
    return kind


def key_names(touched: DataFrame) -> list[str]:
    return list(key_type(touched).fieldNames())


def count_keys(rows: DataFrame, key: Column) -> tuple[int, int]:
    """The number of rows, and the number of rows with the key of another row."""
    keys = F.countDistinct(key).alias("keys")
    row: Any = rows.agg(F.count(F.lit(1)).alias("rows"), keys).first()
    return int(row["rows"]), int(row["rows"] - row["keys"])


def in_one_task(rows: DataFrame) -> DataFrame:
    """Few rows as one partition, which is joined and grouped without a shuffle, in one job."""
    return rows.coalesce(1).hint("shuffle_hash")


# Spark pushes semi and anti joins below a coalesce, where they need a shuffle; so inner and outer
# joins are used for the keys, which are unique.


def of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows that have one of the keys; NULL equals NULL, as within structs."""
    renamed = keys.withColumnRenamed("k", _KEY)
    return rows.join(renamed, key_struct(key_names(keys)) == F.col(_KEY)).select(*_columns(rows))


def without_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows that have none of the keys."""
    marked = keys.withColumnRenamed("k", _KEY).withColumn(_MARK, F.lit(0))
    joined = rows.join(marked, key_struct(key_names(keys)) == F.col(_KEY), "left_outer")
    return joined.where(F.col(_MARK).isNull()).select(*_columns(rows))


def _columns(rows: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in rows.columns]


def anti_join(rows: DataFrame, other: DataFrame) -> DataFrame:
    names: Sequence[str] = rows.columns
    renamed = other.select(*[F.col(quoted(n)).alias(f"penstock_{i}") for i, n in enumerate(names)])
    same = [F.col(quoted(n)).eqNullSafe(F.col(f"penstock_{i}")) for i, n in enumerate(names)]
    return rows.join(renamed, reduce(Column.__and__, same), "left_anti")
