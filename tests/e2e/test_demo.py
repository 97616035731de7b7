"""The demo as a process: one run with invalid rows and a killed broker, ended by Ctrl-C.

The tests share that run, in the order of this file: first the pages while it runs, if a browser is
installed, then its results. Other ways to end it, and kills, are in `make test-long`.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from dashboard_process import Served
from demo_oracle import DemoTables, Judged
from demo_process import (
    NO_JAVA_SECONDS,
    DemoProcess,
    account_in,
    children_cpu_seconds,
    compare_with_log,
    kill_broker,
)

from penstock._local.broker import broker_status, start_broker, stop_broker
from penstock._local.demo.folders import TOPIC, DemoFolders

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

END_SECONDS = 400.0
PATIENCE_SECONDS = 120.0
# 3 is enough on an idle machine; the dashboard gets the remaining processor time.
SEEN_SECONDS = float(os.environ.get("PENSTOCK_SEEN_SECONDS", "15"))
POISONED = 400
BRONZE, SILVER = '[data-card$=".orders_bronze"]', '[data-card$=".orders"]'
ROWS_OF = """card => {
    const figures = [...document.querySelectorAll(card + " .figure")];
    const found = figures.find((one) => one.firstChild.textContent === NAME);
    return Number(found.lastChild.textContent.replaceAll(",", ""));
}"""


class Demo(NamedTuple):
    """A running demo with rows in all of its tables."""

    directory: Path
    process: DemoProcess
    dashboard: str

    @property
    def broker(self) -> Path:
        return DemoFolders(self.directory).broker


class Ended(NamedTuple):
    """The output and the results of a demo after Ctrl-C."""

    output: str
    figures: dict[str, int]
    differences: list[str]
    tables: DemoTables
    judged: list[Judged]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    root = tmp_path_factory.mktemp("demo")
    directory = root / "demo"
    process = DemoProcess(directory, root / "demo.log", "--rate", "50", "--ui")
    try:
        started = process.wait_until(lambda: "RUNNING" in process.output, PATIENCE_SECONDS)
        assert started, process.output
        dashboard = re.search(r"dashboard at (\S+)", process.output)[1]
        bad = process.wait_until(lambda: quarantined_on(dashboard) > 0, END_SECONDS)
        assert bad, process.output
        yield Demo(directory, process, dashboard)
    finally:
        process.kill_group()
        stop_broker(DemoFolders(directory).broker)


@pytest.fixture(scope="module")
def ended(demo: Demo) -> Ended:
    start_broker(demo.broker)  # if a failed test did not restart it
    demo.process.interrupt()
    assert demo.process.wait(END_SECONDS) == 0, demo.process.output
    output = demo.process.output
    return Ended(output, account_in(output), *compare_with_log(demo.directory))


def quarantined_on(dashboard: str) -> int:
    """The number of rows in quarantine on the page of the running demo."""
    with urllib.request.urlopen(f"{dashboard}api/pipelines", timeout=10) as answer:
        (pipeline,) = json.load(answer)["pipelines"]
    address = f"{dashboard}api/pipelines/{pipeline['key']}/update"
    with urllib.request.urlopen(address, timeout=10) as answer:
        return sum(card["quarantined"] for card in json.load(answer)["cards"])


def qualities(directory: Path) -> Iterator[dict[str, Any]]:
    """The data quality of each batch in the event log."""
    for file in (directory / "events").rglob("*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            event = json.loads(line)
            if event["event_type"] == "flow_progress":
                yield event["details"]["flow_progress"].get("data_quality", {})


def quarantined(directory: Path) -> int:
    return sum(quality.get("quarantined_records") or 0 for quality in qualities(directory))


def figure(page, card: str, name: str) -> int:
    """A figure as a card shows it."""
    return page.evaluate(ROWS_OF.replace("NAME", json.dumps(name)), card)


def failures(rule: str) -> int:
    """The number of rows that violated a rule, from its line on a page."""
    shown = re.search(r"([\d,]+) failed", rule)
    return int(shown[1].replace(",", "")) if shown else 0


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.05)


def poison(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(POISONED):
        producer.produce(TOPIC, f"poison {number}".encode())
    assert producer.flush(30) == 0


# -- while it runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_second_start_in_its_folder_is_refused_before_java_starts(
    demo: Demo, command: str
) -> None:
    arguments = {"demo": ["--events", "5"], "run": [str(demo.directory)]}[command]
    used = children_cpu_seconds()
    second = subprocess.run(
        [sys.executable, "-m", "penstock", command, *arguments, "--storage", str(demo.directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert children_cpu_seconds() - used < NO_JAVA_SECONDS
    assert second.returncode == 3, second.stderr
    assert "LEASE_HELD" in second.stderr
    assert re.search(rf"\b{demo.process.pid}\b", second.stderr), second.stderr


@pytest.fixture
def page(demo: Demo, open_page):
    page = open_page(demo.dashboard)
    page.set_default_timeout(1000 * PATIENCE_SECONDS)
    page.wait_for_selector(f"{SILVER} [data-state=RUNNING]")
    return page


def test_graph_is_updated_while_rows_flow(demo: Demo, page, problems: list[str]) -> None:
    page.wait_for_selector(".edge .flowing", state="attached")
    wait_for(lambda: figure(page, SILVER, "rows") > 0, PATIENCE_SECONDS)
    assert problems == []


def test_quarantined_rows_are_on_card_and_chart_once_committed(
    demo: Demo, page, open_page, problems: list[str]
) -> None:
    chart = open_page(page.url.split("#")[0] + page.get_attribute(SILVER, "href"))
    chart.set_default_timeout(1000 * PATIENCE_SECONDS)
    chart.wait_for_selector(".rules li")
    before = quarantined(demo.directory)
    broker = broker_status(demo.broker)
    assert broker is not None
    poison(broker.bootstrap_servers)
    wait_for(lambda: quarantined(demo.directory) >= before + POISONED, PATIENCE_SECONDS)
    wait_for(lambda: figure(page, SILVER, "quarantined") >= before + POISONED, SEEN_SECONDS)
    assert page.locator(f"{SILVER} .figure.alarm").count() >= 1
    failed = '.rules li:has-text("valid_json")'
    wait_for(lambda: failures(chart.inner_text(failed)) >= POISONED, SEEN_SECONDS)
    assert problems == []


def test_page_shows_why_no_rows_arrive_while_the_broker_is_down(
    demo: Demo, page, problems: list[str]
) -> None:
    rows = figure(page, BRONZE, "rows")
    kill_broker(demo.directory)
    page.wait_for_selector(f"{BRONZE} [data-state=NO_ANSWER]")
    page.wait_for_selector('.failure:has-text("orders_bronze waits: no broker of")')
    # The lag is unknown, not 0.
    assert not re.search(r"\d", page.inner_text(f'{BRONZE} .figure:has-text("lag")'))
    assert page.locator(f"{SILVER} [data-state=RUNNING]").count() == 1
    assert "is waiting for its source" in demo.process.output

    # The broker is back: the rows that were sent in the meantime are read.
    start_broker(demo.broker)
    page.wait_for_selector(f"{BRONZE} [data-state=RUNNING]")
    wait_for(lambda: figure(page, BRONZE, "rows") > rows, PATIENCE_SECONDS)
    wait_for(lambda: page.locator(".failure").count() == 0, 30.0)
    assert problems == []


# -- after Ctrl-C -------------------------------------------------------------------------------


def test_everything_is_processed_when_ctrl_c_ends_the_demo(demo: Demo, ended: Ended) -> None:
    assert "It balances." in ended.output
    assert ended.figures["pending"] == 0
    with pytest.raises(urllib.error.URLError):
        quarantined_on(demo.dashboard)


def test_balance_equals_the_kafka_log_row_by_row(ended: Ended) -> None:
    assert ended.differences == []
    read = ended.figures["read"]
    assert read == len(ended.judged)
    assert ended.figures["silver"] == len(ended.tables.silver)
    assert ended.figures["quarantined"] == len(ended.tables.quarantine) > 0
    assert ended.figures["duplicates"] == read - len({v.order for v in ended.judged}) > 0


def test_the_event_log_counts_every_rule_as_the_tables_do(demo: Demo, ended: Ended) -> None:
    counted: Counter[str] = Counter()
    for quality in qualities(demo.directory):
        for rule in quality.get("expectations", ()):
            counted[rule["name"]] += rule["failed_records"]
    tables = ended.tables
    by_rule = Counter(rule for row in tables.quarantine for rule in row["_failed_rules"])
    customers = [row["customer_id"] for row in (*tables.silver, *tables.quarantine)]
    unknown = sum(not (customer or "").startswith("C") for customer in customers)
    assert counted == by_rule + Counter(known_customer=unknown)


def test_dashboard_shows_a_finished_demo_from_the_event_log(
    demo: Demo, ended: Ended, open_page, problems: list[str]
) -> None:
    served = Served(str(demo.directory))
    try:
        page = open_page(served.address)
        page.wait_for_selector(f"{SILVER} [data-state=STOPPED], {SILVER} [data-state=COMPLETED]")
        assert figure(page, SILVER, "quarantined") == ended.figures["quarantined"]
        assert "no broker of" not in page.inner_text("main")
        assert page.locator('.warnings li:has-text("is waiting for its source")').count() == 1
    finally:
        served.stop()
    assert problems == []


# -- separate runs ------------------------------------------------------------------------------


@pytest.mark.long
def test_demo_ends_when_all_events_are_processed(
    start_demo: Callable[..., DemoProcess], demo_directory: Path
) -> None:
    demo = start_demo("--events", "3000", "--rate", "600")
    assert demo.wait(END_SECONDS) == 0, demo.output
    assert "It balances." in demo.output
    differences, tables, judged = compare_with_log(demo_directory)
    assert differences == []
    figures = account_in(demo.output)
    assert figures["read"] == len(judged) == 3000
    assert figures["silver"] == len(tables.silver)
    assert figures["pending"] == 0


@pytest.mark.long
def test_demo_resumes_from_its_folder(
    start_demo: Callable[..., DemoProcess], demo_directory: Path
) -> None:
    first = start_demo("--once", "--events", "500")
    assert first.wait(END_SECONDS) == 0, first.output
    again = start_demo("--rate", "300")
    more = r"orders_bronze +RUN|RUN streaming table orders_bronze [1-9]"
    assert again.wait_until(lambda: bool(re.search(more, again.output)), END_SECONDS), again.output
    again.interrupt()
    assert again.wait(END_SECONDS) == 0, again.output
    figures = account_in(again.output)
    assert "It balances." in again.output
    assert figures["pending"] == 0
    assert figures["read"] > 500
    assert compare_with_log(demo_directory)[0] == []
