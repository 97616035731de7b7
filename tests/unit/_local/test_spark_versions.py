import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from penstock._local.lock import _LOCK_FILE, parse_lock
from penstock._model import spark_version
from penstock._model.spark_version import (
    DELTA,
    SPARK_VERSIONS,
    installed_spark,
    installed_version,
    is_marked,
    mark_streams,
    minor_version,
    placed_elsewhere,
    require_spark,
    require_supported_pair,
    unsupported_pair,
)
from penstock.errors import DefinitionError, SetupError

ROOT = Path(__file__).parents[3]


def test_installed_versions_are_supported() -> None:
    assert installed_spark() == minor_version(installed_version("pyspark") or "")
    require_supported_pair()


def test_the_version_of_pyspark_is_known_without_its_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `spark-submit`, PySpark is imported from `SPARK_HOME` and is not installed."""
    installed = installed_version("pyspark")

    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert installed_version.__wrapped__("pyspark") == installed
    assert installed_version.__wrapped__("delta-spark") is None


@pytest.mark.parametrize("version", SPARK_VERSIONS)
def test_lock_has_delta_and_kafka_jars_of_each_spark_version(version: str) -> None:
    sets = parse_lock(_LOCK_FILE.read_text(encoding="utf-8"), version).sets
    names = [jar.coordinate for name in ("delta", "kafka") for jar in sets[name].jars]
    assert f"io.delta:delta-spark_{version}_2.13:{DELTA}" in names
    artifacts = [name.rpartition(":")[0] for name in names]
    assert len(set(artifacts)) == len(artifacts)
    (kafka,) = (name for name in names if ":spark-sql-kafka-" in name)
    assert minor_version(kafka.rpartition(":")[2]) == version
    assert len([name for name in names if ":delta-spark_" in name]) == 1


@pytest.mark.parametrize("version", SPARK_VERSIONS[:-1])
def test_older_spark_versions_are_pinned_with_a_hash(version: str) -> None:
    text = (ROOT / "requirements" / f"spark-{version}.txt").read_text(encoding="utf-8")
    assert re.fullmatch(rf"pyspark=={version}\.\d+ --hash=sha256:[0-9a-f]{{64}}\n", text)


def test_package_dependencies_are_the_supported_versions() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    assert "pyspark>=4.1,<=4.2.0" in dependencies
    assert f"delta-spark=={DELTA}" in dependencies


@pytest.mark.parametrize(
    ("spark", "delta", "java_side", "reason"),
    [
        ("4.1.0", "4.4.0", None, None),
        ("4.1.4", "4.4.1", "4.1.4", None),
        ("4.2.0", "4.4.0", "4.2.0", None),
        ("4.2", "4.4.0", None, None),
        ("4.0.0", "4.4.0", None, "PySpark 4.0.0, delta-spark 4.4.0: Delta 4.4.0 is supported"),
        ("4.2.1", "4.4.0", None, "is supported with Spark 4.1.0 to 4.2.0"),
        ("4.3.0", "4.4.0", None, "is supported with Spark 4.1.0 to 4.2.0"),
        ("3.5.9", "3.3.3", None, "is supported with Spark 4.1.0 to 4.2.0"),
        ("4.1.4", "4.3.1", None, "the jars are those of Delta 4.4.0"),
        (None, "4.4.0", None, "PySpark is not installed"),
        ("4.2.0", None, None, "delta-spark is not installed"),
        ("4.2.0", "4.4.0", "4.1.4", "Spark itself is 4.1.4 (SPARK_HOME)"),
        ("nonsense", "4.4.0", None, "is supported"),
    ],
)
def test_unsupported_versions_have_a_reason(
    spark: str | None, delta: str | None, java_side: str | None, reason: str | None
) -> None:
    actual = unsupported_pair(spark, delta, java_side=java_side)
    assert actual is None if reason is None else reason in (actual or "")


def test_error_names_the_versions_and_the_pip_command_when_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"pyspark": "4.3.0", "delta-spark": "4.4.0"}
    monkeypatch.setattr(spark_version, "installed_version", versions.get)
    with pytest.raises(SetupError) as caught:
        require_supported_pair()
    assert caught.value.condition == "SPARK_NOT_SUPPORTED"
    assert "PySpark 4.3.0, delta-spark 4.4.0" in caught.value.message
    assert "pip install 'pyspark>=4.1,<=4.2.0' 'delta-spark==4.4.0'" in (caught.value.hint or "")


def test_spark_version_is_read_from_the_jars_of_spark_home(tmp_path: Path) -> None:
    environ = {"SPARK_HOME": str(tmp_path)}
    assert placed_elsewhere({}) is None
    assert placed_elsewhere(environ) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.1.4.jar").touch()
    assert placed_elsewhere(environ) == "4.1.4"


def test_a_feature_is_refused_when_spark_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_version, "installed_spark", lambda: "4.1")
    require_spark("4.1", "x")
    with pytest.raises(DefinitionError, match="FEATURE_NOT_AVAILABLE"):
        require_spark("4.2", "Kinesis")


QUERY = """SELECT stream, 'FROM STREAM x' -- FROM STREAM y
FROM STREAM read_files('a', b => 'FROM STREAM z') JOIN stream(live.orders) o"""


@pytest.mark.parametrize(
    ("version", "marked"),
    [
        ("4.2", QUERY),
        ("4.1", QUERY.replace("STREAM read", "/*~~*/ read")),
    ],
)
def test_stream_keyword_is_marked_when_the_parser_does_not_support_it(
    version: str, marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_version, "installed_spark", lambda: version)
    assert mark_streams(QUERY) == marked
    assert is_marked(marked, marked.index("read_files")) is (version != "4.2")
    assert not is_marked(marked, marked.index("live."))
