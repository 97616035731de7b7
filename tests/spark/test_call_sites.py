"""PySpark records the lines of user code, not those of Penstock's own columns."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock._spark.call_sites import own_columns, user_columns


def context_of(spark: SparkSession) -> str:
    with pytest.raises(PySparkException) as caught:
        spark.range(1).select(F.col("id") / F.lit(0)).collect()
    return str(caught.value)


def test_lines_are_recorded_in_user_code_only(spark: SparkSession) -> None:
    line = f"{Path(__file__).name}:{context_of.__code__.co_firstlineno + 2}"
    with own_columns():
        assert line not in context_of(spark)
        with user_columns():
            assert line in context_of(spark)
            with own_columns():
                assert line in context_of(spark)
        assert line not in context_of(spark)
