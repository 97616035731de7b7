"""The dashboard as a process, and in a real browser."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from dashboard_process import Served
from deltalake import CommitProperties, write_deltalake
from made_events import (
    column_lineage,
    definition,
    flow_progress,
    lag_progress,
    stream_progress,
    update_progress,
)

from penstock._cli.dashboard import dashboard_beside
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import (
    ErrorInfo,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.log import EventLog
from penstock._runtime.lease_paths import pipeline_lease_path

pytestmark = pytest.mark.e2e

LOGS = Path(__file__).parents[1] / "unit" / "_ui" / "logs"


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


class Story:
    """An update whose events a test writes into a real event log."""

    def __init__(self, directory: Path) -> None:
        self.log = EventLog(directory)
        self.origin = EventOrigin(pipeline_name="story", update_id="story-1")
        self.batches = 0

    def begin(self) -> None:
        self.log(update_progress(self.origin, UpdateState.RUNNING, "runs"))
        for name, reads in (("bronze", []), ("silver", ["c.s.bronze"])):
            table = replace(self.origin, dataset_name=f"c.s.{name}")
            body = {
                "dataset_type": "STREAMING_TABLE",
                "declared_at": "story.py:3",
                "expectations": [{"name": "good", "condition": "x > 0", "action": "drop"}],
            }
            self.log(definition("dataset_definition", table, "", body))
            flow = replace(self.origin, flow_name=name)
            body = {"output_dataset": f"c.s.{name}", "input_datasets": reads}
            self.log(definition("flow_definition", flow, "", body))
            self.state(name, FlowStatus.QUEUED)

    def state(self, name: str, status: FlowStatus, error: ErrorInfo | None = None) -> None:
        origin = replace(self.origin, dataset_name=f"c.s.{name}", flow_name=name)
        self.log(flow_progress(origin, status, f"{name} {status}", error=error))

    def batch(self, name: str, rows: int, broken: int) -> None:
        origin = replace(
            self.origin, dataset_name=f"c.s.{name}", flow_name=name, batch_id=self.batches
        )
        counts = ExpectationCounts(
            name="good", dataset=f"c.s.{name}", passed_records=rows, failed_records=broken
        )
        metrics = FlowMetrics(
            num_output_rows=rows,
            num_input_rows=rows + broken,
            batch_duration_ms=500,
            backlog_records=7,
            dropped_records=broken,
            quarantined_records=broken,
        )
        self.log(
            flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics, expectations=[counts])
        )
        self.batches += 1

    def waits(self, name: str) -> None:
        """Two sources with backlog: files, and rows that retention is about to remove."""
        origin = replace(self.origin, dataset_name=f"c.s.{name}", flow_name=name)
        kafka = {
            "description": "KafkaV2[Subscribe[orders]]",
            "endOffset": {"orders": {"0": 10}},
            "latestOffset": {"orders": {"0": 25}},
        }
        files = {"description": "FileStreamSource[file:/in]", "endOffset": {"logOffset": 1}}
        self.log(stream_progress(origin, {"batchId": 1, "sources": [files, kafka]}))
        part = {"topic": "orders", "partition": "0", "offset": 10, "earliest_offset": 2}
        part |= {"latest_offset": 25, "records": 15, "seconds_behind": 90.0, "loss": "expected"}
        part |= {"seconds_to_loss": 600.0, "loss_by": "time", "lost_records": None}
        measured = [
            {"source": files["description"], "kind": "files", "files": 7, "bytes": 1200},
            {"source": kafka["description"], "kind": "kafka", "partitions": [part]},
        ]
        self.log(lag_progress(origin, {"sources": measured}))
        columns = {"total": [[0, "amount", "AGGREGATION"]], "day": []}
        made = {"sources": [{"dataset": "c.s.bronze"}], "columns": columns, "influences": []}
        self.log(column_lineage(origin, made))


def test_dashboard_serves_until_it_is_stopped() -> None:
    served = Served(str(LOGS / "shop"))
    pipelines = json.loads(get(served.address + "api/pipelines"))["pipelines"]
    assert [pipeline["name"] for pipeline in pipelines] == ["shop"]
    assert "app.js" in get(served.address)
    with urllib.request.urlopen(served.address + "api/pipelines/shop/stream") as stream:
        assert [stream.readline() for _ in range(3)] == [
            b"retry: 2000\n",
            b"\n",
            b"event: update\n",
        ]
        assert served.stop(signal.SIGINT) == 0
        assert stream.read().startswith(b"data: ")
    assert served.process.stderr.read() == ""


def test_public_address_requires_a_generated_token() -> None:
    served = Served("--host", "0.0.0.0", str(LOGS / "shop"))
    try:
        port = re.search(r":(\d+)/", served.address)[1]
        token = served.address.partition("?token=")[2]
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(f"http://127.0.0.1:{port}/api/pipelines")
        assert refused.value.code == 401
        listed = f"http://127.0.0.1:{port}/api/pipelines"
        assert "shop" in get(listed, authorization=f"Bearer {token}")
    finally:
        served.stop()


def test_dashboard_of_an_update_ends_with_the_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = PipelineSettings(name="story", storage=str(tmp_path), root=str(tmp_path))
    with dashboard_beside(settings, enabled=True):
        address = re.search(r"http://\S+", capsys.readouterr().err)[0]
        assert json.loads(get(address + "api/pipelines"))["pipelines"][0]["total"] == 0
        Story(tmp_path / "events").begin()
        assert json.loads(get(address + "api/pipelines"))["pipelines"][0]["total"] == 1
    with pytest.raises(urllib.error.URLError):
        get(address)


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    served = Served(str(LOGS / "demo"), str(LOGS / "shop"))
    yield served.address
    served.stop()


def test_finished_update_is_shown_when_no_process_runs(open_page, problems, recorded: str) -> None:
    page = open_page(recorded)
    page.click("text=orders-demo")
    page.wait_for_selector('[data-card$=".orders"] [data-state=COMPLETED]')
    assert page.locator(".card").count() == 5
    assert page.locator(".edge").count() == 4
    page.keyboard.press("/")
    page.keyboard.type("revenue")
    assert page.locator(".card:not(.dim)").count() == 1
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    focused = page.evaluate("document.activeElement.dataset.card")
    assert focused == "spark_catalog.default.orders"
    page.keyboard.press("Enter")
    page.wait_for_selector("text=declared at pipeline.py:32")
    page.wait_for_selector(".chart canvas")
    assert page.locator(".rules li").count() == 5
    assert "386 of 387" not in page.inner_text(".rules")
    assert "1 failed" in page.inner_text(".rules li:first-child")
    page.click("nav >> text=Updates")
    page.wait_for_selector(".update")
    assert problems == []


def test_metrics_are_marked_incomplete_while_a_long_log_is_read(open_page, recorded) -> None:
    body = json.loads(get(recorded + "api/pipelines/shop/update")) | {"read_percent": 40}
    body["update"] |= {"has_ended": False, "is_gone": False}
    stream = f"event: update\ndata: {json.dumps(body)}\n\n"
    page = open_page(recorded)
    page.route(
        "**/stream*", lambda route: route.fulfill(body=stream, content_type="text/event-stream")
    )
    for place in ("#/shop", "#/shop/dataset/spark_catalog.default.silver"):
        page.goto(recorded + place)
        page.wait_for_selector("text=Reading a long event log: 40 %")
        assert page.locator("text=idle, or stuck").count() == 0


def test_failed_update_shows_its_hint(open_page, problems, recorded) -> None:
    page = open_page(recorded + "#/shop")
    box = page.wait_for_selector(".failure")
    text = box.inner_text()
    assert "EXPECTATION_VIOLATED" in text
    assert "transformations/orders.py:19" in text
    assert "Hint" in text and "expect_or_drop" in text
    page.click("#tab-timeline")
    assert page.locator(".timeline .line").count() == 5
    edges = "[...document.querySelectorAll('.tick:last-child, .track')]"
    ends = f"{edges}.map((each) => each.getBoundingClientRect().right)"
    assert len({round(end) for end in page.evaluate(ends)}) == 1
    page.click(".dots li:first-child a")
    page.wait_for_selector("text=This is an earlier update")
    page.wait_for_selector("h1 [data-state=COMPLETED]")
    assert problems == []


DRAWN = """() => {
  const { prototype } = CanvasRenderingContext2D;
  const fill = prototype.fillText;
  window.drawn = [];
  prototype.fillText = function (text, ...rest) {
    drawn.push(text);
    fill.call(this, text, ...rest);
  };
}"""


def test_graph_is_updated_by_events(open_page, problems, tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.begin()
    served = Served(str(tmp_path))
    try:
        page = open_page(served.address)
        page.wait_for_selector('[data-card="c.s.silver"] [data-state=QUEUED]')
        page.set_default_timeout(15_000)
        story.state("silver", FlowStatus.RUNNING)
        page.wait_for_selector('[data-card="c.s.silver"] [data-state=RUNNING]')
        page.wait_for_selector(".link-live")
        page.evaluate(DRAWN)
        story.batch("silver", rows=90, broken=10)
        page.wait_for_selector('[data-card="c.s.silver"] .figure.alarm:has-text("quarantined")')
        page.wait_for_selector('[data-card="c.s.silver"] .figure:has-text("200")')
        page.click('[data-card="c.s.silver"]')
        page.wait_for_selector('.rules >> text="10 failed"')
        page.wait_for_function("drawn.some((text) => /^[0-9]+:[0-9]+:[0-9]+$/.test(text))")
        story.batch("silver", rows=90, broken=33)
        page.wait_for_selector('.rules >> text="43 failed"')
        story.waits("silver")
        page.wait_for_selector('.waiting:has-text("7 files not read yet · 1.2 kB")')
        page.wait_for_selector(
            '.waiting tr:has-text("orders"):has-text("2 min"):has-text("10 min")'
        )
        page.wait_for_selector('tr:has-text("total"):has-text("bronze.amount aggregation")')
        assert page.evaluate(CONTRAST) == []
        error = ErrorInfo(
            condition="SINK_GONE", class_name="FlowError", message="gone\n    hint: bring it back"
        )
        story.state("silver", FlowStatus.FAILED, error)
        page.wait_for_selector('.failure:has-text("SINK_GONE"):has-text("bring it back")')
        page.click(".crumbs a")
        status = tmp_path / "state" / "status.json"
        status.parent.mkdir()
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        status.write_text(json.dumps({"update_id": "story-1", "process_id": ended.pid}))
        page.set_default_timeout(30_000)
        page.wait_for_selector('.failure:has-text("This update was interrupted")')
        status.unlink()
        story.log(update_progress(story.origin, UpdateState.FAILED, "failed", error=error))
        page.wait_for_selector("h1 [data-state=FAILED]")
        assert problems == []
    finally:
        served.stop()


def test_late_response_for_another_page_is_ignored(open_page, problems, recorded: str) -> None:
    page = open_page(recorded + "#/shop")
    page.wait_for_selector(".card")
    held, dataset = [], "location.hash = '#/shop/dataset/spark_catalog.default."
    page.route(re.compile(r"/dataset\?.*default\.bronze"), lambda route: held.append(route))
    page.evaluate(f"{dataset}bronze'")
    page.wait_for_selector('.empty:has-text("Loading")')
    page.wait_for_function("true")  # the route is called while the page waits
    page.evaluate(f"{dataset}silver'")
    page.wait_for_selector('h1:has-text("silver")')
    body = get(recorded + "api/pipelines/shop/dataset?name=spark_catalog.default.bronze")
    for route in held:
        route.fulfill(body=body, content_type="application/json")
    page.evaluate("fetch('api/pipelines').then((answer) => answer.text())")
    page.wait_for_function("document.title.includes('silver')")
    assert "silver" in page.inner_text("h1")
    page.evaluate("location.hash = '#/shop/update/removed-long-ago'")
    page.click('.empty:has-text("not in the event log") a')
    page.wait_for_selector(".card")
    # The page of an unknown dataset does not show the previous page.
    page.evaluate("location.hash = '#/shop/dataset/nothing'")
    page.wait_for_selector('.empty:has-text("This dataset is not in this update")')
    assert len(held) == 1
    assert [text for text in problems if "404" not in text] == []


def test_page_recovers_from_a_broken_stream_or_clock(open_page, problems, tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.begin()
    served = Served(str(tmp_path))
    try:
        page = open_page(served.address)
        page.wait_for_selector(".link-live")
        # A clock two hours behind, and a proxy whose server does not respond.
        page.add_init_script("const now = Date.now; Date.now = () => now() - 7_200_000;")
        refused = []

        def refuse(route) -> None:
            refused.append(route)
            route.fulfill(status=503, body="nobody is there")

        page.route("**/stream?*", refuse, times=1)
        page.reload()
        page.wait_for_selector(".link-lost")
        page.wait_for_selector(".link-live")
        assert len(refused) == 1
        page.wait_for_selector("text=/running for \\d/")
        assert "no event for" not in page.inner_text(".page-head")
        page.click("nav >> text=Updates")
        page.wait_for_selector(".update")
        assert [text for text in problems if "503" not in text] == []
    finally:
        served.stop()


def test_name_that_looks_like_html_is_shown_as_text(open_page, problems, tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    name = 'c.s.<img src="/x" onerror="alert(1)">/%2e#?&' + "_long" * 20
    table = replace(story.origin, dataset_name=name)
    story.log(definition("dataset_definition", table, "", {"dataset_type": "STREAMING_TABLE"}))
    body = {"output_dataset": name, "external_inputs": ["json /data/<b>in</b>/100%"]}
    story.log(definition("flow_definition", replace(story.origin, flow_name="f"), "", body))
    error = ErrorInfo(condition="<i>", class_name="E", message="<script>alert(2)</script>")
    flow = replace(table, flow_name="f")
    story.log(flow_progress(flow, FlowStatus.FAILED, "", error=error))
    story.log(flow_progress(replace(table, flow_name="g"), FlowStatus.RUNNING, name))
    served = Served(str(tmp_path))
    try:
        page = open_page(served.address, width=390)
        page.wait_for_selector(".failure pre >> text=<script>alert(2)</script>")
        page.click(".card:not(.small)")
        page.wait_for_selector("h1 >> text=onerror")
        _check(page, "dataset")
        page.click(".chip")
        page.wait_for_selector("h1 >> text=<b>in</b>/100%")
        page.go_back()
        page.wait_for_selector("h1 >> text=onerror")
        assert problems == []
    finally:
        served.stop()


def test_compared_updates_are_shown_side_by_side(open_page, problems, recorded) -> None:
    page = open_page(recorded + "#/shop/updates")
    page.click("text=Compare two updates")
    page.wait_for_selector('[data-change=changed]:has-text("silver"):has-text("3 → 0")')
    page.wait_for_selector('del:has-text("drop: amount > 0")')
    page.wait_for_selector('ins:has-text("fail: amount > 0")')
    page.select_option('.choose label:has-text("Before") select', index=0)
    page.wait_for_selector('[role=status]:has-text("Both updates have the same definitions")')
    assert problems == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("stored") / "shop"
    store_shop(root)
    served = Served(str(root))
    yield served.address
    served.stop()


def store_shop(root: Path) -> None:
    """The shop with its tables: silver has rows, and more than a page of others in quarantine."""
    shutil.copytree(LOGS / "shop", root / "events")
    table = root / "tables" / "spark_catalog" / "default" / "silver"
    rows = {
        "order_id": list(range(60)),
        "customer": [None if n % 7 == 0 else f"customer {n}" for n in range(60)],
        "amount": [n / 4 for n in range(60)],
        "password": ["hunter2"] * 60,
    }
    write_deltalake(str(table), pa.table(rows))
    for batch in range(3):
        broken = [
            {"order_id": 100 * batch + n, "amount": -n, "customer": None, "token": "tok-secret"}
            for n in range(20)
        ]
        rules = [
            ["positive_amount", *(["known_customer"] if n % 4 == 0 else [])] for n in range(20)
        ]
        body = {
            "_failed_rules": rules,
            "_row": [json.dumps(row) for row in broken],
            "_source": ['{"file":"file:/srv/shop/data/orders/orders-1.json"}'] * 20,
        }
        record = {"penstock": 1, "flow": "silver", "app": "a", "batch": batch}
        said = CommitProperties(custom_metadata={"userMetadata": json.dumps(record)})
        write_deltalake(
            f"{table}_quarantine", pa.table(body), mode="append", commit_properties=said
        )


def test_many_quarantined_rows_are_shown_and_searchable(open_page, problems, stored) -> None:
    page = open_page(stored)
    page.click("nav >> text=Quarantine")
    page.wait_for_selector('.chip:has-text("positive_amount") >> text=60')
    page.click(".refused-tables h2 a")
    page.wait_for_selector('h1:has-text("Quarantine of silver")')
    page.wait_for_selector('.refused-row:first-child:has-text("batch 2"):has-text("flow silver")')
    assert page.locator(".refused-row").count() == 25
    text = page.inner_text(".refused")
    assert "tok-secret" not in text and "[redacted]" in text
    page.click("text=Show older rows")
    page.wait_for_selector(".refused-row >> nth=49")
    assert page.locator(".refused-row").count() == 50
    page.click('.chip:has-text("known_customer")')
    page.wait_for_selector('[role=status]:has-text("15 found in the 60 rows")')
    page.fill('input[type="search"]', '"order_id": 104')
    page.wait_for_selector('[role=status]:has-text("1 found in the 60 rows")')
    assert "104" in page.inner_text(".refused")
    page.fill('input[type="search"]', "tok-secret")
    page.wait_for_selector('.empty:has-text("No rows match")')
    assert problems == []


def test_rows_of_a_table_are_shown_on_request(open_page, problems, stored) -> None:
    page = open_page(stored + "#/shop/dataset/spark_catalog.default.silver")
    page.click("text=Show rows")
    page.wait_for_selector('#rows:has-text("50 of 60, version 0")')
    page.wait_for_selector('#versions:has-text("version 0, 1 file")')
    assert "write" in page.inner_text("section:has(#versions) tbody")
    text = page.inner_text(".rows")
    assert "customer 8" in text and "NULL" in text and "hunter2" not in text
    page.goto(stored + "#/shop/dataset/spark_catalog.default.bronze")
    page.click("text=Show rows")
    page.wait_for_selector('.notice:has-text("not written yet")')
    assert problems == []


# Keeps the lease until it has received two signals, like an update that stops slowly.
HOLDER = """
import signal, sys
from pathlib import Path
from penstock._runtime.lease import Lease
with Lease.acquire(Path(sys.argv[1]), holder={"command": "penstock run"}):
    signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
    print("holds", flush=True)
    signal.pause()
    signal.pause()
"""


def test_user_with_the_token_can_stop_and_start_a_pipeline(
    open_page, problems, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    spec = shop / "penstock.yaml"
    spec.write_text("name: shop\nstorage: storage\n")
    (shop / "pipeline.py").write_text("")
    lock = pipeline_lease_path(str(shop / "storage"))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
    served = Served(str(shop), "--control", "--token", "token-of-the-test")
    try:
        bare = served.address.partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(bare)
        page = open_page(served.address)
        assert "token" not in page.url
        page.on("dialog", lambda dialog: dialog.accept())
        page.wait_for_selector('.controls:has-text("held by penstock run")')
        page.click("text='Stop'")
        assert holder.stdout.readline() == "heard\n"
        page.wait_for_selector('.controls:has-text("stops after the batches in flight")')
        page.click("text=Stop now")
        assert holder.wait(10) == 0
        page.wait_for_selector('.controls:has-text("not running")')
        spec.write_text("name: shop\nstorage: storage\nwrong: key\n")
        page.click("text=Run once")
        page.wait_for_selector('.job[open] summary:has-text("failed with exit code 2")')
        assert "wrong" in page.inner_text(".job pre")
        assert page.evaluate(CONTRAST) == []
        assert problems == []
    finally:
        served.stop()
        holder.kill()
        holder.wait()


def test_user_with_the_token_can_replay_selected_rows(open_page, problems, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    store_shop(shop / "storage")
    spec = shop / "penstock.yaml"
    spec.write_text("name: shop\nstorage: storage\n")
    (shop / "pipeline.py").write_text("")
    served = Served(str(shop), "--control", "--token", "token-of-the-test")
    try:
        page = open_page(served.address)
        requests: list[str] = []
        page.on("dialog", lambda dialog: (requests.append(dialog.message), dialog.accept()))
        place = "#/shop/quarantine/spark_catalog.default.silver"
        page.goto(served.address.partition("?")[0] + place)
        page.wait_for_selector('button:has-text("Replay all 60 rows")')
        # Started commands fail immediately: the test checks only the requests of the page.
        spec.write_text("name: shop\nstorage: storage\nwrong: key\n")
        page.wait_for_selector(".refused-row input >> nth=24")
        assert page.locator(".refused-row input").count() == 25
        page.focus(".refused-row:first-child input")
        page.keyboard.press("Space")
        page.wait_for_selector('button:has-text("Replay the marked row")')
        page.check('label:has-text("All 25 shown") input')
        page.click('.chip:has-text("known_customer")')
        page.wait_for_selector('[role=status]:has-text("25 marked, 18 of them not shown")')
        page.wait_for_selector('button:has-text("Replay the 15 rows that violated known_customer")')
        assert page.evaluate(CONTRAST) == []
        page.click("text=Replay 25 marked rows")
        page.wait_for_selector('.job summary:has-text("25 marked rows"):has-text("failed")')
        assert "again for 25 marked rows in quarantine?" in requests[0]
        # The replay failed, so the rows are still marked.
        page.click("text=Clear marks")
        page.wait_for_selector(".refused-row input:checked", state="detached")
        page.click("text=Replay the 15 rows")
        page.wait_for_selector('.job summary:has-text("that violated known_customer")')
        assert page.locator("text=marked rows").count() == 0
        assert problems == []
    finally:
        served.stop()


# Contrast ratio of every text and its background, as defined by WCAG 2.
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push(`${ratio.toFixed(2)} ${node.data.trim().slice(0, 30)}`);
  }
  return weak;
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_is_legible_and_nothing_overflows(
    open_page, problems, recorded: str, stored: str, width: int, dark: bool
) -> None:
    page = open_page(recorded, width=width, dark=dark)
    places = [
        "#/",
        "#/shop",
        "#/shop/updates",
        "#/shop/compare",
        "#/demo/dataset/spark_catalog.default.orders",
    ]
    _check_places(page, recorded, places)
    page = open_page(stored, width=width, dark=dark)
    quarantine = "#/shop/quarantine"
    places = [quarantine, f"{quarantine}/spark_catalog.default.silver/known_customer"]
    _check_places(page, stored, places)
    page.goto(stored + "#/shop/dataset/spark_catalog.default.silver")
    page.click("text=Show rows")
    page.wait_for_selector(".rows td")
    _check(page, "rows")
    assert problems == []


def _check_places(page, address: str, places: list[str]) -> None:
    for place in places:
        page.goto(address + place)
        page.wait_for_selector("#main h1, #main .panel")
        page.wait_for_selector(".empty", state="detached")
        _check(page, place)


def _check(page, place: str) -> None:
    assert page.evaluate(CONTRAST) == [], place
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, place
