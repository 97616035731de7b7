"""Metrics and traces over OTLP, received by a real server and decoded."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from made_events import (
    definition,
    details,
    flow_progress,
    observed,
    planning_information,
    stream_progress,
    update_progress,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from otlp_receiver import OtlpReceiver, Span, points
from planted_secrets import planted

from penstock._model.export import MetricsSettings, TelemetrySettings
from penstock._model.pipeline import PipelineSettings
from penstock._model.redaction import forget_secrets
from penstock._observe.bus import EventBus
from penstock._observe.delivery import Delivery, Signal
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    TelemetryProgress,
    UpdateState,
)
from penstock._observe.exports import Exports
from penstock._observe.metrics import METRICS, Kind, metric_series
from penstock._observe.state import BATCH_BUCKETS, ObservedUpdate
from penstock._observe.telemetry import is_wanted
from penstock._observe.telemetry_metrics import otel_name, otel_unit
from penstock._observe.telemetry_traces import BATCHES_PER_MINUTE
from penstock._project.spec import load_settings
from penstock.errors import MissingExtraError, SetupError, SpecError

UPDATE_ID = "8c1f0190-5520-43ff-9066-b4b80ace2cb1"
UPDATE = EventOrigin(pipeline_name="shop", update_id=UPDATE_ID)
START = datetime(2026, 3, 4, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACEPARENT", "TRACESTATE", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    server = OtlpReceiver()
    yield server
    server.close()


def at(seconds: float, event: Event) -> Event:
    return replace(event, timestamp=START + timedelta(seconds=seconds))


def about(name: str, batch: int | None = None) -> EventOrigin:
    return replace(UPDATE, flow_name=name, dataset_name=f"c.s.{name}", batch_id=batch)


def batch(name: str, number: int, second: float) -> list[Event]:
    began = (START + timedelta(seconds=second)).isoformat(timespec="milliseconds")
    rule = ExpectationCounts(
        name="positive", dataset=f"c.s.{name}", passed_records=7, failed_records=3
    )
    written = FlowMetrics(num_output_rows=7, dropped_records=3, quarantined_records=3)
    read = FlowMetrics(num_input_rows=10, batch_duration_ms=400)
    progress = {
        "batchId": number,
        "timestamp": began.replace("+00:00", "Z"),
        "durationMs": {"addBatch": 350, "walCommit": 20, "triggerExecution": 400},
        "sources": [{"numInputRows": 10}],
    }
    idle = {**progress, "durationMs": {"latestOffset": 2, "triggerExecution": 2}}
    origin, running = about(name, number), FlowStatus.RUNNING
    events = [
        flow_progress(
            origin, running, "", metrics=written, expectations=[rule], table_version=number + 1
        ),
        flow_progress(origin, running, "", metrics=read),
        stream_progress(origin, progress),
        stream_progress(origin, idle),
    ]
    return [at(second + 0.4, event) for event in events]


def update(*middle: Event, end: UpdateState = UpdateState.COMPLETED, seconds: float = 9) -> Any:
    return [
        at(0, definition("create_update", UPDATE, "", {"continuous": False})),
        at(0.5, update_progress(UPDATE, UpdateState.RUNNING, "")),
        *middle,
        at(seconds, update_progress(UPDATE, end, "")),
    ]


def settings(root: Path, url: str = "", **more: Any) -> PipelineSettings:
    telemetry = TelemetrySettings(is_wanted=True, endpoint=url, **more)
    return PipelineSettings(name="shop", storage=str(root), root=str(root), telemetry=telemetry)


def sent(chosen: PipelineSettings, events: list[Event], resolve: Any = str) -> list[Event]:
    """Export events, and return the events of the progress."""
    bus, emitted = EventBus(), list[Event]()
    bus.subscribe(emitted.append)
    exports = Exports(chosen, bus, UPDATE, observed(bus), resolve)
    for event in events:
        bus.emit(event)
    exports.close()
    return [event for event in emitted if event.event_type == "telemetry_progress"]


def test_an_update_is_one_trace_with_its_flows_and_their_batches(
    receiver: OtlpReceiver, tmp_path: Path
):
    error = ErrorInfo(condition="BOOM", class_name="FlowError", message="it broke")
    retry_error = ErrorInfo(condition="DOWN", class_name="E", message="away", fatal=False)
    view = about("totals")
    events = update(
        at(1, flow_progress(about("bronze"), FlowStatus.QUEUED, "")),
        at(1, flow_progress(about("left_out"), FlowStatus.EXCLUDED, "")),
        at(2, flow_progress(about("bronze"), FlowStatus.STARTING, "")),
        *batch("bronze", 0, 2),
        at(3, flow_progress(about("bronze"), FlowStatus.STARTING, "", error=retry_error)),
        *batch("bronze", 1, 3),
        at(5, flow_progress(about("bronze"), FlowStatus.COMPLETED, "")),
        at(5, flow_progress(view, FlowStatus.RUNNING, "")),
        at(5, planning_information(view, "COMPLETE_RECOMPUTE", "new rows")),
        at(6, flow_progress(view, FlowStatus.RUNNING, "", metrics=FlowMetrics(num_output_rows=4))),
        at(7, flow_progress(view, FlowStatus.FAILED, "", error=error)),
        at(8, flow_progress(about("hanging"), FlowStatus.RUNNING, "")),
        end=UpdateState.FAILED,
    )
    progress = sent(settings(tmp_path, receiver.url), events)
    spans = receiver.spans
    assert [span.name for span in spans] == [
        "batch bronze",
        "batch bronze",
        "flow bronze",
        "refresh totals",
        "flow totals",
        "flow hanging",
        "update shop",
    ]
    assert {span.trace.hex() for span in spans} == {UUID(UPDATE_ID).hex}
    first, second, bronze, refresh, totals, hanging, whole = spans
    assert whole.parent == b""
    assert {span.parent for span in (bronze, totals, hanging)} == {whole.span}
    assert {first.parent, second.parent} == {bronze.span}
    assert refresh.parent == totals.span

    def seconds(span: Span) -> tuple[float, float]:
        zero = START.timestamp() * 1e9
        return (span.began - zero) / 1e9, (span.ended - zero) / 1e9

    assert [seconds(span) for span in spans] == [
        (2, pytest.approx(2.4)),
        (3, pytest.approx(3.4)),
        (2, 5),
        (5, 6),
        (5, 7),
        (8, 9),
        (0, 9),
    ]
    assert first.attributes == {
        "penstock.flow": "bronze",
        "penstock.dataset": "c.s.bronze",
        "penstock.batch_id": 0,
        "penstock.rows.input": 10,
        "penstock.rows.output": 7,
        "penstock.rows.dropped": 3,
        "penstock.rows.quarantined": 3,
        "penstock.table_version": 1,
        "penstock.phase.addBatch_seconds": 0.35,
        "penstock.phase.walCommit_seconds": 0.02,
    }
    assert bronze.attributes["penstock.rows.output"] == 14
    assert bronze.attributes["penstock.status"] == "COMPLETED"
    (restart,) = bronze.events
    assert (restart["exception.message"], restart["penstock.fatal"]) == ("away", False)
    assert bronze.status == 0
    assert (totals.status, totals.message) == (2, "[BOOM] it broke")
    assert totals.events[0]["exception.type"] == "FlowError"
    assert whole.attributes["penstock.state"] == "FAILED"
    assert whole.attributes["penstock.mode"] == "triggered"
    assert {resource["service.name"] for resource in receiver.resources} == {"shop"}
    by_signal = {details(e)["signal"]: e for e in progress}
    assert details(by_signal["traces"])["sent"] == len(spans)
    assert details(by_signal["metrics"])["sent"] == 1
    assert {event.error for event in progress} == {None}


def test_exported_metrics_match_the_documented_ones(receiver: OtlpReceiver, tmp_path: Path):
    events = update(
        at(1, definition("flow_definition", about("bronze"), "", {"output_dataset": "c.s.bronze"})),
        at(2, flow_progress(about("bronze"), FlowStatus.RUNNING, "")),
        *batch("bronze", 0, 2),
        *batch("bronze", 1, 3),
    )
    before = time.time_ns()
    sent(settings(tmp_path, receiver.url, traces=False), events)
    assert receiver.messages("/v1/traces") == []
    fold = ObservedUpdate()
    for event in events:
        fold(event)
    exported = receiver.metrics
    assert list(exported) == [otel_name(series.metric) for series in metric_series(fold)]
    for series in metric_series(fold):
        metric, sent_metric = series.metric, exported[otel_name(series.metric)]
        assert (sent_metric.description, sent_metric.unit) == (metric.help, otel_unit(metric))
        kinds = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}
        assert sent_metric.WhichOneof("data") == kinds[metric.kind]
        if metric.kind is Kind.HISTOGRAM:
            assert (
                sent_metric.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
            )
            (point,) = points(sent_metric).values()
            assert list(point.explicit_bounds) == list(BATCH_BUCKETS)
            assert (point.count, point.sum) == (2, pytest.approx(0.8))
            assert sum(point.bucket_counts) == 2
            assert not point.HasField("min")
            continue
        if metric.kind is Kind.COUNTER:
            assert sent_metric.sum.is_monotonic
            assert sent_metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        assert {key: point.as_double for key, point in points(sent_metric).items()} == series.values
        assert all(before <= point.time_unix_nano for point in points(sent_metric).values())
    assert exported["penstock_flow_phase_seconds"].unit == "s"
    assert exported["penstock_flow_output_rows"].unit == ""
    assert otel_unit(METRICS["penstock_flow_backlog_bytes"]) == "By"
    assert otel_unit(METRICS["penstock_flow_last_batch_timestamp_seconds"]) == "s"


def test_spans_of_small_batches_are_limited_and_counted(receiver: OtlpReceiver, tmp_path: Path):
    many = [batch("bronze", number, 2 + number / 100) for number in range(BATCHES_PER_MINUTE + 9)]
    late = batch("bronze", 900, 70)
    events = update(
        at(2, flow_progress(about("bronze"), FlowStatus.RUNNING, "")),
        *(event for events_of_batch in many for event in events_of_batch),
        *late,
        seconds=80,
    )
    sent(settings(tmp_path, receiver.url, metrics=False), events)
    assert receiver.messages("/v1/metrics") == []
    names = [span.name for span in receiver.spans]
    assert names.count("batch bronze") == BATCHES_PER_MINUTE + 1
    (flow,) = [span for span in receiver.spans if span.name == "flow bronze"]
    assert flow.attributes["penstock.batches_without_span"] == 9
    assert flow.attributes["penstock.rows.input"] == 10 * (len(many) + 1)


def test_opentelemetry_variables_are_used(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=orders")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-prod")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,db=a://u:pw@h/d")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    parent = "0af7651916cd43dd8448eb211c80319c"
    monkeypatch.setenv("TRACEPARENT", f"00-{parent}-b7ad6b7169203331-01")
    chosen = PipelineSettings(name="shop", storage=str(tmp_path), root=str(tmp_path))
    bus = EventBus()
    exports = Exports(chosen, bus, UPDATE, observed(bus), str)
    began, *rest = update()
    bus.emit(began)
    deadline = time.monotonic() + 20
    while not receiver.bodies and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert [path for path, _ in receiver.bodies] == ["/v1/metrics"]  # before the update ends
    for event in rest:
        bus.emit(event)
    exports.close()
    (span,) = receiver.spans
    assert span.trace.hex() == parent
    assert span.parent.hex() == "b7ad6b7169203331"
    assert {headers["x-team"] for headers in receiver.headers} == {"orders"}
    for resource in receiver.resources:
        assert resource["service.name"] == "shop-prod"
        assert resource["deployment.environment"] == "test"
        assert resource["db"] == "a://[redacted]@h/d"


def test_opentelemetry_sampler_is_used(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    sent(settings(tmp_path, receiver.url, metrics=False), update())
    assert receiver.bodies == []


@pytest.mark.parametrize(
    ("enabled", "environ", "expected"),
    [
        (None, {}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        (True, {}, True),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        (True, {"OTEL_SDK_DISABLED": "True"}, False),
        (True, {"OTEL_TRACES_EXPORTER": "none"}, True),
        (True, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, False),
    ],
)
def test_telemetry_is_enabled_by_settings_or_variables(enabled, environ, expected):
    assert is_wanted(TelemetrySettings(is_wanted=enabled), environ) is expected


def test_unavailable_receiver_is_reported_and_does_not_delay_the_update(
    receiver: OtlpReceiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    receiver.status = 400
    closed = OtlpReceiver()
    closed.close()
    for url, reason in (
        (receiver.url, "400"),
        (closed.url, "retry in|timeout, max retries|refused"),
    ):
        bus, emitted = EventBus(), list[Event]()
        bus.subscribe(emitted.append)
        exports = Exports(settings(tmp_path, url), bus, UPDATE, observed(bus), str)
        began = time.monotonic()
        for event in update(*(e for number in range(100) for e in batch("bronze", number, 2))):
            bus.emit(event)
        assert time.monotonic() - began < 2.0
        exports.close()
        assert time.monotonic() - began < 12.0
        progress = [event for event in emitted if event.event_type == "telemetry_progress"]
        for signal in ("traces", "metrics"):
            of_signal = [e for e in progress if details(e)["signal"] == signal]
            first = of_signal[0]
            assert first.error is not None
            assert first.error.condition == "TELEMETRY_NOT_DELIVERED"
            assert any(word in first.message for word in reason.split("|")), first.message
            last = details(of_signal[-1])
            assert last["sent"] == 0
            assert last["failed"] >= 1
    assert capsys.readouterr().err == ""
    assert logging.getLogger("opentelemetry.exporter").propagate


def test_spans_are_dropped_and_counted_when_the_receiver_hangs():
    release, bus, emitted = threading.Event(), EventBus(), list[Event]()
    bus.subscribe(emitted.append)
    signal = Signal(
        name="traces",
        items="spans",
        body=TelemetryProgress,
        condition="C",
        class_name="E",
    )
    delivery = Delivery(
        bus,
        UPDATE,
        signal,
        fold=lambda event: [event],
        send=lambda spans: release.wait(20) and None,
        batch_size=4,
        gather_seconds=0.1,
        queue_size=3,
    )
    began = time.monotonic()
    for event in batch("bronze", 0, 1) * 10:
        delivery(event)
    assert time.monotonic() - began < 0.5
    delivery.close(timeout_seconds=1)
    assert time.monotonic() - began < 5
    release.set()
    body = details(emitted[-1])
    assert body["sent"] == 0
    assert body["dropped"] == 40


def test_close_does_not_wait_for_a_hanging_receiver_when_a_signal_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0.5")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts requests and never responds
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        chosen = TelemetrySettings(is_wanted=True, endpoint=url, interval_seconds=0.2)
        bus, failed = EventBus(), threading.Event()
        bus.subscribe(lambda event: event.event_type == "telemetry_progress" and failed.set())
        exports = Exports(
            replace(settings(tmp_path, url), telemetry=chosen), bus, UPDATE, observed(bus), str
        )
        for event in update(*batch("bronze", 0, 2)):
            bus.emit(event)
        assert failed.wait(30)
        began = time.monotonic()
        exports.close()
        assert time.monotonic() - began < 4.0


def test_no_secret_is_sent(receiver: OtlpReceiver, tmp_path: Path):
    texts, secrets = planted()
    errors = [
        ErrorInfo(condition="BOOM", class_name="E", message=text, fatal=False) for text in texts
    ]
    events = update(
        *(
            at(2, flow_progress(about("bronze"), FlowStatus.STARTING, t, error=e))
            for t, e in zip(texts, errors, strict=True)
        ),
        at(
            3,
            flow_progress(
                about("bronze"), FlowStatus.FAILED, "", error=replace(errors[0], fatal=True)
            ),
        ),
    )
    chosen = settings(tmp_path, receiver.url, headers={"Authorization": "${secret:otel/key}"})
    try:
        sent(
            chosen,
            events,
            resolve=lambda text: text.replace("${secret:otel/key}", "Bearer k-77-Zq"),
        )
    finally:
        forget_secrets()
    assert {headers["authorization"] for headers in receiver.headers} == {"Bearer k-77-Zq"}
    assert any(span.events for span in receiver.spans)
    for _, body in receiver.bodies:
        text = body.decode("utf-8", "replace").replace("\\", "")
        assert [secret for secret in (*secrets, "k-77-Zq") if secret in text] == []


def test_invalid_configuration_is_an_error_or_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def opened(url: str = "", enabled: bool | None = True) -> list[Event]:
        chosen = replace(
            settings(tmp_path, url),
            telemetry=TelemetrySettings(is_wanted=enabled, endpoint=url),
        )
        bus, emitted = EventBus(), list[Event]()
        bus.subscribe(emitted.append)
        exports = Exports(chosen, bus, UPDATE, observed(bus), str)
        exports.warn()
        exports.close()
        return [event for event in emitted if event.event_type == "plan_warning"]

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SpecError, match="only http/protobuf"):
        opened()
    (warning,) = opened(enabled=None)
    assert "no telemetry is sent" in warning.message
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1m")
    with pytest.raises(SpecError, match="not a number of milliseconds"):
        opened()
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[otel\]"):
        opened()
    (warning,) = opened(enabled=None)
    assert "penstock[otel]" in warning.message


def test_no_thread_remains_when_another_export_fails_to_start(
    receiver: OtlpReceiver, tmp_path: Path
):
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = MetricsSettings(port=taken.getsockname()[1])
        chosen = replace(settings(tmp_path, receiver.url), metrics=metrics)
        bus = EventBus()
        with pytest.raises(SetupError, match="CANNOT_LISTEN"):
            Exports(chosen, bus, UPDATE, observed(bus), str)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in names if "Otel" in name or "telemetry" in name or "traces" in name]


def test_each_refresh_of_a_view_has_a_span_in_a_continuous_update(
    receiver: OtlpReceiver, tmp_path: Path
):
    view = about("totals")
    refreshes = [
        event
        for second in (2, 4)
        for event in (
            at(second, flow_progress(view, FlowStatus.RUNNING, "")),
            at(second, planning_information(view, "COMPLETE_RECOMPUTE", "new rows")),
            at(second + 1, flow_progress(
                view, FlowStatus.RUNNING, "", metrics=FlowMetrics(num_output_rows=4)
            )),
            at(second + 1, flow_progress(view, FlowStatus.COMPLETED, "")),
        )
    ]  # fmt: skip
    created = at(0, definition("create_update", UPDATE, "", {"continuous": True}))
    sent(settings(tmp_path, receiver.url), [created, *update(*refreshes)[1:]])
    names = [span.name for span in receiver.spans]
    assert names == ["refresh totals", "refresh totals", "flow totals", "update shop"]


def test_telemetry_settings_are_read(tmp_path: Path):
    def read(text: str) -> TelemetrySettings:
        (tmp_path / "pipeline.yaml").write_text(f"name: shop\n{text}", encoding="utf-8")
        return load_settings(tmp_path, environ={}).telemetry

    assert read("") == TelemetrySettings()
    assert read("opentelemetry: true\n") == TelemetrySettings(is_wanted=True)
    assert read("opentelemetry: false\n") == TelemetrySettings(is_wanted=False)
    settings = read(
        "opentelemetry:\n  endpoint: https://otel.example.org\n"
        "  headers: {Authorization: '${secret:otel/key}'}\n"
        "  interval_seconds: 15\n  traces: false\n"
    )
    assert settings == TelemetrySettings(
        is_wanted=True,
        endpoint="https://otel.example.org",
        headers={"Authorization": "${secret:otel/key}"},
        traces=False,
        interval_seconds=15,
    )
    assert "secret" not in repr(settings)
    with pytest.raises(SpecError, match="endpoint"):
        read("opentelemetry: {endpoint: 'otel:4318'}\n")
    with pytest.raises(SpecError, match="did you mean `endpoint`"):
        read("opentelemetry: {endpont: x}\n")
