"""The demo as a process: it balances, it ends when it is asked to, it is alone in its folder."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_process import (
    NO_JAVA_SECONDS,
    DemoProcess,
    account_in,
    children_cpu_seconds,
    compare_with_log,
)

from penstock._local.demo.delta_log import read_snapshot
from penstock._local.demo.places import DemoPlaces

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

Start = Callable[..., DemoProcess]
END_SECONDS = 400.0


def has_silver(directory: Path) -> bool:
    snapshot = read_snapshot(DemoPlaces(directory).table("orders"))
    return snapshot is not None and bool(snapshot.files)


def failed_records(directory: Path) -> Counter[str]:
    """Rows per rule that the event log says were broken."""
    counts: Counter[str] = Counter()
    for file in (directory / "events").rglob("*.jsonl"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["event_type"] == "flow_progress":
                quality = event["details"]["flow_progress"].get("data_quality", {})
                for rule in quality.get("expectations", ()):
                    counts[rule["name"]] += rule["failed_records"]
    return counts


def quarantined_on(dashboard: str) -> int:
    """Rows in quarantine, as the page of the running demo has them."""
    with urllib.request.urlopen(f"{dashboard}api/pipelines", timeout=10) as answer:
        (pipeline,) = json.load(answer)["pipelines"]
    address = f"{dashboard}api/pipelines/{pipeline['key']}/update"
    with urllib.request.urlopen(address, timeout=10) as answer:
        return sum(card["quarantined"] for card in json.load(answer)["cards"])


def test_the_account_balances_when_all_events_are_processed(
    start_demo: Start, demo_directory: Path
) -> None:
    demo = start_demo("--events", "3000", "--rate", "600", "--ui")
    assert demo.wait_until(lambda: "RUNNING" in demo.output, END_SECONDS), demo.output
    dashboard = re.search(r"dashboard at (\S+)", demo.output)[1]

    refusals = {}
    for command in (["demo", "--events", "5"], ["run", str(demo_directory)]):
        arguments = ["--storage", str(demo_directory)]
        used = children_cpu_seconds()
        second = subprocess.run(
            [sys.executable, "-m", "penstock", *command, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        refusals[command[0]] = (second.returncode, children_cpu_seconds() - used, second.stderr)

    assert demo.wait_until(lambda: quarantined_on(dashboard) > 0, END_SECONDS), demo.output
    assert demo.wait(END_SECONDS) == 0, demo.output
    with pytest.raises(urllib.error.URLError):
        quarantined_on(dashboard)
    for status, seconds, text in refusals.values():
        assert status == 3, text
        assert "LEASE_HELD" in text
        assert re.search(rf"\b{demo.pid}\b", text), text
        assert seconds < NO_JAVA_SECONDS

    assert "It balances." in demo.output
    found, tables, judged = compare_with_log(demo_directory)
    assert found == []
    figures = account_in(demo.output)
    assert figures["read"] == len(judged) == 3000
    assert figures["silver"] == len(tables.silver)
    assert figures["quarantined"] == len(tables.quarantine) > 0
    assert figures["duplicates"] == 3000 - len({verdict.order for verdict in judged}) > 0
    assert figures["pending"] == 0

    by_rule = Counter(rule for row in tables.quarantine for rule in row["_failed_rules"])
    customers = [row["customer_id"] for row in (*tables.silver, *tables.quarantine)]
    unknown = sum(not (customer or "").startswith("C") for customer in customers)
    assert failed_records(demo_directory) == by_rule + Counter(known_customer=unknown)


def test_everything_is_processed_when_ctrl_c_ends_the_demo(
    start_demo: Start, demo_directory: Path
) -> None:
    first = start_demo("--once", "--events", "500")
    assert first.wait(END_SECONDS) == 0, first.output

    endless = start_demo("--rate", "300")
    more = r"orders_bronze +RUN|RUN streaming table orders_bronze [1-9]"
    assert endless.wait_until(
        lambda: has_silver(demo_directory) and bool(re.search(more, endless.output)), END_SECONDS
    ), endless.output
    endless.interrupt()
    assert endless.wait(END_SECONDS) == 0, endless.output

    figures = account_in(endless.output)
    assert "It balances." in endless.output
    assert figures["pending"] == 0
    assert figures["read"] > 500
    found, _, _ = compare_with_log(demo_directory)
    assert found == []
