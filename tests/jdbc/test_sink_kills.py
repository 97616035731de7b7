"""Repeated kill -9 of pipeline and server, then a comparison with the input, row by row.

`make chaos` runs it with many kills; PENSTOCK_SINK_KILLS is `<pipeline>,<server>`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from database_server import PASSWORD, DatabaseServer
from database_tables import Tables

from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, run_update

pytestmark = pytest.mark.timeout(4 * 3600)

PIPELINE_KILLS, SERVER_KILLS = (
    int(part) for part in os.environ.get("PENSTOCK_SINK_KILLS", "1,1").split(",")
)
POINTS = ("after_target_commit", "before_target_commit", "after_staging", "before_write")
ROWS = 20
# Each file is a batch of two flows.
FILES = 4
SECONDS = 180.0

PIPELINE = """
import penstock as dp
from pyspark.sql import functions as F

LOGIN = {"user": "writer", "password": "${secret:DB_PASSWORD}"}
URL = spark.conf.get("database.url")
dp.create_sink("added", "jdbc", {"url": URL, "dbtable": "added", **LOGIN})
dp.create_sink("counted", "jdbc", {
    "url": URL, "dbtable": "counted", "mode": "upsert", "keys": "k", **LOGIN
})

def rows():
    reader = spark.readStream.schema("id BIGINT, k INT").option("maxFilesPerTrigger", 1)
    return reader.json("data")

@dp.append_flow(target="added")
def add():
    return rows()

@dp.update_flow(target="counted")
def count():
    return rows().groupBy("k").agg(F.count("*").alias("n"))
"""


class Pipeline:
    """`penstock run --continuous` in a separate session."""

    def __init__(self, root: Path, number: int, kill_at: str | None, **environment: str) -> None:
        self.log = root / f"run-{number}.log"
        if kill_at is not None:
            environment["PENSTOCK_KILL_AT"] = kill_at
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", "--continuous"],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=root,
                env={**os.environ, "PENSTOCK_SECRET_DB_PASSWORD": PASSWORD, **environment},
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while self.process.poll() is None and time.monotonic() < deadline:
            if condition():
                return True
            pause.wait(0.02)
        return False

    def kill(self) -> None:
        """Send SIGKILL to Python and Spark's JVM; return when all of them have ended."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.wait(30)
                return
            self.process.poll()
            threading.Event().wait(0.05)
        raise AssertionError("the process group does not end")


class Input:
    """Files of rows with consecutive ids."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "data"
        self.folder.mkdir()
        self.files = 0

    def add(self, files: int) -> None:
        for _ in range(files):
            start = self.files * ROWS
            lines = [json.dumps({"id": start + at, "k": (start + at) % 7}) for at in range(ROWS)]
            draft = self.folder / ".draft"
            draft.write_text("\n".join(lines))
            draft.rename(self.folder / f"{self.files:06}.json")
            self.files += 1

    @property
    def ids(self) -> range:
        return range(self.files * ROWS)


@pytest.fixture(params=["postgres_server", pytest.param("mariadb_server", marks=pytest.mark.long)])
def server(request) -> DatabaseServer:
    return request.getfixturevalue(request.param)


def is_past(tables: Tables, flow: str, batch: int) -> bool:
    return last_batch(tables, flow) > batch


def last_batch(tables: Tables, flow: str) -> int:
    if not tables.exists("penstock_fence"):
        return -1
    rows = tables.query(f"SELECT last_batch FROM penstock_fence WHERE flow = '{flow}'")
    return int(rows[0][0]) if rows else -1


def test_no_row_is_lost_or_duplicated_when_pipeline_and_server_are_killed_repeatedly(
    tmp_path: Path, spark, server: DatabaseServer, tables: Tables, monkeypatch
):
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", time.time_ns()))
    print(f"PENSTOCK_TEST_SEED={seed}")
    dice = random.Random(seed)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "penstock.yaml").write_text(
        "name: chaos\nlibraries:\n  - file: {path: pipeline.py}\n"
        f"configuration:\n  database.url: {server.url}\n"
        "  pipelines.trigger.interval: 0 seconds\n"
    )
    feed = Input(tmp_path)
    server_kills = [dice.randrange(PIPELINE_KILLS) for _ in range(SERVER_KILLS)]
    try:
        for turn in range(PIPELINE_KILLS):
            # An earlier kill may have left that batch in the table: then kill at a later batch.
            point = POINTS[turn % (len(POINTS) + 2)] if turn % (len(POINTS) + 2) < 4 else None
            # A repeated upsert changes nothing, so the first kill is in the flow that appends.
            flow = "add" if turn == 0 else dice.choice(("add", "count"))
            before = last_batch(tables, flow)
            # Only the files that a turn may need, so that few remain after the last kill.
            feed.add(max(0, before + 1 + FILES - feed.files))
            batch = before + 1 + dice.randrange(FILES // 2)
            at = None if point is None else f"{point}:{flow}:{batch}+"
            pipeline = Pipeline(tmp_path, turn, at)
            try:
                moves = partial(is_past, tables, flow, before)
                for _ in range(server_kills.count(turn)):
                    pipeline.wait_until(moves)
                    pipeline.wait_until(lambda: False, dice.uniform(0.0, 1.0))
                    server.restart()
                if at is None:
                    pipeline.wait_until(moves)
                    pipeline.wait_until(lambda: False, dice.uniform(0.0, 3.0))
                else:
                    ended = pipeline.process.wait(SECONDS)
                    assert ended == -signal.SIGKILL, pipeline.log.read_text()
            finally:
                pipeline.kill()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PENSTOCK_SECRET_DB_PASSWORD", PASSWORD)
        result = run_update(load_settings(tmp_path), UpdateOptions(), bus=EventBus())
        assert result.state is UpdateState.COMPLETED, result.failures
        assert {last_batch(tables, flow) for flow in ("add", "count")} == {feed.files - 1}
        added = Counter(int(row[0]) for row in tables.query("SELECT id FROM added"))
        counted = {int(k): int(n) for k, n in tables.query("SELECT k, n FROM counted")}
        lost = [number for number in feed.ids if added[number] == 0]
        doubled = [number for number, times in added.items() if times > 1]
        print(f"{len(feed.ids)} rows in {feed.files} batches, lost {lost}, doubled {doubled}")
        assert (lost, doubled) == ([], [])
        assert counted == Counter(number % 7 for number in feed.ids)
        assert len(tables.staging()) <= 2
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert any(path.name.startswith("spark-") for path in written)
        assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []
    finally:
        tables.execute("DROP TABLE IF EXISTS added, counted")
