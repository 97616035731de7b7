"""OpenLineage: what is sent for an update, also when the receiver fails."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lineage_receiver import Receiver, check, shapes
from made_events import (
    column_lineage,
    definition,
    details,
    flow_progress,
    observed,
    update_progress,
)

from penstock._model.export import LineageSettings
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.exports import Exports
from penstock._observe.lineage_delivery import Lineage, is_wanted, make_client
from penstock._observe.state import ObservedUpdate
from penstock.errors import MissingExtraError, SpecError

UPDATE = EventOrigin(pipeline_name="shop", update_id="8c1f0190-5520-43ff-9066-b4b80ace2cb1")
SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"box","type":{"type":"struct","fields":[{"name":"n","type":"integer","nullable":true,'
    '"metadata":{}}]},"nullable":true,"metadata":{"comment":"what is in it"}}]}'
)


def about(flow: str = "", dataset: str = "", sink: str = "", batch: int | None = None):
    return EventOrigin(
        pipeline_name="shop",
        update_id=UPDATE.update_id,
        flow_name=flow,
        dataset_name=dataset,
        sink_name=sink,
        batch_id=batch,
    )


def defined() -> list[Event]:
    rule = {"name": "positive", "condition": "amount > 0", "action": "drop"}
    tables = [
        definition(
            "dataset_definition",
            about(dataset=name),
            "",
            {
                "dataset_type": "STREAMING_TABLE",
                "path": f"file:/srv/shop/tables/{name}",
                "schema_json": SCHEMA,
                "expectations": [rule] if name == "silver" else [],
            },
        )
        for name in ("bronze", "silver")
    ]
    lineage = {
        "sources": [{"dataset": "bronze"}],
        "columns": {"id": [[0, "id", "IDENTITY"]], "gone": [[0, "x", "IDENTITY"]]},
        "influences": [[0, "amount", "FILTER"]],
    }
    outside = {"sources": [{"namespace": "kafka://k:9092", "name": "orders"}], "columns": {}}
    flow = {"input_datasets": [], "output_dataset": "bronze", "flow_type": "APPEND"}
    return [
        definition("create_update", UPDATE, "", {"continuous": False}),
        update_progress(UPDATE, UpdateState.INITIALIZING, ""),
        *tables,
        definition(
            "sink_definition",
            about(sink="out"),
            "",
            {"format": "kafka", "place": {"namespace": "kafka://k:9092", "name": "done"}},
        ),
        definition("flow_definition", about("bronze"), "", flow),
        column_lineage(about("bronze", "bronze"), outside),
        definition(
            "flow_definition",
            about("silver"),
            "",
            {
                **flow,
                "input_datasets": ["bronze"],
                "output_dataset": "silver",
                "comment": "clean rows",
            },
        ),
        column_lineage(about("silver", "silver"), lineage),
        definition(
            "flow_definition",
            about("to_out"),
            "",
            {"input_datasets": ["silver"], "output_sink": "out", "flow_type": "APPEND"},
        ),
        update_progress(UPDATE, UpdateState.RUNNING, ""),
    ]


def run_of(flow: str, dataset: str, failed: int = 0) -> list[Event]:
    rule = ExpectationCounts(
        name="positive", dataset=dataset, passed_records=7, failed_records=failed
    )
    events = [flow_progress(about(flow, dataset), FlowStatus.STARTING, "")]
    for batch in (0, 1):
        events += [
            flow_progress(
                about(flow, dataset, batch=batch),
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(num_output_rows=7, quarantined_records=failed),
                expectations=[rule],
                table_version=batch,
            ),
            flow_progress(
                about(flow, dataset, batch=batch),
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(num_input_rows=7 + failed),
            ),
        ]
    return events


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "")


def settings(root: Path, url: str = "", **more: Any) -> PipelineSettings:
    lineage = LineageSettings(
        is_wanted=True,
        transport={"type": "http", "url": url, "retry": {"total": 0}, **more} if url else {},
    )
    return PipelineSettings(name="shop", storage=str(root), root=str(root), lineage=lineage)


def lineage_events(root: Path, receiver: Receiver, events: list[Event], **more: Any) -> list[Event]:
    bus, emitted = EventBus(), []
    bus.subscribe(emitted.append)
    exports = Exports(settings(root, receiver.url, **more), bus, UPDATE, observed(bus), str)
    for event in events:
        bus.emit(event)
    exports.close()
    return [event for event in emitted if event.event_type == "lineage_progress"]


def test_events_of_an_update_have_all_facets(receiver: Receiver, tmp_path: Path):
    error = ErrorInfo(condition="BOOM", class_name="E", message="it broke")
    ended = [
        flow_progress(about("bronze", "bronze"), FlowStatus.COMPLETED, ""),
        flow_progress(about("silver", "silver"), FlowStatus.FAILED, "", error=error),
        flow_progress(about("to_out", sink="out"), FlowStatus.SKIPPED, ""),
        update_progress(UPDATE, UpdateState.FAILED, "failed", error=error),
    ]
    events = [*defined(), *run_of("bronze", "bronze"), *run_of("silver", "silver", 3), *ended]
    (last,) = lineage_events(tmp_path, receiver, events)[-1:]
    received = receiver.events
    for event in received:
        check(event)
    assert shapes(received) == [
        ("START", "shop"),
        ("RUNNING", "shop"),
        ("DATASET", "/srv/shop/tables/bronze"),
        ("DATASET", "/srv/shop/tables/silver"),
        ("JOB", "shop.bronze"),
        ("JOB", "shop.silver"),
        ("JOB", "shop.to_out"),
        ("START", "shop.bronze"),
        ("START", "shop.silver"),
        ("COMPLETE", "shop.bronze"),
        ("FAIL", "shop.silver"),
        ("FAIL", "shop"),
    ]
    assert details(last) == {"sent": len(received), "failed": 0, "dropped": 0}
    by_shape = dict(zip(shapes(received), received, strict=True))
    bronze, silver = by_shape["COMPLETE", "shop.bronze"], by_shape["FAIL", "shop.silver"]
    assert bronze["run"]["runId"] == by_shape["START", "shop.bronze"]["run"]["runId"]
    assert bronze["run"]["facets"]["parent"]["run"]["runId"] == UPDATE.update_id
    (kafka,) = bronze["inputs"]
    assert (kafka["namespace"], kafka["name"]) == ("kafka://k:9092", "orders")
    assert kafka["inputFacets"]["dataQualityMetrics"]["rowCount"] == 14
    assert silver["run"]["facets"]["errorMessage"]["message"] == "[BOOM] it broke"
    (source,), (target, quarantine) = silver["inputs"], silver["outputs"]
    assert source["facets"]["schema"]["fields"][1] == {
        "name": "box",
        "type": "struct",
        "description": "what is in it",
        "fields": [{"name": "n", "type": "integer", "fields": []}],
    }
    assert target["outputFacets"]["outputStatistics"]["rowCount"] == 14
    assert target["facets"]["version"]["datasetVersion"] == "1"
    assert (quarantine["name"], quarantine["outputFacets"]["outputStatistics"]["rowCount"]) == (
        "/srv/shop/tables/silver_quarantine",
        6,
    )
    lineage = target["facets"]["columnLineage"]
    assert set(lineage["fields"]) == {"id"}
    (field,) = lineage["fields"]["id"]["inputFields"]
    assert (field["namespace"], field["name"], field["field"]) == (
        "file",
        "/srv/shop/tables/bronze",
        "id",
    )
    assert field["transformations"][0]["subtype"] == "IDENTITY"
    assert lineage["dataset"][0]["transformations"][0] == {"type": "INDIRECT", "subtype": "FILTER"}
    (assertion,) = target["facets"]["dataQualityAssertions"]["assertions"]
    assert assertion["success"] is False
    assert assertion["content"] == "amount > 0"
    assert assertion["params"] == {"passed_records": 14, "failed_records": 6}
    (test,) = silver["run"]["facets"]["test"]["tests"]
    assert (test["name"], test["status"]) == ("positive", "fail")
    (done,) = by_shape["JOB", "shop.to_out"]["outputs"]
    assert (done["namespace"], done["name"]) == ("kafka://k:9092", "done")


def test_running_events_are_sent_while_a_flow_runs():
    sent: list[Any] = []
    lineage = Lineage(EventBus(), UPDATE, sent.append, running_seconds=0)
    for event in [*defined(), *run_of("silver", "silver")]:
        lineage(event)
    lineage.close()
    kinds = [event.eventType.name for event in sent if getattr(event, "eventType", None)]
    assert kinds == ["START", "RUNNING", "START", "RUNNING", "RUNNING", "RUNNING", "RUNNING"]


def test_each_refresh_of_a_view_is_a_run():
    sent: list[Any] = []
    lineage = Lineage(EventBus(), UPDATE, sent.append)
    refreshed = flow_progress(
        about("silver", "silver"),
        FlowStatus.COMPLETED,
        "",
        metrics=FlowMetrics(num_output_rows=5),
    )
    idle = flow_progress(about("silver", "silver"), FlowStatus.IDLE, "")
    for event in [*defined(), refreshed, idle, refreshed]:
        lineage(event)
    lineage.close()
    runs = [e for e in sent if hasattr(e, "run") and e.job.name == "shop.silver"]
    assert [run.eventType.name for run in runs] == ["START", "COMPLETE"] * 2
    assert len({run.run.runId for run in runs}) == 2


def test_parent_run_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    parent = "3c1f0190-5520-43ff-9066-b4b80ace2cb2"
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/etl/daily/{parent}")
    sent: list[Any] = []
    lineage = Lineage(EventBus(), UPDATE, sent.append)
    lineage(update_progress(UPDATE, UpdateState.INITIALIZING, ""))
    lineage.close()
    facet = sent[0].run.facets["parent"]
    assert (facet.run.runId, facet.job.namespace, facet.job.name) == (
        parent,
        "airflow/etl",
        "daily",
    )


def test_unavailable_receiver_is_reported_and_does_not_delay_the_update(
    receiver: Receiver, tmp_path: Path
):
    receiver.status = 500
    bus, emitted = EventBus(), []
    bus.subscribe(emitted.append)
    exports = Exports(settings(tmp_path, receiver.url), bus, UPDATE, observed(bus), str)
    began = time.monotonic()
    for event in [*defined(), *run_of("silver", "silver")]:
        bus.emit(event)
    assert time.monotonic() - began < 1.0
    exports.close()
    assert time.monotonic() - began < 12.0
    progress = [event for event in emitted if event.event_type == "lineage_progress"]
    first, last = progress[0], progress[-1]
    assert first.error is not None
    assert first.error.condition == "LINEAGE_NOT_DELIVERED"
    sums = details(last)
    assert sums["sent"] == 0
    assert sums["failed"] >= 1
    assert sums["failed"] + sums["dropped"] == 8


def test_events_are_dropped_and_counted_when_the_receiver_hangs():
    release = threading.Event()
    bus, emitted = EventBus(), []
    bus.subscribe(emitted.append)
    lineage = Lineage(bus, UPDATE, lambda event: release.wait(20), queue_size=3, running_seconds=0)
    events = [*defined(), *run_of("silver", "silver")]
    began = time.monotonic()
    for event in events:
        lineage(event)
    assert time.monotonic() - began < 0.5
    lineage.close(timeout_seconds=1.0)
    assert time.monotonic() - began < 5.0
    (last,) = [event for event in emitted if event.event_type == "lineage_progress"]
    assert last.error is not None
    assert details(last) == {"sent": 0, "failed": 0, "dropped": 12}
    release.set()


@pytest.mark.parametrize(
    ("enabled", "environ", "expected"),
    [
        (None, {}, False),
        (True, {}, True),
        (None, {"OPENLINEAGE_URL": "http://x"}, True),
        (False, {"OPENLINEAGE_URL": "http://x"}, False),
        (True, {"OPENLINEAGE_DISABLED": "true"}, False),
        (None, {"OPENLINEAGE__TRANSPORT__TYPE": "http"}, True),
    ],
)
def test_lineage_is_enabled_by_settings_or_openlineage_variables(
    enabled, environ, expected, tmp_path: Path
):
    chosen = LineageSettings(is_wanted=enabled)
    assert is_wanted(chosen, str(tmp_path), {"HOME": str(tmp_path), **environ}) is expected


def test_openlineage_file_of_the_project_is_used(receiver: Receiver, tmp_path: Path):
    text = (
        f"transport:\n  type: http\n  url: {receiver.url}\n  auth: {{type: api_key, apiKey: k1}}\n"
    )
    (tmp_path / "openlineage.yml").write_text(text)
    assert is_wanted(LineageSettings(), str(tmp_path), {"HOME": "nowhere"})
    client = make_client(LineageSettings(), str(tmp_path), str)
    sent: list[Any] = []
    lineage = Lineage(EventBus(), UPDATE, lambda event: (client.emit(event), sent.append(event)))
    lineage(update_progress(UPDATE, UpdateState.INITIALIZING, ""))
    lineage.close()
    assert shapes(receiver.events) == [("START", "shop")]
    assert receiver.headers[0]["Authorization"] == "Bearer k1"


def test_invalid_configuration_is_an_error(tmp_path: Path):
    with pytest.raises(SpecError) as nothing:
        make_client(LineageSettings(is_wanted=True), str(tmp_path), str)
    assert nothing.value.condition == "LINEAGE_NOT_CONFIGURED"
    wrong = LineageSettings(transport={"type": "http", "auth": {"apiKey": "hidden-key-1"}})
    with pytest.raises(SpecError) as invalid:
        make_client(wrong, str(tmp_path), str)
    assert "hidden-key-1" not in str(invalid.value)


def test_missing_package_or_transport_is_only_a_warning_without_lineage_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = PipelineSettings(name="shop", storage=str(tmp_path), root=str(tmp_path))

    def warned() -> list[str]:
        bus, emitted = EventBus(), []
        bus.subscribe(emitted.append)
        exports = Exports(plain, bus, UPDATE, observed(bus), str)
        exports.warn()
        exports.close()
        return [event.event_type for event in emitted]

    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")  # without a URL
    assert warned() == ["plan_warning"]
    monkeypatch.delenv("OPENLINEAGE__TRANSPORT__TYPE")
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(MissingExtraError) as caught:
        Exports(settings(tmp_path, "http://127.0.0.1:9"), EventBus(), UPDATE, ObservedUpdate(), str)
    assert "penstock[openlineage]" in str(caught.value)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    assert warned() == ["plan_warning"]
