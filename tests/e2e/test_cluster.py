"""The demo on a standalone cluster of two workers; an executor is killed during the run."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_process import DemoProcess, account_in, compare_with_log
from pipeline_process import children

from penstock._local.cluster import cluster_status, stop_cluster
from penstock._local.demo.folders import DemoFolders

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(400),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "demo"
    stop_cluster(DemoFolders(tmp_path / "demo").cluster)


def executors(folder: Path) -> list[int]:
    """Executors (children of workers) that have run for long enough to have tasks."""
    cluster = cluster_status(DemoFolders(folder).cluster)
    workers = [pid for pid, _ in cluster.processes[1:]] if cluster is not None else []
    return [child for worker in workers for child in children(worker)]


def recorded(folder: Path, event_type: str) -> list[dict]:
    """Details of the events of this type in all updates."""
    lines = [
        json.loads(line)
        for file in sorted(folder.glob("events/**/*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")  # the last line may be incomplete
    ]
    return [line["details"][event_type] for line in lines if line["event_type"] == event_type]


def test_no_row_is_lost_when_an_executor_is_killed(
    folder: Path, query_settings: dict[str, str]
) -> None:
    log = folder.parent / "demo.log"
    # Driver and executors would compile the generated code of every flow.
    settings = "".join(f"{key} {value}\n" for key, value in query_settings.items())
    (folder.parent / "spark-defaults.conf").write_text(settings)
    environment = {"SPARK_CONF_DIR": str(folder.parent)}
    demo = DemoProcess(folder, log, "--cluster", "--rate", "100", environment=environment)
    silver = DemoFolders(folder).table("orders") / "_delta_log"

    def has_rows() -> bool:
        return len(list(silver.glob("*.json"))) > 2

    def has_replaced() -> bool:
        changes = recorded(folder, "cluster_resources")
        is_lost = any(change["lost"] for change in changes)
        return is_lost and changes[-1]["num_executors"] == 2

    try:
        assert demo.wait_until(has_rows, 180), demo.output
        before = executors(folder)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        assert demo.wait_until(has_replaced, 120), demo.output
        demo.interrupt()  # processes all sent messages before it ends
        assert demo.wait(240) == 0, demo.output
    finally:
        demo.kill_group()
    differences, _, judged = compare_with_log(folder)
    assert differences == []
    assert account_in(demo.output)["read"] == len(judged) > 0
    changes = recorded(folder, "cluster_resources")
    assert changes[0]["num_executors"] == 2
    assert len([executor for change in changes for executor in change["lost"]]) == 1
    assert executors(folder) == []
    assert cluster_status(DemoFolders(folder).cluster) is None
