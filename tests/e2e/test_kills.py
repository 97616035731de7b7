"""kill -9 of a real `penstock run` between the commits of a batch, once per kind of writer.

Other kill points are tested by exceptions in tests/spark, and random kills by `make test-long`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import penstock

from penstock._local.demo.tables import opened, read_rows

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

SOURCE = """\
import penstock as dp
from pyspark.sql import functions as F


def rows():
    return spark.readStream.schema("id BIGINT, amount DOUBLE").json("in")


@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def orders():
    return rows()


@dp.table(output_mode="update", spark_conf={"penstock.growingState": "allow"})
def totals():
    return rows().groupBy((F.col("id") % 2).alias("odd")).agg(F.count("*").alias("n"))


@dp.temporary_view
def changes():
    return rows()


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers", source="changes", keys=["id"], sequence_by="amount", stored_as_scd_type=2
)
"""
POINTS = (
    ("after_quarantine_commit", "orders"),
    ("after_state_commit", "customers"),
    ("after_target_commit", "totals"),
)
# Kills the process when all flows are between their two commits.
PROGRAM = """\
import os, signal, threading
from penstock._cli.main import main
from penstock._tables.kill_points import step_callback

points = {points}
barrier = threading.Barrier(len(points), lambda: os.kill(os.getpid(), signal.SIGKILL))


def at_step(point, flow, batch_id):
    if (point, flow, batch_id) in points:
        barrier.wait(150)


with step_callback(at_step):
    main(["run"])
"""


def add(folder: Path, name: str, rows: list[tuple[int, float]]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"id": number, "amount": amount}) for number, amount in rows]
    draft = folder / name
    draft.write_text("\n".join(lines), encoding="utf-8")
    draft.rename(folder / "in" / name)


def rows(folder: Path, table: str, *columns: str) -> list[tuple[object, ...]]:
    table_at = opened(folder / ".penstock/tables/spark_catalog/default" / table)
    assert table_at is not None
    listed = read_rows(table_at, columns).to_pylist()
    return sorted((tuple(row[c] for c in columns) for row in listed), key=repr)


def run_and_die(folder: Path) -> None:
    """Run `penstock run` until it is killed, and wait for its JVM, which shares the lease."""
    program = PROGRAM.format(points=[(*point, 0) for point in POINTS])
    with (folder / "killed.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert process.wait(180) == -signal.SIGKILL, (folder / "killed.log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_no_row_is_lost_or_duplicated_when_killed_between_two_commits(
    tmp_path: Path, spark
) -> None:
    (tmp_path / "shop.py").write_text(SOURCE, encoding="utf-8")
    add(tmp_path, "a.json", [(0, 5.0), (1, -1.0), (2, 3.0)])
    run_and_die(tmp_path)
    assert rows(tmp_path, "orders_quarantine", "id") == [(1,)]
    assert rows(tmp_path, "orders", "id") == []
    assert rows(tmp_path, "customers", "id") == []
    assert rows(tmp_path, "totals", "odd", "n") == [(0, 2), (1, 1)]
    add(tmp_path, "b.json", [(0, 7.0), (3, -2.0)])
    answer = penstock(tmp_path, "run")
    assert answer.code == 0, answer.text
    assert rows(tmp_path, "orders", "id", "amount") == [(0, 5.0), (0, 7.0), (2, 3.0)]
    assert rows(tmp_path, "orders_quarantine", "id") == [(1,), (3,)]
    assert rows(tmp_path, "totals", "odd", "n") == [(0, 3), (1, 2)]
    assert rows(tmp_path, "customers", "id", "amount", "__END_AT") == [
        (0, 5.0, 7.0),
        (0, 7.0, None),
        (1, -1.0, None),
        (2, 3.0, None),
        (3, -2.0, None),
    ]
