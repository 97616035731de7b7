"""Settings that a program passes to `SparkSession.builder` while Spark is already running."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from penstock._local.jars import SPARK_JAR_SETS
from penstock._local.lock import load_lock

_EXPECTED_TO_DIFFER = ("spark.app.name",)
# Delta registers its settings on first use; before that, Spark reports them as not modifiable.
_AT_RUN_TIME = "spark.databricks."
_PACKAGES = "spark.jars.packages"
_RENAMED = {"delta-core": "delta-spark"}


def ignored_settings(spark: SparkSession, options: Mapping[str, Any]) -> list[str]:
    """Keys of settings that differ in the running session and cannot be changed there."""
    conf = spark.conf
    return [
        key
        for key, value in options.items()
        if key.startswith("spark.")
        and key not in _EXPECTED_TO_DIFFER
        and not key.startswith(_AT_RUN_TIME)
        and not conf.isModifiable(key)
        and conf.get(key, None) != str(value)
        and not (key == _PACKAGES and has_packages(str(value)))
    ]


def has_packages(coordinates: str) -> bool:
    """Whether every session has these packages, in the versions for the installed Spark."""
    jars = load_lock().select(SPARK_JAR_SETS)
    present = set(_artifacts(jar.coordinate for jar_set in jars for jar in jar_set.jars))
    return present.issuperset(_artifacts(coordinates.split(",")))


def _artifacts(coordinates: Iterable[str]) -> Iterator[str]:
    """Names of artifacts, without the versions of Spark and Scala in them."""
    for coordinate in coordinates:
        _, _, rest = coordinate.strip().partition(":")
        name = rest.partition(":")[0].partition("_")[0]
        yield _RENAMED.get(name, name)
