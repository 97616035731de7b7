"""Alerts: when they fire and are resolved, and how they are delivered to receivers."""

import contextlib
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from made_events import (
    definition,
    details,
    flow_progress,
    lag_progress,
    planning_information,
    stream_progress,
    update_progress,
)
from message_receivers import Receiver, mail_server

from penstock._model.alert import AlertKind, AlertRule, AlertSettings, AlertTarget
from penstock._model.redaction import forget_secrets, remember_secret
from penstock._observe.alert_delivery import Alerts, slack_form
from penstock._observe.alerts import AlertBook
from penstock._observe.bus import EventBus
from penstock._observe.codec import time_text
from penstock._observe.events import (
    AlertProgress,
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    SourceRowsLost,
    UpdateState,
)
from penstock._observe.log import EventLog
from penstock._observe.schemas import recorded_schemas
from penstock._project.spec import load_settings
from penstock.errors import SpecError

START = datetime(2026, 3, 4, 10, tzinfo=UTC)
UPDATE = EventOrigin(pipeline_name="shop", update_id="8c1f")
FLOW = EventOrigin(
    pipeline_name="shop", update_id="8c1f", dataset_name="c.s.silver", flow_name="silver"
)


def at(seconds: float, event: Event) -> Event:
    from dataclasses import replace

    return replace(event, timestamp=START + timedelta(seconds=seconds))


def backlog(seconds: float, records: int) -> Event:
    metrics = FlowMetrics(num_input_rows=1, batch_duration_ms=1, backlog_records=records)
    return at(seconds, flow_progress(FLOW, FlowStatus.RUNNING, "", metrics=metrics))


def lag(seconds: float, behind: float | None, loss: str, left: float | None = None) -> Event:
    body = {"seconds_behind": behind, "loss": loss, "seconds_to_loss": left}
    return at(seconds, lag_progress(FLOW, body))


def counts(seconds: float, passed: int, failed: int) -> Event:
    rule = ExpectationCounts(
        name="positive", dataset="c.s.silver", passed_records=passed, failed_records=failed
    )
    metrics = FlowMetrics(num_output_rows=passed)
    event = flow_progress(FLOW, FlowStatus.RUNNING, "", metrics=metrics, expectations=[rule])
    return at(seconds, event)


def stream(seconds: float, watermark: str | None, rows: int) -> Event:
    body: dict[str, Any] = {"sources": [{"numInputRows": rows}, {}]}
    if watermark is not None:
        body["eventTime"] = {"watermark": watermark}
    return at(seconds, stream_progress(FLOW, body))


def dataset(*columns: tuple[str, Any], name: str = "c.s.silver", nullable: bool = True) -> Event:
    fields = [{"name": key, "type": kind, "nullable": nullable} for key, kind in columns]
    body = {"schema_json": json.dumps({"type": "struct", "fields": fields})}
    origin = EventOrigin(pipeline_name="shop", update_id="8c1f", dataset_name=name)
    return at(0, definition("dataset_definition", origin, "", body))


def notices_of(book: AlertBook, *events: Event) -> list[tuple[str, str, float | None, int]]:
    return [
        (notice.about, notice.state, notice.value, notice.suppressed)
        for event in events
        for notice in book.observe(event)
    ]


def book(kind: AlertKind, threshold: float = 0.0, repeat: float = 60.0, **more: Any) -> AlertBook:
    rule = AlertRule(name="a", kind=kind, threshold=threshold, **more)
    return AlertBook((rule,), repeat_seconds=repeat)


def test_retention_alert_fires_below_its_threshold_and_ignores_unknown_lag():
    alert_book = book(AlertKind.RETENTION, 3600)
    notices = notices_of(
        alert_book,
        lag(0, 5, "expected", 9000),
        lag(1, 5, "expected", 3000),
        lag(2, None, "unknown"),
        lag(3, 0, "none"),
    )
    assert [notice[:2] for notice in notices] == [
        ("flow silver", "firing"),
        ("flow silver", "resolved"),
    ]
    gone = notices_of(book(AlertKind.RETENTION, 3600), lag(0, 5, "happened", 0.0))
    assert [notice[1] for notice in gone] == ["firing"]
    assert (
        notices_of(book(AlertKind.RETENTION, 3600, flow="gold"), lag(0, 5, "happened", 0.0)) == []
    )


def test_retention_alert_fires_when_rows_were_lost_before_the_first_lag():
    bus, emitted = EventBus(), list[Event]()
    bus.subscribe(emitted.append)
    rule = AlertRule(name="a", kind=AlertKind.RETENTION, threshold=3600)
    alerts = Alerts(bus, UPDATE, AlertSettings(rules=(rule,)))
    bus.subscribe(alerts)
    bus.emit(at(0, Event(FLOW, SourceRowsLost(({"topic": "orders", "partition": 0},)), "")))
    bus.emit(lag(1, 0, "none"))
    alerts.close(timeout_seconds=30)
    notices = [details(event) for event in emitted if event.event_type == "alert_progress"]
    assert [(notice["state"], notice.get("value")) for notice in notices] == [
        ("firing", 0.0),
        ("resolved", None),
    ]


def test_lag_alert_fires_and_is_resolved():
    alert_book = book(AlertKind.LAG, 60)
    notices = notices_of(
        alert_book,
        lag(0, 60, "none"),
        lag(1, 61, "none"),
        lag(2, None, "unknown"),
        lag(3, 0, "none"),
    )
    assert [notice[:3] for notice in notices] == [
        ("flow silver", "firing", 61.0),
        ("flow silver", "resolved", 0.0),
    ]


def test_backlog_alert_fires_and_is_resolved():
    alert_book = book(AlertKind.BACKLOG, 100, flow="SILVER")
    assert notices_of(
        alert_book, backlog(0, 100), backlog(1, 101), backlog(2, 500), backlog(3, 7)
    ) == [
        ("flow silver", "firing", 101.0, 0),
        ("flow silver", "resolved", 7.0, 0),
    ]
    assert notices_of(book(AlertKind.BACKLOG, 100, flow="gold"), backlog(0, 900)) == []


def test_backlog_alert_fires_from_measured_lag_when_no_batch_ends():
    def measured(seconds: float, *records: int | None, problem: str | None = None) -> Event:
        parts = [{"topic": "t", "partition": str(n), "records": r} for n, r in enumerate(records)]
        body = {"sources": [{"source": "Kafka", "partitions": parts, "problem": problem}]}
        return at(seconds, lag_progress(FLOW, body))

    alert_book = book(AlertKind.BACKLOG, 100)
    assert (
        notices_of(
            alert_book, backlog(0, 5), measured(10, 90, None), measured(20, 90, 9, problem="x")
        )
        == []
    )
    assert notices_of(alert_book, measured(30, 90, 20)) == [("flow silver", "firing", 110.0, 0)]


def test_notifications_are_limited_when_a_state_lasts_or_flaps():
    alert_book = book(AlertKind.BACKLOG, 100, repeat=60)
    lasting = [backlog(second, 500) for second in range(0, 130, 10)]
    assert [state for _, state, _, _ in notices_of(alert_book, *lasting)] == ["firing"] * 3
    alert_book = book(AlertKind.BACKLOG, 100, repeat=60)
    flapping = [backlog(second, 500 if second % 2 == 0 else 1) for second in range(62)]
    assert notices_of(alert_book, *flapping) == [
        ("flow silver", "firing", 500.0, 0),
        ("flow silver", "resolved", 1.0, 0),
        ("flow silver", "firing", 500.0, 58),
        ("flow silver", "resolved", 1.0, 0),
    ]


def test_alerts_do_not_wait_for_a_clock_that_was_set_back():
    hour, running = 3600, flow_progress(FLOW, FlowStatus.RUNNING, "")
    alert_book = book(AlertKind.BACKLOG, 100, repeat=60)
    levels = [backlog(hour, 500), backlog(hour + 1, 1), backlog(0, 500), backlog(1, 500)]
    states = [state for _, state, _, _ in notices_of(alert_book, *levels)]
    assert states == ["firing", "resolved", "firing"]
    alert_book = book(AlertKind.NO_PROGRESS, 30)
    assert notices_of(alert_book, at(hour, running)) == []
    assert alert_book.tick(START) == []
    assert len(alert_book.tick(START + timedelta(seconds=31))) == 1
    alert_book, watermark = book(AlertKind.WATERMARK, 30), "2026-03-04T09:00:00.000Z"
    seconds = (hour, hour, 0, 31, 32)
    events = [stream(second, watermark, 1) for second in seconds]
    assert [state for _, state, _, _ in notices_of(alert_book, *events)] == ["firing"]


def test_failure_rate_is_computed_over_the_last_batches():
    alert_book = book(AlertKind.FAILURE_RATE, 0.1, dataset="silver", batches=2, min_rows=50)
    assert notices_of(alert_book, counts(0, 0, 10)) == []  # fewer rows than `min_rows`
    assert notices_of(alert_book, counts(1, 90, 0), counts(2, 80, 20)) == [
        ("c.s.silver: positive", "firing", pytest.approx(20 / 190), 0)
    ]
    assert notices_of(alert_book, counts(3, 100, 0), counts(4, 100, 0)) == [
        ("c.s.silver: positive", "resolved", 0.1, 0)
    ]
    assert notices_of(book(AlertKind.FAILURE_RATE, 0.1, rule="other"), counts(0, 0, 9)) == []


def test_no_progress_alert_fires_after_its_threshold():
    alert_book = book(AlertKind.NO_PROGRESS, 30)
    assert notices_of(alert_book, at(0, flow_progress(FLOW, FlowStatus.RUNNING, ""))) == []
    assert alert_book.tick(START + timedelta(seconds=30)) == []
    (notice,) = alert_book.tick(START + timedelta(seconds=31))
    assert (notice.state, notice.about) == ("firing", "flow silver")
    assert notices_of(alert_book, backlog(40, 0)) == [("flow silver", "resolved", None, 0)]
    for end in (FlowStatus.COMPLETED, FlowStatus.IDLE):
        assert notices_of(alert_book, at(41, flow_progress(FLOW, FlowStatus.RUNNING, ""))) == []
        assert notices_of(alert_book, at(42, flow_progress(FLOW, end, ""))) == []
        assert alert_book.tick(START + timedelta(hours=9)) == []


def test_no_progress_alert_fires_for_a_later_refresh_of_a_view():
    alert_book = book(AlertKind.NO_PROGRESS, 30)
    first = [flow_progress(FLOW, status, "") for status in (FlowStatus.RUNNING, FlowStatus.IDLE)]
    unchanged = planning_information(FLOW, "NO_OP", "no source changed")
    assert notices_of(alert_book, *(at(0, event) for event in (*first, unchanged))) == []
    assert alert_book.tick(START + timedelta(hours=9)) == []
    refresh = at(40_000, planning_information(FLOW, "COMPLETE_RECOMPUTE", "a source changed"))
    assert notices_of(alert_book, refresh) == []
    (notice,) = alert_book.tick(START + timedelta(seconds=40_031))
    assert (notice.state, notice.value) == ("firing", 31.0)


def test_restarts_of_a_flow_that_finishes_no_batch_are_not_progress():
    alert_book = book(AlertKind.NO_PROGRESS, 30)
    for start in range(0, 40, 10):
        running = at(start, flow_progress(FLOW, FlowStatus.RUNNING, ""))
        retried = at(start + 1, flow_progress(FLOW, FlowStatus.QUEUED, "silver failed"))
        assert notices_of(alert_book, running, retried) == (
            [("flow silver", "firing", 31.0, 0)] if start == 30 else []
        )


def test_no_progress_alert_fires_while_other_flows_are_busy():
    alert_book = book(AlertKind.NO_PROGRESS, 30)
    other = EventOrigin(pipeline_name="shop", update_id="8c1f", flow_name="bronze")
    metrics = FlowMetrics(num_input_rows=1)
    busy = [
        at(second, flow_progress(other, FlowStatus.RUNNING, "", metrics=metrics))
        for second in range(1, 33)
    ]
    started = [at(0, flow_progress(o, FlowStatus.RUNNING, "")) for o in (FLOW, other)]
    assert notices_of(alert_book, *started, *busy) == [("flow silver", "firing", 31.0, 0)]


def test_watermark_alert_fires_when_it_does_not_advance_and_is_resolved():
    def states(*events: Event) -> list[tuple[str, float | None]]:
        return [(item[1], item[2]) for item in notices_of(book(AlertKind.WATERMARK, 60), *events)]

    ten, eleven = "2026-03-04T10:00:00.000Z", "2026-03-04T11:00:00.000Z"
    stuck = [stream(second, ten, 5) for second in range(0, 100, 10)]
    assert states(*stuck, stream(100, eleven, 5)) == [("firing", 70.0), ("resolved", None)]
    # After an hour without rows. Spark advances the watermark in the batch after the new rows.
    assert states(stream(0, ten, 5), stream(3600, ten, 5), stream(3601, eleven, 0)) == []
    assert (
        states(stream(0, ten, 5), *(stream(second, ten, 0) for second in range(10, 900, 10))) == []
    )
    assert states(*(stream(second, None, 5) for second in range(0, 900, 10))) == []
    ended = at(100, flow_progress(FLOW, FlowStatus.COMPLETED, ""))
    assert states(*stuck, ended)[1:] == [("resolved", None)]
    assert notices_of(book(AlertKind.WATERMARK, 60, flow="gold"), *stuck) == []


def test_schema_change_alert_fires_until_the_dataset_has_rows(
    tmp_path: Path,
):
    inner = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True}]}
    wider = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True}]}
    before = (("id", "integer"), ("name", "string"), ("inner", inner))
    log = EventLog(tmp_path)
    log(dataset(*before))
    log(dataset(*before, name="c.s.gold"))
    log(flow_progress(FLOW, FlowStatus.QUEUED, ""))
    log.close()
    broken = EventLog(tmp_path)  # an update that could not start
    broken(update_progress(UPDATE, UpdateState.FAILED, ""))
    broken.close()
    schemas = recorded_schemas(tmp_path)
    assert set(schemas) == {"c.s.silver", "c.s.gold"}
    rule = AlertRule(name="a", kind=AlertKind.SCHEMA_CHANGE)
    alert_book = AlertBook((rule,), repeat_seconds=60, schemas=schemas)
    same = dataset(*reversed(before), nullable=False)
    assert notices_of(alert_book, same, dataset(("new", "string"), name="c.s.unheard_of")) == []
    after = dataset(("id", "long"), ("email", "string"), ("inner", wider))
    (notice,) = alert_book.observe(after)
    assert notice.about == "c.s.silver"
    assert notice.message == (
        "the columns of c.s.silver changed since the last update: email added, name removed, "
        "id changed from integer to long, inner changed"
    )
    assert [state for _, state, _, _ in notices_of(alert_book, after, counts(1, 1, 0))] == [
        "resolved"
    ]
    few = AlertBook(
        (AlertRule(name="a", kind=AlertKind.SCHEMA_CHANGE, dataset="gold"),),
        repeat_seconds=60,
        schemas=schemas,
    )
    assert notices_of(few, after) == []
    assert [about for about, *_ in notices_of(few, dataset(("id", "long"), name="c.s.gold"))] == [
        "c.s.gold"
    ]
    assert recorded_schemas(tmp_path / "nowhere") == {}


def test_schema_change_alert_fires_for_new_fields_of_a_source():
    info = ErrorInfo(condition="SCHEMA_EVOLVED", class_name="X", message="new: tip", fatal=False)
    event = flow_progress(FLOW, FlowStatus.STARTING, "", error=info)
    notices = notices_of(book(AlertKind.SCHEMA_CHANGE, flow="silver"), at(0, event), backlog(1, 0))
    assert [(about, state) for about, state, _, _ in notices] == [
        ("flow silver", "firing"),
        ("flow silver", "resolved"),
    ]
    assert notices_of(book(AlertKind.SCHEMA_CHANGE, flow="gold"), at(0, event)) == []


def test_failure_alert_has_the_error_and_its_hint():
    info = ErrorInfo(condition="PATH_NOT_FOUND", class_name="X", message="gone\n  hint: mount it")
    alert_book = book(AlertKind.FAILED)
    failed = flow_progress(FLOW, FlowStatus.FAILED, "", error=info)
    (notice,) = alert_book.observe(failed)
    assert notice.message == "flow silver failed: [PATH_NOT_FOUND] gone\n  hint: mount it"
    (notice,) = alert_book.observe(update_progress(UPDATE, UpdateState.FAILED, "", error=info))
    assert notice.about == "update"


# -- delivery -----------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


def deliver(
    targets: list[AlertTarget], *, until: threading.Event | None = None, **more: Any
) -> list[Event]:
    """Let a backlog alert fire, and return the events about its delivery.

    `close` allows only one more attempt, so it is called after `until` is set.
    """
    bus = EventBus()
    emitted: list[Event] = []
    bus.subscribe(emitted.append)
    rule = AlertRule(name="lag", kind=AlertKind.BACKLOG, threshold=100)
    settings = AlertSettings(rules=(rule,), targets=tuple(targets))
    alerts = Alerts(bus, UPDATE, settings, pauses_seconds=(0.01, 0.01), **more)
    bus.subscribe(alerts)
    bus.emit(backlog(0, 500))
    assert until is None or until.wait(30)
    # `close` waits until all notifications are delivered.
    alerts.close(timeout_seconds=30)
    return [event for event in emitted if event.event_type == "alert_progress"]


def test_every_kind_of_alert_gets_its_events():
    bus, emitted = EventBus(), list[Event]()
    bus.subscribe(emitted.append)
    events = {
        AlertKind.LAG: lag(0, 90, "expected", 40.0),
        AlertKind.RETENTION: lag(0, 90, "expected", 40.0),
        AlertKind.BACKLOG: backlog(0, 90),
        AlertKind.FAILURE_RATE: counts(0, 0, 10),
        AlertKind.SCHEMA_CHANGE: dataset(("id", "long")),
        AlertKind.FAILED: at(0, update_progress(UPDATE, UpdateState.FAILED, "")),
    }
    rules = [AlertRule(name=k, kind=k, threshold=60 if k != "failure_rate" else 0) for k in events]
    watermark = AlertRule(name="watermark", kind=AlertKind.WATERMARK, threshold=60)
    earlier = details(dataset(("id", "integer")))["schema_json"]
    alerts = Alerts(
        bus,
        UPDATE,
        AlertSettings(rules=(*rules, watermark)),
        schemas={"c.s.silver": earlier},
    )
    bus.subscribe(alerts)
    still = [stream(second, "2026-03-04T10:00:00.000Z", 5) for second in (0, 90, 91)]
    for event in (*still, *events.values()):
        bus.emit(event)
    alerts.close(timeout_seconds=30)
    fired = [details(e)["alert"] for e in emitted if e.event_type == "alert_progress"]
    assert sorted(fired) == sorted([*events, "watermark"])


def test_webhooks_get_the_generic_or_the_slack_payload(receiver: Receiver):
    secrets = {"${secret:hook}": f"{receiver.url}/T0/B0", "${secret:key}": "k-1"}
    (event,) = deliver(
        [
            AlertTarget(webhook=f"{receiver.url}/plain", headers={"X-Key": "${secret:key}"}),
            AlertTarget(webhook="${secret:hook}", slack=True),
        ],
        resolve_secrets=lambda text: secrets.get(text, text),
    )
    (plain, headers, body), (slack, _, message) = receiver.requests
    assert (plain, slack, headers["X-Key"]) == ("/plain", "/T0/B0", "k-1")
    assert (body["version"], body["alert"], body["state"], body["value"]) == (
        *(1, "lag", "firing", 500.0),
    )
    assert set(message) == {"text", "blocks"}
    assert "backlog of 500 records" in message["blocks"][0]["text"]["text"]
    assert details(event)["told"] == ["webhook", "Slack webhook"]
    assert event.level == "WARN"


def test_failed_delivery_is_reported_without_secrets(receiver: Receiver):
    receiver.answers = [500, 503, 200]
    third = threading.Event()
    receiver.on_request = lambda: len(receiver.requests) % 3 or third.set()
    target = AlertTarget(webhook=receiver.url)
    (event,) = deliver([target], until=third)
    assert (len(receiver.requests), event.error) == (3, None)
    assert details(event)["told"] == [target.label]
    receiver.answers = [302, 302, 302]
    remember_secret("T0-secret")
    try:
        target = AlertTarget(webhook=f"{receiver.url}/T0-secret")
        third.clear()
        (event,) = deliver([target], until=third)
    finally:
        forget_secrets()
    assert [path for path, _, _ in receiver.requests[3:]] == ["/T0-secret"] * 3
    assert event.error is not None
    assert event.error.condition == "ALERT_NOT_DELIVERED"
    assert "302" in event.error.message
    assert "T0-secret" not in json.dumps(details(event))


def test_undelivered_alerts_are_reported_when_a_receiver_hangs_at_the_end():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts a request and never responds
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        bus, emitted = EventBus(), list[Event]()
        bus.subscribe(emitted.append)
        rules = (
            AlertRule(name="lag", kind=AlertKind.BACKLOG, threshold=100),
            AlertRule(name="failed", kind=AlertKind.FAILED, threshold=0),
        )
        targets = (
            AlertTarget(command=(sys.executable, "-c", "")),
            AlertTarget(webhook=url),
            AlertTarget(webhook=f"{url}/other"),
        )
        alerts = Alerts(bus, UPDATE, AlertSettings(rules=rules, targets=targets))
        bus.subscribe(alerts)
        bus.emit(backlog(0, 500))
        silent.settimeout(30)
        connection, _ = silent.accept()
        bus.emit(at(1, update_progress(UPDATE, UpdateState.FAILED, "it broke")))
        began = time.monotonic()
        alerts.close(timeout_seconds=0.2)
        assert time.monotonic() - began < 5
        connection.close()
    progress = [event for event in emitted if event.event_type == "alert_progress"]
    first, second = (details(event) for event in progress)
    assert (first["alert"], first["told"]) == ("lag", [targets[0].label])
    assert (second["alert"], second["told"]) == ("failed", [])
    assert [len(entry["not_told"]) for entry in (first, second)] == [2, 3]
    assert "not notified before the update ended" in first["not_told"][0]
    assert {event.error.condition for event in progress if event.error} == {"ALERT_NOT_DELIVERED"}
    # Neither the blocked thread nor a second `close` reports more events.
    alerts.close()
    assert [event for event in emitted if event.event_type == "alert_progress"] == progress


def test_alerts_continue_after_an_invalid_event(caplog: pytest.LogCaptureFixture):
    bus, emitted = EventBus(), list[Event]()
    bus.subscribe(emitted.append)
    rule = AlertRule(name="lag", kind=AlertKind.BACKLOG, threshold=100)
    alerts = Alerts(bus, UPDATE, AlertSettings(rules=(rule,)))
    alerts(definition("update_progress", UPDATE, "of another version", {"state": "DREAMING"}))
    invalid_progress = {"eventTime": {"watermark": "2026-03-04T09:00:00.000Z"}, "sources": [5]}
    alerts(
        definition("stream_progress", backlog(0, 0).origin, "", {"progress_json": invalid_progress})
    )
    alerts(backlog(0, 500))
    alerts.close(timeout_seconds=30)
    assert [event.event_type for event in emitted] == ["alert_progress"]
    assert "could not be evaluated" in caplog.text


def test_command_target_gets_json_on_stdin(tmp_path: Path):
    out = tmp_path / "out.json"
    code = f"import sys; open({str(out)!r}, 'w').write(sys.stdin.read())"
    bad = AlertTarget(command=(sys.executable, "-c", "import sys; sys.exit(3)"))
    (event,) = deliver([AlertTarget(command=(sys.executable, "-c", code)), bad])
    assert json.loads(out.read_text(encoding="utf-8"))["about"] == "flow silver"
    (error,) = details(event)["not_told"]
    assert "exit status 3" in error


def test_mail_is_sent():
    with mail_server() as server:
        sender = "penstock@example.org"
        mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": sender}
        (event,) = deliver([AlertTarget(mail_to=("ops@example.org",), mail=mail)])
    assert event.error is None
    assert "Subject: [shop] lag is firing" in server.lines
    assert any(line.startswith("rcpt TO:<ops@example.org>") for line in server.lines)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing makes a certificate")
@pytest.mark.parametrize("tls", ["starttls", "ssl"])
def test_mail_is_not_sent_when_the_server_certificate_is_not_trusted(tls: str, tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    lines: list[str] = []

    class Server(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection = self.request
            with contextlib.suppress(OSError):
                if tls == "starttls":
                    connection.sendall(b"220 here\r\n")
                    for answer in (b"250-here\r\n250 STARTTLS\r\n", b"220 go on\r\n"):
                        connection.recv(1024)
                        connection.sendall(answer)
                connection = context.wrap_socket(connection, server_side=True)
                if tls == "ssl":
                    connection.sendall(b"220 here\r\n")
                lines.append(connection.recv(1024).decode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])
        mail = {"host": "localhost", "port": port, "tls": tls, "user": "me", "password": "pass-1"}
        (event,) = deliver([AlertTarget(mail_to=("ops@example.org",), mail=mail)])
        server.shutdown()
    assert event.error is not None
    assert "CERTIFICATE_VERIFY_FAILED" in event.error.message
    assert lines == []


def test_slack_message_escapes_markup():
    notice = AlertProgress(
        alert="a",
        kind="failed",
        state="firing",
        about="flow x",
        value=None,
        threshold=0,
        message="<!channel> & <b>",
        pipeline="p",
        update_id="u",
        timestamp=time_text(START),
    )
    assert "&lt;!channel&gt; &amp; &lt;b&gt;" in slack_form(notice)["text"]


# -- settings -----------------------------------------------------------------------------------


def _settings(tmp_path: Path, alerts: str) -> AlertSettings:
    (tmp_path / "pipeline.yaml").write_text(f"name: shop\nalerts:\n{alerts}", encoding="utf-8")
    return load_settings(tmp_path, environ={}).alerts


def test_alert_settings_are_read(tmp_path: Path):
    settings = _settings(
        tmp_path,
        """\
  repeat_seconds: 60
  rules:
    - {name: bad, failure_rate: 0.05, dataset: silver, min_rows: 100}
    - {name: stuck, no_progress_seconds: 900}
    - {name: down, failed: true}
    - {name: still, watermark_seconds: 600}
    - {name: columns, schema_change: true, dataset: silver}
  to:
    - {webhook: "${secret:alerts/slack}", format: slack}
    - {command: [logger, -t, penstock]}
    - {email: {to: ops@example.org, from: p@example.org, password: "${secret:mail}"}}
""",
    )
    assert [(rule.name, rule.kind, rule.threshold) for rule in settings.rules] == [
        ("bad", AlertKind.FAILURE_RATE, 0.05),
        ("stuck", AlertKind.NO_PROGRESS, 900.0),
        ("down", AlertKind.FAILED, 0.0),
        ("still", AlertKind.WATERMARK, 600.0),
        ("columns", AlertKind.SCHEMA_CHANGE, 0.0),
    ]
    assert [target.label for target in settings.targets] == [
        *("Slack webhook", "command logger", "mail")
    ]
    assert settings.targets[2].mail["password"] == "${secret:mail}"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("alerts", "message"),
    [
        ("  rules: [{name: a}]\n", "exactly one of `failure_rate`"),
        ("  rules: [{name: a, backlog: 1, failed: true}]\n", "exactly one of"),
        ("  rules: [{name: a, schema_change: false}]\n", "exactly one of"),
        ("  rules: [{name: a, failure_rate: 5}]\n", "less than 1"),
        ("  rules: [{name: a, backlog: 1}, {name: a, backlog: 2}]\n", "rules with the same name"),
        ("  rules: [{name: a, backlogs: 1}]\n", "did you mean `backlog`"),
        ("  to: [{format: slack}]\n", "exactly one of `webhook`"),
        ("  to: [{webhook: x, format: teams}]\n", "format"),
    ],
)
def test_invalid_alert_settings_are_refused(tmp_path: Path, alerts: str, message: str):
    with pytest.raises(SpecError, match=message):
        _settings(tmp_path, alerts)
