from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from update_project import Project
    from writer_harness import Harness


def pytest_collection_modifyitems(items: "list[pytest.Item]") -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture
def harness(spark: "SparkSession", tmp_path: Path) -> "Harness":
    from writer_harness import Harness

    return Harness(spark, tmp_path)


@pytest.fixture
def project(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Project":
    """An empty project, whose folder is the working directory."""
    from update_project import Project

    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark)


@pytest.fixture(scope="module")
def two_partitions(spark: "SparkSession") -> Iterator[None]:
    """Use two shuffle partitions, so that rows of different keys may be in different partitions."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before)


@pytest.fixture(scope="module")
def small_queries(spark: Any) -> Iterator[None]:
    """Do not compile queries over a few rows; the compilation would take most of the time."""
    confs = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {key: spark.conf.getAll.get(key) for key in confs}
    for key, value in confs.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
