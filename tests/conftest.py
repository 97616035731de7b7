import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RECORDED = Path(__file__).with_name("seconds.json")
# A file with Spark tests that was never recorded is assumed to take long.
UNKNOWN_SECONDS = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-seconds",
        action="store_true",
        help="write the seconds per file of this run to tests/seconds.json",
    )


def pytest_configure() -> None:
    """Handle signals even if the run was started with `nohup` or `&`, where they are ignored."""
    # Handled like Ctrl-C, so that fixtures stop their servers and processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several processes start with the longest files, so that they end together."""
    if not hasattr(config, "workerinput"):
        return
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))

    def seconds(item: pytest.Item) -> float:
        unknown = UNKNOWN_SECONDS if item.get_closest_marker("spark") else 0.0
        return recorded.get(item.nodeid.partition("::")[0], unknown)

    items.sort(key=seconds, reverse=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds per folder and per file, below the slowest tests of `--durations`."""
    if terminalreporter.config.option.durations is None:
        return
    files: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                files[file] += report.duration
                folders[f"{Path(file).parent}/"] += report.duration
    terminalreporter.section("seconds per folder and per file (fixtures with the first test)")
    for name, seconds in [*folders.most_common(), *files.most_common()]:
        if seconds >= 1:
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    if terminalreporter.config.option.record_seconds:
        known = json.loads(RECORDED.read_text(encoding="utf-8"))
        known |= {file: round(seconds) for file, seconds in files.items()}
        kept = {file: known[file] for file in sorted(known) if known[file] >= 1}
        RECORDED.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def spark_jars() -> tuple[str, ...]:
    """The jars of Spark's sets, from the cache that `penstock jars sync` fills."""
    from penstock._local.jars import SPARK_JAR_SETS, class_path

    return tuple(str(jar) for jar in class_path(SPARK_JAR_SETS))


def archive_options() -> tuple[str, ...]:
    """Use the class-data archive that `penstock jars sync` made, as pipelines do."""
    from penstock._local.cds import java_options
    from penstock._local.jars import SPARK_JAR_SETS, class_path

    return tuple(java_options(class_path(SPARK_JAR_SETS)))


@pytest.fixture(scope="module", autouse=True)
def short_backoff(request: pytest.FixtureRequest) -> Iterator[None]:
    """Flows are retried as often as usual, but after half a second instead of five."""
    if "unit" in request.path.relative_to(Path(__file__).parent).parts:
        yield
        return
    from penstock._runtime.restart import CONTINUOUS, TRIGGERED

    before = TRIGGERED.initial_backoff_seconds
    for policy in (CONTINUOUS, TRIGGERED):
        object.__setattr__(policy, "initial_backoff_seconds", 0.5)
    yield
    for policy in (CONTINUOUS, TRIGGERED):
        object.__setattr__(policy, "initial_backoff_seconds", before)


@pytest.fixture(scope="module", autouse=True)
def own_secrets() -> Iterator[None]:
    """Forget the secrets of a module: a password `x` would be masked in all later modules."""
    from penstock._model.redaction import forget_secrets

    yield
    forget_secrets()


# Queries of tests process a few rows: generating and compiling code for them takes a third of the
# processor time, and a second shuffle partition a twelfth. Input rows are still read by two tasks.
# Most processes that tests start, and `make test-long`, keep the settings of pipelines.
SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@pytest.fixture(scope="session")
def query_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return SMALL_QUERIES if request.config.option.markexpr == "not long" else {}


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest,
    query_settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> "Iterator[SparkSession]":
    """One session for all Spark tests, built like the session of a pipeline."""
    from penstock._spark.call_sites import own_columns
    from penstock._spark.session import SessionOptions, build_session, stop_session

    root = tmp_path_factory.mktemp("spark")
    session = build_session(
        SessionOptions(
            app_name="penstock-tests",
            storage_root=root.as_uri(),
            master="local[2]",
            configuration={"spark.driver.memory": "3g", **query_settings},
            jars=spark_jars(),
            log_file=str(root / "spark.log"),
            # Hundreds of tests use the session, so the optimizing compiler that `.ci/test` switches
            # off for short processes pays, and so does a large young generation.
            java_options=(
                *("-XX:TieredStopAtLevel=4", "-XX:+UseSerialGC", "-Xms2g", "-Xmn1g"),
                *archive_options(),
            ),
        )
    )
    request.config.stash[_CONF] = session, session.conf.getAll
    with own_columns():  # as in a pipeline
        yield session
    stop_session(session)


_CONF: pytest.StashKey[tuple["SparkSession", dict[str, str]]] = pytest.StashKey()

# Settings that Delta itself sets.
_DELTA_SETS = (
    "spark.databricks.delta.lastCommitVersionInSession",
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.fieldId.write.enabled",
)


@pytest.fixture(scope="module", autouse=True)
def unchanged_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a module that changes SQL settings of the shared session and does not restore them."""
    yield
    if _CONF not in request.config.stash:
        return
    session, expected = request.config.stash[_CONF]
    now = session.conf.getAll
    changed = {
        key: (expected.get(key), now.get(key))
        for key in sorted(expected.keys() | now.keys())
        if expected.get(key) != now.get(key)
        and key.startswith(("spark.sql.", "spark.databricks."))
        and key not in _DELTA_SETS
    }
    for key, (before, _) in changed.items():  # must not affect later modules
        if before is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, before)
    assert not changed, f"settings of the shared session, before and now: {changed}"
