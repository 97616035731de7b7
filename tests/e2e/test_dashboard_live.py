"""The pages beside a demo that really runs: what they show when its rows and its broker go bad."""

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from dashboard_process import Served
from demo_process import DemoProcess, account_in, kill_broker

from penstock._local.broker import broker_status, start_broker
from penstock._local.demo.places import TOPIC, DemoPlaces

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 120.0
# 3 holds on a machine that has some time left; the dashboard gets what others leave.
SEEN_SECONDS = float(os.environ.get("PENSTOCK_SEEN_SECONDS", "15"))
POISONED = 400
BRONZE, SILVER = '[data-card$=".orders_bronze"]', '[data-card$=".orders"]'
ROWS_OF = """card => {
    const figures = [...document.querySelectorAll(card + " .figure")];
    const found = figures.find((one) => one.firstChild.textContent === NAME);
    return Number(found.lastChild.textContent.replaceAll(",", ""));
}"""


def figure(page, card: str, name: str) -> int:
    """A figure of a card, as a reader sees it."""
    return page.evaluate(ROWS_OF.replace("NAME", json.dumps(name)), card)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.05)


def quarantined(directory: Path) -> int:
    """Rows that are in quarantine as far as the event log says."""
    rows = 0
    for file in (directory / "events").glob("*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            body = json.loads(line)["details"].get("flow_progress", {})
            rows += body.get("data_quality", {}).get("quarantined_records") or 0
    return rows


def poison(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(POISONED):
        producer.produce(TOPIC, f"poison {number}".encode())
    assert producer.flush(30) == 0


def test_a_running_demo_is_seen_through_bad_rows_and_a_dead_broker(
    start_demo: Callable[..., DemoProcess], demo_directory: Path, open_page, problems: list[str]
) -> None:
    broker = DemoPlaces(demo_directory).broker
    demo = start_demo("--rate", "50", "--ui")
    assert demo.wait_until(lambda: "dashboard at" in demo.output, PATIENCE_SECONDS), demo.output
    page = open_page(re.search(r"dashboard at (\S+)", demo.output)[1])
    page.set_default_timeout(1000 * PATIENCE_SECONDS)

    # The graph moves.
    page.wait_for_selector(f"{SILVER} [data-state=RUNNING]")
    page.wait_for_selector(".edge .flowing", state="attached")
    wait_for(lambda: figure(page, SILVER, "rows") > 0, PATIENCE_SECONDS)
    wait_for(lambda: quarantined(demo_directory) > 0, PATIENCE_SECONDS)

    # Poisoned rows are on the card and in the chart of the rule as soon as they are committed.
    chart = open_page(page.url.split("#")[0] + page.get_attribute(SILVER, "href"))
    chart.set_default_timeout(1000 * PATIENCE_SECONDS)
    chart.wait_for_selector(".rules li")
    before = quarantined(demo_directory)
    poison(broker_status(broker).bootstrap_servers)
    wait_for(lambda: quarantined(demo_directory) >= before + POISONED, PATIENCE_SECONDS)
    wait_for(lambda: figure(page, SILVER, "quarantined") >= before + POISONED, SEEN_SECONDS)
    assert page.locator(f"{SILVER} .figure.alarm").count() >= 1
    failed = '.rules li:has-text("valid_json")'
    wait_for(lambda: failures(chart.inner_text(failed)) >= POISONED, SEEN_SECONDS)

    # The broker dies: what waits is not 0, it is unknown, and the page says why.
    rows = figure(page, BRONZE, "rows")
    kill_broker(demo_directory)
    page.wait_for_selector(f"{BRONZE} [data-state=NO_ANSWER]")
    page.wait_for_selector('.failure:has-text("orders_bronze waits: no broker of")')
    assert not re.search(r"\d", page.inner_text(f'{BRONZE} .figure:has-text("lag")'))
    assert page.locator(f"{SILVER} [data-state=RUNNING]").count() == 1
    assert "waits for its source" in demo.output

    # It is back: so are the rows that were sent meanwhile.
    start_broker(broker)
    page.wait_for_selector(f"{BRONZE} [data-state=RUNNING]")
    wait_for(lambda: figure(page, BRONZE, "rows") > rows, PATIENCE_SECONDS)
    wait_for(lambda: page.locator(".failure").count() == 0, 30.0)

    # The dashboard beside the demo ends with it.
    page.context.close()
    chart.context.close()
    demo.interrupt()
    assert demo.wait(PATIENCE_SECONDS) == 0, demo.output
    figures = account_in(demo.output)
    assert "It balances." in demo.output
    assert figures["pending"] == 0

    # What is left is the event log, and all that happened is in it.
    served = Served(str(demo_directory))
    try:
        page = open_page(served.address)
        page.wait_for_selector(f"{SILVER} [data-state=STOPPED], {SILVER} [data-state=COMPLETED]")
        assert figure(page, SILVER, "quarantined") == figures["quarantined"]
        assert "does not answer" not in page.inner_text("main")
        assert page.locator('.warnings li:has-text("waits for its source")').count() == 1
    finally:
        served.stop()
    assert problems == []


def failures(rule: str) -> int:
    """How many rows broke a rule, of its line on a page."""
    found = re.search(r"([\d,]+) failed", rule)
    return int(found[1].replace(",", "")) if found else 0
