"""Drivers without a shared disk: only one of them holds the lease of a storage on S3."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_double import BUCKET, CREDENTIALS, S3Double, settings_of
from store_project import StoreSession, write_settings

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]

STORAGE = f"s3a://{BUCKET}/leased"
LEASE = ("--conf", "penstock.lease.duration=3 seconds")
SOURCE = """
import penstock as dp


@dp.table
@dp.expect_or_drop("positive", "id % 10 > 0")
def bronze():
    return spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json("{folder}")


@dp.materialized_view
def gold():
    return dp.read("bronze").selectExpr("count(*) n")
"""
SINK = """
import penstock as dp


@dp.foreach_batch_sink
def called(df, batch_id):
    open("{folder}/called", "w").close()


@dp.append_flow(target="called")
def call():
    return spark.readStream.schema("id BIGINT").json("{folder}/in")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Double]:
    double = S3Double(tmp_path_factory.mktemp("s3") / "moto.log")
    yield double
    double.stop()


@pytest.fixture(scope="module")
def session(server: S3Double, query_settings: dict[str, str]) -> Iterator[StoreSession]:
    made = StoreSession("s3", {**settings_of(server.port), **query_settings}, STORAGE)
    yield made
    made.stop()


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.long)])
def test_one_of_two_drivers_gets_the_lease_in_each_race(
    server: S3Double, session: StoreSession, tmp_path: Path, rounds: int
) -> None:
    ends = random.Random(rounds).choices(["release", "disappear"], [2, 1], k=rounds)
    outcomes: dict[str, list[str]] = {}
    second = StoreSession("s3", settings_of(server.port), STORAGE)

    def drive(process: StoreSession, me: str, other: str) -> None:
        plan = {"folder": str(tmp_path), "me": me, "other": other, "ends": ends}
        plan["storage"] = f"s3a://{BUCKET}/leases"
        outcomes[me] = process("lease", json.dumps(plan))

    pairs = ((session, "a", "b"), (second, "b", "a"))
    drivers = [threading.Thread(target=drive, args=pair) for pair in pairs]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    second.stop()
    each = [sorted(round_) for round_ in zip(outcomes["a"], outcomes["b"], strict=True)]
    assert each == [["LEASE_HELD", "held"]] * rounds


def test_driver_without_the_lease_ends_no_state_file(session: StoreSession) -> None:
    assert not session("late", f"s3a://{BUCKET}/late")


def test_file_that_another_driver_writes_after_the_check_is_not_replaced(
    session: StoreSession,
) -> None:
    first, kept, second, last = session("replaced", f"s3a://{BUCKET}/flow.json")
    assert kept.startswith("theirs")
    assert last.startswith("theirs")
    assert "pre-condition" in first
    assert "pre-condition" in second


def test_driver_without_the_lease_passes_no_batch_to_a_sink(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    _add(tmp_path / "in", 0)
    (tmp_path / "shop.py").write_text(SINK.format(folder=tmp_path), encoding="utf-8")
    storage = f"s3a://{BUCKET}/overtaken"
    write_settings(tmp_path, storage, settings_of(server.port))
    code, output = session("overtaken", str(tmp_path), storage)
    assert code == 1
    assert "LEASE_LOST" in output
    assert not (tmp_path / "called").exists()


def test_driver_that_was_suspended_longer_than_its_lease_commits_nothing(
    server: S3Double, session: StoreSession, tmp_path: Path
) -> None:
    incoming = tmp_path / "in"
    incoming.mkdir()
    for home in ("first", "second", "third"):
        (tmp_path / home).mkdir()
        source = SOURCE.format(folder=incoming)
        (tmp_path / home / "shop.py").write_text(source, encoding="utf-8")
        write_settings(tmp_path / home, STORAGE, settings_of(server.port))
    _add(incoming, 0)
    first = _start(tmp_path / "first")
    try:
        _wait_for_commits(server, first, 2)  # creates the table, adds the first file
        _add(incoming, 1)
        os.killpg(first.pid, signal.SIGSTOP)
        out = session.penstock(tmp_path / "second", "run", *LEASE)
        assert "waiting at most 3 s for the lease of process" in out
        assert "taking over 6 tables, with a commit to each" in out
        _add(incoming, 2)
        before = _commits(server)
        os.killpg(first.pid, signal.SIGCONT)
        out, _ = first.communicate(timeout=120)
        assert first.returncode == 1, out
        assert "LEASE_LOST" in out
        assert _commits(server) == before
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    out = session.penstock(tmp_path / "second", "run", *LEASE)
    assert "waiting" not in out, "the lease was released"
    # A machine that has run no update shows those of the others, and why the first one failed.
    history = json.loads(session.penstock(tmp_path / "third", "history", "--output", "json"))
    assert [row["state"] for row in history] == ["COMPLETED", "COMPLETED", "FAILED"]
    everything = ("--update", "all", "--output", "json")
    events = session.penstock(tmp_path / "third", "events", *everything)
    assert "LEASE_LOST" in events
    # The files of the commits are listed from the log, and merged.
    out = session.penstock(tmp_path / "third", "maintain")
    assert "bronze: compacted 3 files into 1" in out
    tables = session("read", STORAGE)
    assert sorted(row["id"] for row in tables["bronze"]) == [n for n in range(300) if n % 10]
    assert sorted(row["id"] for row in tables["bronze_quarantine"]) == list(range(0, 300, 10))
    assert [row["n"] for row in tables["gold"]] == [270]


def _add(folder: Path, number: int) -> None:
    rows = range(100 * number, 100 * number + 100)
    (folder / f"{number}.json").write_text("\n".join(json.dumps({"id": n}) for n in rows), "utf-8")


def _start(project: Path) -> subprocess.Popen[str]:
    """Start a driver like on a separate machine: its locks are in a separate home folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "--continuous", *LEASE],
        cwd=project,
        env={**os.environ, **CREDENTIALS, "XDG_STATE_HOME": str(project / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _commits(server: S3Double) -> int:
    """Number of commits of the table."""
    prefix = "leased/tables/spark_catalog/default/bronze/_delta_log/"
    url = f"http://127.0.0.1:{server.port}/{BUCKET}?list-type=2&prefix={prefix}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().count(b".json</Key>")


def _wait_for_commits(server: S3Double, driver: subprocess.Popen[str], count: int) -> None:
    deadline, pause = time.monotonic() + 120, threading.Event()
    while _commits(server) < count:
        assert driver.poll() is None
        assert time.monotonic() < deadline
        pause.wait(0.05)
