"""The command line as users run it, in an empty folder.

Commands run in this process on the session of the tests. Separate processes are started for tests
of processes: signals, refusals before Java starts, the first run of a new project.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, penstock
from demo_process import NO_JAVA_SECONDS, children_cpu_seconds

from penstock._local.demo.tables import opened, read_rows

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 180.0
SHOP = """\
import penstock as dp
from pyspark.sql import functions as F


@dp.table
def bronze():
    return spark.readStream.schema("id BIGINT, amount DOUBLE").json("in")


@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def silver():
    return dp.read_stream("bronze")


@dp.materialized_view
def gold():
    return dp.read("silver").agg(F.sum("amount").alias("revenue"))
"""


class Shop:
    """A pipeline in an otherwise empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir(parents=True)
        self.source(SHOP)
        self._started: list[subprocess.Popen[str]] = []

    def source(self, text: str) -> None:
        (self.folder / "shop.py").write_text(text, encoding="utf-8")

    def add(self, name: str, *amounts: float | None) -> None:
        lines = [json.dumps({"id": i, "amount": amount}) for i, amount in enumerate(amounts)]
        temporary = self.folder / name
        temporary.write_text("\n".join(lines), encoding="utf-8")
        temporary.rename(self.folder / "in" / name)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1", **environment},
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def penstock(self, *arguments: str) -> Answer:
        """Run a command in this process."""
        return penstock(self.folder, *arguments)

    def process(self, *arguments: str) -> Answer:
        """Run a command in a separate process until it ends."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=SECONDS)
        return Answer(process.returncode, out, err)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        path = self.folder / ".penstock/tables/spark_catalog/default" / table
        stored = read_rows(opened(path), columns).to_pylist()
        return sorted((tuple(row[c] for c in columns) for row in stored), key=repr)

    def events(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / ".penstock/events").rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline
            pause.wait(0.02)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def shop(tmp_path: Path, spark) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop")
    yield shop
    shop.end()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, spark) -> Shop:
    """A shop that has run once."""
    shop = Shop(tmp_path_factory.mktemp("finished") / "shop")
    shop.add("a.json", 5.0, -1.0, None, 2.5)
    answer = shop.penstock("run")
    assert answer.code == 0, answer.text
    return shop


def files_of(folder: Path) -> set[str]:
    paths = (str(file.relative_to(folder)) for file in folder.rglob("*"))
    return {name for name in paths if "__pycache__" not in name}


def test_a_dry_run_shows_a_file_in_a_folder_as_pipeline_and_writes_nothing(shop: Shop) -> None:
    shop.add("a.json", 5.0)
    before = files_of(shop.folder)
    code, out, err = shop.penstock("dry-run")
    assert code == 0, err
    for text in ("bronze", "silver", "gold", "positive", "amount double"):
        assert text in out
    code, out, err = shop.penstock("dry-run", "--output", "json")
    assert code == 0, err
    assert {"bronze", "silver", "gold"} <= set(re.findall(r"\w+", json.dumps(json.loads(out))))
    assert files_of(shop.folder) == before


def test_rows_that_violate_a_rule_are_in_quarantine_after_a_run(finished: Shop) -> None:
    assert finished.rows("silver", "id", "amount") == [(0, 5.0), (3, 2.5)]
    assert finished.rows("gold", "revenue") == [(7.5,)]
    # NULL does not satisfy a rule: that row is in quarantine like the one with -1.
    assert finished.rows("silver_quarantine", "id", "_failed_rules") == [
        (1, ["positive"]),
        (2, ["positive"]),
    ]


def test_the_event_log_counts_each_rule(finished: Shop) -> None:
    counts: Counter[str] = Counter()
    for event in finished.events():
        quality = event["details"].get("flow_progress", {}).get("data_quality", {})
        for rule in quality.get("expectations", ()):
            counts["failed"] += rule["failed_records"]
            counts["passed"] += rule["passed_records"]
    assert counts == {"failed": 2, "passed": 2}


def test_rows_are_shown_after_a_run(finished: Shop) -> None:
    code, out, err = finished.penstock("preview", "gold")
    assert (code, "7.5" in out) == (0, True), err
    code, out, err = finished.penstock("quarantine", "show", "silver")
    assert (code, out.count("positive")) == (0, 2), err


def test_a_second_run_changes_nothing_and_prints_events_as_json_lines(finished: Shop) -> None:
    code, out, err = finished.penstock("run", "--log-format", "json")
    assert code == 0, err
    lines = [json.loads(line) for line in (out + err).splitlines()]
    assert lines[-1]["details"]["update_progress"]["state"] == "COMPLETED"
    assert finished.rows("gold", "revenue") == [(7.5,)]


def test_one_error_names_file_line_and_the_nearest_name_when_a_table_is_misspelled(
    shop: Shop,
) -> None:
    shop.source(SHOP.replace('read_stream("bronze")', 'read_stream("bronz")'))
    code, _, err = shop.penstock("run")
    assert code == 2
    assert err.count("[") == err.count("DATASET_NOT_FOUND]") == 1, err
    assert re.search(r"shop\.py:\d+", err), err
    assert "did you mean" in err
    assert "bronze" in err
    assert "Traceback" not in err
    line = int(re.findall(r"shop\.py:(\d+)", err)[0])
    assert 11 <= line <= 14
    assert not list((shop.folder / ".penstock").rglob("_delta_log"))


def test_update_fails_with_rule_values_and_batch_when_a_fail_rule_is_violated(shop: Shop) -> None:
    shop.source(
        SHOP.replace('expect_or_drop("positive"', 'expect_or_fail("positive"')
        + '\n\n@dp.table\ndef other():\n    return dp.read_stream("bronze")\n'
    )
    shop.add("a.json", 5.0, -1.25)
    code, out, err = shop.penstock("run")
    assert code == 1
    text = out + err
    for part in ("EXPECTATION_VIOLATED", "positive", "-1.25", "batch 0"):
        assert part in text, text
    assert len(shop.rows("other", "id")) == 2
    assert shop.rows("silver", "id") == []


@pytest.mark.long
def test_the_second_start_is_refused_and_ctrl_c_stops_the_first(shop: Shop) -> None:
    shop.add("a.json", 5.0)
    first = shop.start("run", "--continuous", "--log-format", "json")
    silver = shop.folder / ".penstock/tables/spark_catalog/default/silver"

    def has_rows() -> bool:
        table = opened(silver)
        return table is not None and bool(table.file_uris())

    shop.wait_for(lambda: has_rows() or first.poll() is not None)
    assert first.poll() is None
    used = children_cpu_seconds()
    code, _, err = shop.process("run")
    assert children_cpu_seconds() - used < NO_JAVA_SECONDS
    assert code == 3
    assert "LEASE_HELD" in err
    assert re.search(rf"\b{first.pid}\b", err), err

    shop.add("b.json", 6.0)
    shop.wait_for(lambda: len(shop.rows("silver", "amount")) == 2)
    os.kill(first.pid, signal.SIGINT)
    first.communicate(timeout=SECONDS)
    assert first.returncode == 130
    assert shop.events()[-1]["details"]["update_progress"]["state"] == "CANCELED"

    code, _, err = shop.penstock("run")
    assert code == 0, err
    assert shop.rows("silver", "amount") == [(5.0,), (6.0,)]
    assert shop.rows("gold", "revenue") == [(11.0,)]
