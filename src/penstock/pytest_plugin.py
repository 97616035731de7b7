"""Fixtures for tests of pipelines; pytest loads them where Penstock is installed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.testing.pipeline import PipelineTest

# Queries of tests process a few rows: generating and optimizing code takes longer than their
# execution.
_CONFIGURATION = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(scope="session")
def penstock_spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One Spark session for all tests of the run, with the jars of a pipeline."""
    from penstock._model.pipeline import PipelineSettings
    from penstock._session import open_session

    root = tmp_path_factory.mktemp("penstock")
    settings = PipelineSettings(
        name="tests",
        storage=root.as_uri(),
        root=str(root),
        master="local[2]",
        configuration=_CONFIGURATION,
    )
    with (
        contextlib.chdir(Path.cwd()),
        open_session(settings, log_file=root / "spark.log", warehouse=str(root)) as spark,
    ):
        yield spark


@pytest.fixture
def pipeline(
    request: pytest.FixtureRequest, tmp_path: Path, penstock_spark: "SparkSession"
) -> "PipelineTest":
    """The pipeline of the project that the test file is in, with an empty storage."""
    from penstock.testing.pipeline import PipelineTest

    project = next((p for p in request.path.parents if p.name == "tests"), request.path).parent
    return PipelineTest(project, tmp_path / "storage", penstock_spark)
