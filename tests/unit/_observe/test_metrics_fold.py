"""Metrics for Prometheus, from constructed events and from a recorded event log."""

import time
from pathlib import Path

import pytest
from made_events import (
    alert_progress,
    definition,
    flow_progress,
    lag_progress,
    planning_information,
    source_rows_lost,
    stream_progress,
    update_progress,
)

from penstock._observe.codec import event_of_line
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.metrics import MAX_SERIES, METRICS, Kind, metric_series
from penstock._observe.state import ObservedUpdate

UPDATE = EventOrigin(pipeline_name="shop", update_id="8c1f")
RECORDED = Path(__file__).parents[1] / "_ui" / "logs"


def flow(batch: int | None = None, name: str = "silver") -> EventOrigin:
    return EventOrigin(
        pipeline_name="shop",
        update_id="8c1f",
        dataset_name="c.s.silver",
        flow_name=name,
        batch_id=batch,
    )


def progress(number: int) -> dict[str, object]:
    return {
        "batchId": number,
        "timestamp": "2026-03-04T10:00:10.000Z",
        "durationMs": {"addBatch": 3900, "walCommit": 100, "triggerExecution": 4000},
        "eventTime": {"watermark": "2026-03-04T09:59:10.000Z"},
        "stateOperators": [
            {
                "operatorName": "stateStoreSave",
                "numRowsTotal": 7,
                "numRowsDroppedByWatermark": 3,
                "memoryUsedBytes": 4096,
            }
        ],
        "sources": [
            {
                "endOffset": {"orders": {"0": 60, "1": 40}},
                "latestOffset": {"orders": {"0": 90, "1": 40}},
            },
            {"metrics": {"numFilesOutstanding": "3", "numBytesOutstanding": "900"}},
        ],
    }


def batch(number: int) -> list[Event]:
    rule = ExpectationCounts(
        name="positive", dataset="c.s.silver", passed_records=97, failed_records=3
    )
    written = FlowMetrics(num_output_rows=97, dropped_records=3, quarantined_records=3)
    read = FlowMetrics(num_input_rows=100, batch_duration_ms=4000, backlog_records=30)
    return [
        flow_progress(
            flow(number),
            FlowStatus.RUNNING,
            "",
            metrics=written,
            expectations=[rule],
            table_version=number + 1,
        ),
        stream_progress(flow(number), progress(number)),
        flow_progress(flow(number), FlowStatus.RUNNING, "", metrics=read),
    ]


def metric_values(fold: ObservedUpdate) -> dict[str, dict[tuple[str, ...], float]]:
    numbers = [series for series in metric_series(fold) if series.metric.kind is not Kind.HISTOGRAM]
    return {series.metric.name: dict(series.values) for series in numbers}


def folded(*events: Event) -> ObservedUpdate:
    fold = ObservedUpdate()
    for event in events:
        fold(event)
    return fold


def test_backlog_is_reported_when_measured_outside_the_batch():
    files = {"kind": "files", "files": 3, "bytes": 900}
    table = {"kind": "delta", "versions": 2, "bytes": 100}
    fold = folded(lag_progress(flow(), {"sources": [files, table, {"kind": "other"}]}))
    own = ("shop", "silver", "c.s.silver")
    assert metric_values(fold)["penstock_flow_backlog_files"][own] == 3
    assert metric_values(fold)["penstock_flow_backlog_bytes"][own] == 1000
    unknown = folded(lag_progress(flow(), {"sources": [{**files, "files": None, "bytes": None}]}))
    assert own not in metric_values(unknown).get("penstock_flow_backlog_files", {})


def test_unread_rows_of_tables_are_reported_when_measured():
    def backlog(*measured: tuple[int | None, int | None]) -> float | None:
        fold = folded(
            flow_progress(flow(), FlowStatus.RUNNING, "", metrics=FlowMetrics(num_input_rows=5))
        )
        for versions, rows in measured:
            table = {"kind": "delta", "versions": versions, "rows": rows}
            fold(lag_progress(flow(), {"sources": [table]}))
        fold(flow_progress(flow(1), FlowStatus.RUNNING, "", metrics=FlowMetrics(num_input_rows=5)))
        values = metric_values(fold).get("penstock_flow_backlog_rows", {})
        return values.get(("shop", "silver", "c.s.silver"))

    assert backlog() is None
    assert backlog((2, 70)) == backlog((1, 5), (2, 70)) == 70
    assert backlog((2, 70), (0, 0)) == 0
    assert backlog((2, 70), (3, None)) == backlog((2, 70), (None, None)) is None


def test_lag_and_time_to_loss_are_absent_when_unknown():
    def lag(seconds: float | None, left: float | None) -> Event:
        part = {"topic": "orders", "partition": "0", "seconds_behind": seconds}
        body = {"seconds_behind": seconds, "seconds_to_loss": left}
        return lag_progress(flow(), {**body, "sources": [{"partitions": [part]}]})

    def now(*events: Event) -> list[float | None]:
        values = metric_values(folded(*events))
        own = ("shop", "silver", "c.s.silver")
        names = ("penstock_flow_lag_seconds", "penstock_flow_time_to_loss_seconds")
        return [values.get(name, {}).get(own) for name in names]

    other = lag_progress(flow(), {"seconds_behind": None, "sources": [{"kind": "other"}]})
    assert now(lag(90.5, 3600.0)) == now(lag(90.5, 3600.0), other) == [90.5, 3600.0]
    folder = [{"kind": "files", "files": 2, "seconds_behind": 7.5}]
    assert now(lag_progress(flow(), {"seconds_behind": 7.5, "sources": folder})) == [7.5, None]
    assert now(lag(90.5, 0.0)) == [90.5, 0.0]
    assert now(lag(90.5, 3600.0), lag(0.0, None)) == [0.0, None]
    assert now(lag(90.5, 3600.0), lag(None, None)) == [None, None]
    behind = {"s/shard-0": 1500, "s/shard-1": 4000}
    shards = [{"endOffset": {}, "latestOffset": {"behind_millis": behind}}]
    assert now(stream_progress(flow(), {"sources": shards}), other) == [4.0, None]


def test_backlog_is_absent_when_brokers_do_not_respond():
    fold = folded(*batch(0))
    own = ("shop", "silver", "c.s.silver")
    lags = metric_values(fold)["penstock_kafka_lag_rows"]
    assert lags and own in metric_values(fold)["penstock_flow_backlog_rows"]
    parts = [{"topic": t, "partition": p, "seconds_behind": None} for *_, t, p in lags]
    waiting = [{**part, "records": 900} for part in parts]
    fold(lag_progress(flow(), {"sources": [{"kind": "kafka", "partitions": waiting}]}))
    assert metric_values(fold)["penstock_flow_backlog_rows"][own] == 900 * len(parts)
    source = {"kind": "kafka", "partitions": parts, "problem": "no broker answers"}
    fold(lag_progress(flow(), {"sources": [source], "seconds_behind": None}))
    for name in ("penstock_kafka_lag_rows", "penstock_flow_backlog_rows"):
        assert not metric_values(fold).get(name)


def test_all_metrics_of_two_batches_are_reported():
    error = ErrorInfo(condition="KAFKA_DOWN", class_name="E", message="", fatal=False)
    fold = folded(
        definition("create_update", UPDATE, "", {"continuous": True}),
        update_progress(UPDATE, UpdateState.RUNNING, ""),
        definition("flow_definition", flow(), "", {"output_dataset": "c.s.silver"}),
        flow_progress(flow(), FlowStatus.RUNNING, ""),
        *batch(0),
        *batch(1),
        flow_progress(flow(), FlowStatus.STARTING, "again", error=error),
        alert_progress(UPDATE, "", {"alert": "lag", "about": "silver", "state": "firing"}, None),
        source_rows_lost(flow(1), "", [{"topic": "orders", "first": 5, "end": 9}]),
        planning_information(flow(), "NO_OP", "nothing new"),
        definition("lineage_progress", UPDATE, "", {"sent": 5, "failed": 1, "dropped": 2}),
    )
    values = metric_values(fold)
    own = ("shop", "silver", "c.s.silver")
    assert {
        name.removeprefix("penstock_"): by_labels[own]
        for name, by_labels in values.items()
        if own in by_labels
    } == {
        "flow_batches_total": 2,
        "flow_input_rows_total": 200,
        "flow_output_rows_total": 194,
        "flow_dropped_rows_total": 6,
        "flow_quarantined_rows_total": 6,
        "flow_last_batch_timestamp_seconds": pytest.approx(time.time(), abs=60),
        "flow_backlog_rows": 30,
        "flow_backlog_files": 3,
        "flow_backlog_bytes": 900,
        "flow_table_version": 2,
        "watermark_timestamp_seconds": 1772618350,
        "watermark_delay_seconds": 60,
    }
    assert values["penstock_update_info"] == {("shop", "8c1f", "continuous"): 1}
    assert values["penstock_update_state"]["shop", "RUNNING"] == 1
    assert sum(values["penstock_update_state"].values()) == 1
    assert values["penstock_flow_state"][*own, "STARTING"] == 1
    assert sum(values["penstock_flow_state"].values()) == 1
    assert values["penstock_flow_phase_seconds_total"] == {
        (*own, "addBatch"): 7.8,
        (*own, "walCommit"): 0.2,
    }
    assert values["penstock_expectation_passed_rows_total"] == {
        ("shop", "c.s.silver", "positive"): 194
    }
    assert values["penstock_expectation_failed_rows_total"] == {
        ("shop", "c.s.silver", "positive"): 6
    }
    assert values["penstock_kafka_lag_rows"] == {
        (*own, "orders", "0"): 30,
        (*own, "orders", "1"): 0,
    }
    assert values["penstock_state_rows"] == {(*own, "0 stateStoreSave"): 7}
    assert values["penstock_state_memory_bytes"] == {(*own, "0 stateStoreSave"): 4096}
    assert values["penstock_state_dropped_rows_total"] == {(*own, "0 stateStoreSave"): 6}
    assert values["penstock_flow_errors_total"] == {(*own, "KAFKA_DOWN", "false"): 1}
    assert values["penstock_alert_firing"] == {("shop", "lag"): 1}
    assert values["penstock_source_lost_rows_total"] == {(*own, "orders"): 4}
    assert values["penstock_view_refreshes_total"] == {("shop", "c.s.silver", "NO_OP"): 1}
    assert values["penstock_lineage_events_total"] == {
        ("shop", "sent"): 5,
        ("shop", "failed"): 1,
        ("shop", "dropped"): 2,
    }
    (histogram,) = [
        series for series in metric_series(fold) if series.metric.kind is Kind.HISTOGRAM
    ]
    assert histogram.values[own].total == 8.0
    assert histogram.values[own].counts[5] == 2  # the bucket up to five seconds


def test_every_label_set_has_a_value_for_each_label():
    for series in metric_series(folded(*batch(0))):
        for labels in series.values:
            assert len(labels) == len(series.metric.labels), series.metric.name


def test_counters_of_a_declared_flow_start_at_zero():
    values = metric_values(
        folded(definition("flow_definition", flow(), "", {"output_sink": "out"}))
    )
    assert values["penstock_flow_output_rows_total"] == {("shop", "silver", "out"): 0}


def test_rows_of_a_sink_that_counts_none_are_not_reported_as_zero():
    declared = definition("flow_definition", flow(), "", {"output_sink": "out"})
    metrics = FlowMetrics(num_input_rows=3)
    values = metric_values(
        folded(declared, flow_progress(flow(0), FlowStatus.RUNNING, "", metrics=metrics))
    )
    assert values["penstock_flow_input_rows_total"] == {("shop", "silver", "out"): 3}
    assert not values.get("penstock_flow_output_rows_total")


def test_resolved_alert_is_not_counted_as_firing():
    bodies = [
        {"alert": "lag", "about": about, "state": state}
        for about, state in (("a", "firing"), ("b", "firing"), ("a", "resolved"))
    ]
    fold = folded(*(alert_progress(UPDATE, "", body, None) for body in bodies))
    assert metric_values(fold)["penstock_alert_firing"] == {("shop", "lag"): 1}


def test_series_are_limited_and_the_rest_is_counted():
    fold = ObservedUpdate()
    for number in range(MAX_SERIES + 50):
        labels = flow(name=f"flow {number} {'x' * 500}")
        fold(flow_progress(labels, FlowStatus.RUNNING, "", metrics=FlowMetrics(num_output_rows=1)))
    values = metric_values(fold)
    assert len(values["penstock_flow_output_rows_total"]) == MAX_SERIES
    left_out = values["penstock_metrics_left_out_total"]
    assert left_out["shop", "penstock_flow_output_rows_total"] == 50
    assert max(
        len(label) for labels in values["penstock_flow_batches_total"] for label in labels
    ) == (200)


def test_metrics_of_a_recorded_log_are_the_sums_of_its_events():
    (path,) = (RECORDED / "demo").glob("*.jsonl")
    fold = ObservedUpdate()
    for line in path.read_bytes().splitlines():
        event = event_of_line(line)
        assert event is not None
        fold(event)
    values = metric_values(fold)
    rows = {labels[1]: count for labels, count in values["penstock_flow_output_rows_total"].items()}
    assert rows["orders_bronze"] == 400
    assert rows["orders"] == 381
    assert values["penstock_update_state"]["orders-demo", "COMPLETED"] == 1
    assert set(values) <= set(METRICS)


def test_folding_an_event_takes_less_than_a_millisecond():
    fold, events = ObservedUpdate(), batch(0)
    began = time.process_time()
    for _ in range(300):
        for event in events:
            fold(event)
    seconds_per_event = (time.process_time() - began) / 900
    assert seconds_per_event < 0.001
