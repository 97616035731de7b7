from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LONGEST_FIRST = ("e2e", "jdbc", "kafka", "kinesis", "spark", "docs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let two processes begin with what takes longest, so that they end together."""
    if not hasattr(config, "workerinput"):
        return
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        room = item.path.relative_to(here).parts[0]
        return LONGEST_FIRST.index(room) if room in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


def spark_jars() -> tuple[str, ...]:
    """The jars of Spark's sets, from the cache that `penstock jars sync` fills."""
    from penstock._launch import SPARK_JAR_SETS
    from penstock._local.jars import class_path

    return tuple(str(jar) for jar in class_path(SPARK_JAR_SETS))


def archive_options() -> tuple[str, ...]:
    """Use the class-data archive that `penstock jars sync` made, as pipelines do."""
    from penstock._launch import SPARK_JAR_SETS
    from penstock._local.cds import java_options
    from penstock._local.jars import class_path

    return tuple(java_options(class_path(SPARK_JAR_SETS)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One session for all Spark tests, built as a pipeline builds its own."""
    from penstock._engine.session import SessionOptions, build_session, stop_session

    root = tmp_path_factory.mktemp("spark")
    session = build_session(
        SessionOptions(
            app_name="penstock-tests",
            storage_root=root.as_uri(),
            master="local[2]",
            jars=spark_jars(),
            log_file=str(root / "spark.log"),
            # Small data, many queries: what is compiled well is rarely used again.
            java_options=("-XX:TieredStopAtLevel=1", *archive_options()),
        )
    )
    yield session
    stop_session(session)
