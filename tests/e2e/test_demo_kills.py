"""Repeated kill -9, then a comparison of every row with the Kafka log."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_process import DemoProcess, account_in, compare_with_log, kill_broker, next_batch

from penstock._local.demo.folders import DemoFolders
from penstock._local.demo.tables import opened

pytestmark = [
    *(pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark),
    pytest.mark.long,
    pytest.mark.timeout(2400),
]

Start = Callable[..., DemoProcess]
END_SECONDS = 400.0
# Before, between and after the two commits of a batch: random kills rarely hit these points.
POINTS = (
    ("after_quarantine_commit", "orders"),
    ("after_target_commit", "orders"),
    ("before_write", "orders"),
    ("after_target_commit", "orders_bronze"),
    ("after_target_commit", "revenue_5m"),
)
RANDOM_MOMENTS = int(os.environ.get("PENSTOCK_RANDOM_KILLS", "1"))
# Each kill takes almost a minute: a short run uses a random selection of them.
POINTS_IN_SHORT = 3


def version(directory: Path, table: str) -> int:
    opened_table = opened(DemoFolders(directory).table(table))
    return -1 if opened_table is None else int(opened_table.version())


def test_no_row_is_lost_or_duplicated_when_the_demo_is_killed_repeatedly(
    start_demo: Start, demo_directory: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", time.time_ns()))
    print(f"PENSTOCK_TEST_SEED={seed}")
    dice = random.Random(seed)
    first = start_demo("--once", "--events", "400")
    assert first.wait(END_SECONDS) == 0, first.output

    points = dice.sample(POINTS, len(POINTS) if RANDOM_MOMENTS > 1 else POINTS_IN_SHORT)
    plan: list[tuple[str, str] | None] = [*points, *[None] * RANDOM_MOMENTS]
    dice.shuffle(plan)
    for turn, point in enumerate(plan):
        if point is not None:
            kill_at_point(start_demo, demo_directory, *point)
        else:
            kill_at_random_moment(start_demo, demo_directory, dice)
        if turn % 4 == 3:
            kill_broker(demo_directory)

    last = start_demo("--once", "--events", "400")
    assert last.wait(END_SECONDS) == 0, last.output
    assert "It balances." in last.output
    assert account_in(last.output)["pending"] == 0
    differences, tables, judged = compare_with_log(demo_directory)
    assert differences == []
    assert len(judged) >= 400 * (2 + len(points))
    orders = Counter(row["order_id"] for row in tables.silver)
    assert max(orders.values()) == 1


def kill_at_point(start_demo: Start, directory: Path, point: str, flow: str) -> None:
    # An earlier kill may have left that batch in the table: then it is replayed, and the process is
    # killed in the next batch.
    target = f"{point}:{flow}:{next_batch(directory, flow)}+"
    demo = start_demo("--once", "--events", "400", PENSTOCK_KILL_AT=target)
    assert demo.wait(END_SECONDS) == -signal.SIGKILL, f"{target} was not met: {demo.output}"
    demo.kill_group()


def kill_at_random_moment(start_demo: Start, directory: Path, dice: random.Random) -> None:
    """Kill shortly after a commit of a random flow, or at a random time after the start."""
    table = dice.choice(("orders_bronze", "orders", "revenue_5m", None))
    demo = start_demo("--events", "100000", "--rate", str(dice.choice((100, 300))))
    if table is not None:
        before = version(directory, table)
        assert demo.wait_until(lambda: version(directory, table) > before, END_SECONDS), demo.output
    demo.wait_until(lambda: False, dice.uniform(0.0, 4.0 if table else 12.0))
    demo.kill_group()
