import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from made_events import definition, flow_progress, plan_warning, update_progress

from penstock._model.pipeline import EventLogSettings
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    HookProgress,
    PlanWarning,
    UpdateState,
)
from penstock._observe.log import EventLog
from penstock._observe.retention import clean
from penstock._ui.hub import whole_update
from penstock._ui.model import UpdateModel
from penstock._ui.recording import Recording
from penstock._ui.series import Series

ORDERS = "spark_catalog.default.orders"


def test_graph_and_metrics_come_from_the_event_log(demo):
    model = demo.recorded("latest").model
    cards = {card["name"]: card for card in model.cards()}
    assert set(cards) == {
        "orders_bronze",
        "orders",
        "revenue_5m",
        "customer_totals",
        "kafka orders",
    }
    assert cards["kafka orders"]["kind"] == "source"
    orders = cards["orders"]
    assert (orders["rows"], orders["quarantined"], orders["failed_checks"]) == (381, 6, 13)
    assert orders["state"] == "COMPLETED"
    assert orders["table_version"] == 1
    assert 600 < orders["watermark_delay_seconds"] < 700
    assert cards["orders_bronze"]["lag"] == 0
    assert cards["customer_totals"]["batch_seconds"] > 1
    edges = {
        (edge["from"].rpartition(".")[2], edge["to"].rpartition(".")[2]) for edge in model.edges()
    }
    assert edges == {
        ("source:kafka orders", "orders_bronze"),
        ("orders_bronze", "orders"),
        ("orders", "revenue_5m"),
        ("orders", "customer_totals"),
    }


def test_dataset_page_has_all_details(demo):
    page = demo.recorded("latest").model.dataset(ORDERS)
    assert page["declared_at"] == "pipeline.py:32"
    columns = {column["name"]: column["type"] for column in page["columns"]}
    assert columns["amount"] == "decimal(12,2)"
    rules = {rule["name"]: rule for rule in page["rules"]}
    assert (rules["valid_json"]["passed"], rules["valid_json"]["failed"]) == (386, 1)
    assert rules["known_customer"]["action"] == "warn"
    series = page["series"]
    assert sum(series["rules"]["valid_json"]["failed"]) == 1
    assert sum(series["rows_out"]) == page["card"]["rows"]
    assert [batch["batch_id"] for batch in page["batches"]] == [1, 0]
    assert page["upstream"] == ["spark_catalog.default.orders_bronze"]
    assert len(page["downstream"]) == 2
    state = page["flows"][0]["progress"]["state"]
    assert state[0]["operator"] == "dedupeWithinWatermark"
    bronze = demo.recorded("latest").model.dataset("spark_catalog.default.orders_bronze")
    partitions = bronze["flows"][0]["progress"]["sources"][0]["partitions"]
    assert [part["lag"] for part in partitions] == [0, 0, 0]
    assert sum(part["offset"] for part in partitions) == 400


def test_error_of_a_failed_flow_has_its_hint(shop):
    model = shop.recorded("latest").model
    error = model.dataset("spark_catalog.default.silver")["error"]
    assert error["condition"] == "EXPECTATION_VIOLATED"
    assert error["declared_at"] == "transformations/orders.py:19"
    assert error["message"].startswith("flow 'silver': a row violated expect_or_fail")
    assert error["hint"].startswith("nothing of the batch was written")
    assert "hint:" not in error["message"]
    states = {card["name"]: card["state"] for card in model.cards()}
    assert (states["silver"], states["revenue"]) == ("FAILED", "SKIPPED")


def test_pages_of_the_history_are_newest_first(shop):
    newest, oldest = shop.history()
    assert (newest.state, oldest.state) == ("FAILED", "COMPLETED")
    assert newest.full_refresh and not oldest.full_refresh
    assert newest.error["condition"] == "UPDATE_FAILED"
    assert 0 < oldest.ended - oldest.started < 60_000
    assert shop.history(limit=1) == [newest]
    assert shop.history(before=1) == [oldest]
    assert shop.recorded(oldest.update_id).model.head()["state"] == "COMPLETED"
    assert shop.recorded("no such update") is None


def test_update_has_ended_when_other_events_follow_its_end(tmp_path):
    origin = EventOrigin(pipeline_name="shop", update_id="u1")
    ahead = update_progress(replace(origin, update_id="u0"), UpdateState.COMPLETED, "completed")
    log = EventLog(tmp_path)
    log(replace(ahead, timestamp=datetime(2099, 1, 1, tzinfo=UTC)))
    log.close()
    log = EventLog(tmp_path)
    log(update_progress(origin, UpdateState.RUNNING, "running"))
    for _ in range(100):
        log(Event(origin, PlanWarning("late"), "w" * 1000))
    log(update_progress(origin, UpdateState.COMPLETED, "completed"))
    for _ in range(200):
        log(Event(origin, HookProgress(hook_name="h", status="FAILED"), "h" * 1000))
    log.close()
    summary, _ = Recording(key="shop", label="shop", directory=tmp_path).history()
    assert (summary.update_id, summary.state, summary.is_over) == ("u1", "COMPLETED", True)
    assert summary.ended - 3_600_000 < summary.started <= summary.ended


def test_new_events_are_read_when_the_log_grows(tmp_path):
    recording = Recording(key="p", label="p", directory=tmp_path / "events")
    assert recording.newest() is None
    assert recording.recorded("latest") is None
    log = EventLog(tmp_path / "events")
    origin = EventOrigin(pipeline_name="p", update_id="u1", dataset_name="t", flow_name="f")
    log(update_progress(origin, UpdateState.RUNNING, "runs"))
    recorded = recording.recorded("latest")
    assert recorded.model.head()["state"] == "RUNNING"
    version = recorded.version
    assert recording.recorded("latest").version == version
    log(flow_progress(origin, FlowStatus.RUNNING, "f runs"))
    assert recording.recorded("latest").version > version
    assert recorded.model.cards()[0]["state"] == "RUNNING"
    later = EventLog(tmp_path / "events")
    later(update_progress(EventOrigin(update_id="u2"), UpdateState.CREATED, ""))
    assert recording.recorded("latest").log.update_id == "u2"
    assert recording.newest() == "u2"
    log.close()
    later.close()


def test_a_command_is_not_the_newest_update_when_it_is_recorded_after_it(shop):
    newest, oldest = shop.history()
    assert shop.recorded("latest").log.update_id == newest.update_id
    log, origin = EventLog(shop.directory), EventOrigin(pipeline_name="shop", update_id="later")
    log(definition("create_update", origin, "", {"command": "maintain"}))
    log(update_progress(origin, UpdateState.RUNNING, ""))
    assert shop.history() == [newest, oldest] and shop.count() == 2
    assert shop.recorded("latest").log.update_id == shop.newest() == newest.update_id
    command = shop.recorded("later")
    assert command.model.head()["state"] == "RUNNING" and not shop.was_interrupted(command)
    log.close()


def test_datasets_are_known_when_the_newest_update_failed_before_its_analysis(shop):
    tables = shop.recorded("latest").model.tables()
    log, origin = EventLog(shop.directory), EventOrigin(pipeline_name="shop", update_id="later")
    log(update_progress(origin, UpdateState.FAILED, ""))
    log.close()
    assert shop.newest() == "later" and not shop.recorded("latest").model.tables()
    assert shop.defined().model.tables() == tables


def test_incomplete_line_waits_for_its_end(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes()
    cut = len(lines) - 300
    path.write_bytes(lines[:cut])
    recorded = demo.recorded("latest")
    before = recorded.model.folded
    with path.open("ab") as file:
        file.write(lines[cut:])
    assert demo.recorded("latest") is recorded
    assert recorded.model.folded > before
    assert recorded.model.head()["state"] == "COMPLETED"
    assert recorded.model.folded == lines.count(b"\n")


def test_log_is_read_after_invalid_lines(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    good = path.read_bytes()
    bad = [
        b"not json",
        b"\xff\xfe\x00",
        b'{"event_type":"update_progress","timestamp":"2026-11-21T00:00:00Z","details":{"update_progress":{"state":"DANCING"}}}',
        b'{"event_type":"flow_progress","timestamp":"2026-11-21T00:00:00Z","origin":{"dataset_name":"x"},"details":{"flow_progress":{}}}',
        json.dumps({"event_type": "a" * 100_000, "timestamp": "2026-11-21T00:00:00Z"}).encode(),
    ]
    path.write_bytes(b"\n".join(bad) + b"\n" + good)
    model = demo.recorded("latest").model
    assert model.head()["state"] == "COMPLETED"
    assert {card["name"] for card in model.cards()} >= {"orders", "revenue_5m"}


def test_sums_stay_exact_when_a_series_is_joined():
    series = Series()
    for number in range(2000):
        origin = EventOrigin(dataset_name="t", flow_name="f", batch_id=number)
        written = FlowMetrics(num_output_rows=number, quarantined_records=3)
        read = FlowMetrics(num_input_rows=number, batch_duration_ms=10)
        for metrics in (written, read):
            body = FlowProgress(FlowStatus.RUNNING, metrics)
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
            series.add(Event(origin, body, timestamp=at), body, since_ms=None)
    columns = series.columns()
    assert sum(columns["rows_out"]) == sum(range(2000))
    assert len(columns["at"]) <= 240
    assert set(columns["quarantined_per_batch"]) == {3}
    assert all(0 <= after - before <= 32_000 for before, after in pairwise(columns["at"]))
    newest = series.recent()[0]
    assert (newest["batch_id"], newest["rows_in"], newest["rows_out"]) == (1999, 1999, 1999)


def test_refreshes_have_a_duration_when_their_events_have_none():
    model = UpdateModel()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    origin = EventOrigin(update_id="u", dataset_name="mv", flow_name="mv")

    def at(seconds, event):
        return type(event)(**{**vars(event), "timestamp": start + timedelta(seconds=seconds)})

    model.fold(at(0, flow_progress(origin, FlowStatus.RUNNING, "")))
    metrics = FlowMetrics(num_output_rows=50)
    model.fold(at(2, flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics)))
    assert model.cards()[0]["batch_seconds"] == 2
    metrics = replace(metrics, batch_duration_ms=500, dropped_records=3, quarantined_records=2)
    model.fold(at(9, flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics)))
    assert model.dataset("mv")["series"]["rows_per_second"] == [25.0, 100.0]
    assert (model.cards()[0]["quarantined"], model.cards()[0]["dropped"]) == (2, 1)


def test_all_warnings_are_counted_when_the_newest_are_kept():
    model = UpdateModel()
    for number in range(30):
        model.fold(plan_warning(EventOrigin(update_id="u"), f"w{number}"))
    head = model.head()
    assert (head["all_warnings"], head["warnings"][-1]) == (30, "w29")
    assert len(head["warnings"]) < 30


def test_declared_sinks_and_views_are_in_the_graph():
    model = UpdateModel()
    origin = EventOrigin(pipeline_name="p", update_id="u")

    def declare(kind, body, **about):
        model.fold(definition(kind, EventOrigin(**{**vars(origin), **about}), "", body))

    declare("dataset_definition", {"dataset_type": "TEMPORARY_VIEW"}, dataset_name="c.s.view")
    declare("dataset_definition", {"dataset_type": "STREAMING_TABLE"}, dataset_name="c.s.table")
    declare("sink_definition", {"format": "kafka"}, sink_name="out")
    flows = {
        "into_table": {"output_dataset": "c.s.table", "input_datasets": ["c.s.view"]},
        "into_sink": {"output_sink": "out", "input_datasets": ["c.s.table"]},
    }
    for name, body in flows.items():
        declare("flow_definition", body, flow_name=name)
    failed = EventOrigin(update_id="u", sink_name="out", flow_name="into_sink")
    error = ErrorInfo(condition="SINK_GONE", class_name="FlowError", message="gone")
    model.fold(flow_progress(failed, FlowStatus.FAILED, "", error=error))
    cards = {card["id"]: card for card in model.cards()}
    assert {name: card["kind"] for name, card in cards.items()} == {
        "c.s.table": "streaming table",
        "out": "sink",
        "c.s.view": "temporary view",
    }
    assert (cards["out"]["state"], cards["out"]["error"]) == ("FAILED", "SINK_GONE")
    assert {(edge["from"], edge["to"]) for edge in model.edges()} == {
        ("c.s.view", "c.s.table"),
        ("c.s.table", "out"),
    }
    assert model.dataset("out")["format"] == "kafka"
    assert model.dataset("c.s.table")["downstream"] == ["out"]


def test_update_is_interrupted_when_its_process_ended(tmp_path):
    log = EventLog(tmp_path / "events")
    origin = EventOrigin(pipeline_name="p", update_id="u1")
    log(update_progress(origin, UpdateState.RUNNING, "runs"))
    flow = EventOrigin(update_id="u1", dataset_name="t", flow_name="f")
    log(flow_progress(flow, FlowStatus.RUNNING, "f runs"))
    log.close()
    recording = Recording(key="p", label="p", directory=tmp_path / "events")
    status = tmp_path / "state" / "status.json"
    status.parent.mkdir()

    def is_gone():
        body = whole_update(recording, "latest")
        gone = body["update"]["is_gone"]
        assert recording.history()[0].is_gone == gone
        assert body["cards"][0]["state"] == ("INTERRUPTED" if gone else "RUNNING")
        assert body["flows"][0]["state"] == body["cards"][0]["state"]
        return gone

    assert not is_gone()
    status.write_text("{ torn")
    assert not is_gone()
    status.write_text(json.dumps({"update_id": "u1", "process_id": os.getpid()}))
    assert not is_gone()
    flows = [{"state": "FAILED"}, {"state": "RUNNING"}]
    status.write_text(json.dumps({"update_id": "u1", "process_id": os.getpid(), "flows": flows}))
    assert recording.history()[0].failed_flows == 1
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    status.write_text(json.dumps({"update_id": "u1", "process_id": ended.pid}))
    assert is_gone()
    status.write_text(json.dumps({"update_id": "another", "process_id": ended.pid}))
    assert not is_gone()
    # On a shared storage, the process id may belong to another machine.
    here = {"update_id": "u1", "process_id": ended.pid, "host": socket.gethostname()}
    status.write_text(json.dumps(here))
    assert is_gone()
    status.write_text(json.dumps({**here, "host": "another-machine"}))
    assert not is_gone()


def test_long_log_is_read_in_parts(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    batches = [line for line in lines if b'"num_output_rows"' in line]
    many = batches * (7_000_000 // len(b"".join(batches)))
    path.write_bytes(b"".join(lines[:20]) + b"".join(many) + b"".join(lines[20:]))
    shares = [demo.recorded("latest").read_percent]
    while shares[-1] is not None and len(shares) < 10:
        shares.append(demo.recorded("latest").read_percent)
    assert 20 < shares[0] < 60
    assert shares[-1] is None
    demo.recorded("latest")
    model = demo.recorded("latest").model
    assert model.head()["state"] == "COMPLETED"
    assert model.folded == len(lines) + len(many)


def test_log_is_read_again_after_a_cleanup(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    measured = [line for line in lines if b'"event_type":"stream_progress"}' in line]
    many = measured * (7_000_000 // len(b"".join(measured)))
    numbered = (
        re.sub(rb'"seq_no":\d+', b'"seq_no":%d' % number, line)
        for number, line in enumerate([*lines[:20], *many, *lines[20:]])
    )
    path.write_bytes(b"".join(numbered))
    assert demo.recorded("latest").read_percent is not None
    structure = demo.recorded("latest").model.structure
    settings = EventLogSettings(keep_progress_days=1e-6)
    clean(path.parent, settings, own="", now=time.time() + 60)
    (rolled_up,) = path.parent.iterdir()
    assert rolled_up != path
    recorded = demo.recorded("latest")
    assert recorded.model.structure > structure
    assert recorded.read_percent is None
    assert recorded.model.head()["state"] == "COMPLETED"
    assert recorded.model.folded == rolled_up.read_bytes().count(b"\n") < len(lines) + 10


def test_page_keeps_its_data_when_the_log_is_deleted(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    assert demo.recorded("latest").model.folded == len(path.read_bytes().splitlines())
    # As if the file was deleted after it was listed: a folder cannot be opened either.
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    recorded = demo.recorded("latest")
    assert recorded.model.head()["pipeline_name"] == "orders-demo"
