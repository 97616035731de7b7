import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from made_events import definition, flow_progress, update_progress

from penstock._display.display import final_line
from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.snapshot import DatasetView, last_part, short_names, update_view
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import status_json

START = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def event(
    status: FlowStatus,
    *,
    seconds: float = 0,
    flow: str = "silver",
    dataset: str = "c.s.silver",
    batch: int | None = None,
    metrics: FlowMetrics | None = None,
    rules: tuple[ExpectationCounts, ...] = (),
    error: ErrorInfo | None = None,
) -> Event:
    origin = EventOrigin(update_id="u", flow_name=flow, dataset_name=dataset, batch_id=batch)
    progress = flow_progress(origin, status, "", metrics=metrics, expectations=rules, error=error)
    return replace(progress, timestamp=START + timedelta(seconds=seconds))


def batch(number: int, rows: int, *, seconds: float, took_ms: int = 500) -> list[Event]:
    """The events of the writer and of Spark for a micro-batch."""
    running = FlowStatus.RUNNING
    rule = ExpectationCounts(
        name="positive", dataset="silver", passed_records=rows - 1, failed_records=1
    )
    written = FlowMetrics(num_output_rows=rows - 1, dropped_records=1, quarantined_records=1)
    spark = FlowMetrics(num_input_rows=rows, batch_duration_ms=took_ms, backlog_records=50 - number)
    return [
        event(running, batch=number, metrics=written, rules=(rule,), seconds=seconds),
        event(running, batch=number, metrics=spark, seconds=seconds),
    ]


def observed(*events: Event) -> ObservedUpdate:
    update = ObservedUpdate()
    for event in events:
        update(event)
    return update


def folded(*events: Event, now: float = 10) -> DatasetView:
    (dataset,) = update_view(observed(*events), START + timedelta(seconds=now)).datasets
    return dataset


def test_micro_batches_are_counted_once_when_their_events_overlap() -> None:
    first, second = batch(0, 100, seconds=2), batch(1, 100, seconds=3)
    (flow,) = observed(first[0], second[0], first[1], second[1]).flows.values()
    assert (flow.batches, flow.batch_id) == (2, 1)


def test_metrics_of_the_two_events_of_each_micro_batch_are_added_up() -> None:
    view = folded(
        event(FlowStatus.STARTING),
        event(FlowStatus.RUNNING, seconds=1),
        *batch(0, 100, seconds=2),
        *batch(1, 300, seconds=3, took_ms=1500),
    )
    assert view.display == "silver"
    assert view.state is FlowStatus.RUNNING
    assert (view.rows, view.dropped, view.quarantined) == (398, 2, 2)
    assert view.rows_per_second == 400 / 2.0
    assert view.batch_seconds == 1.5
    assert view.lag == 49
    assert view.duration_seconds == 10
    assert [(rule.name, rule.passed, rule.failed) for rule in view.rules] == [("positive", 398, 2)]


def test_rows_of_a_sink_that_counts_none_are_unknown() -> None:
    read = FlowMetrics(num_input_rows=8)
    queued, running = event(FlowStatus.QUEUED), event(FlowStatus.RUNNING, batch=0, metrics=read)
    assert (folded(queued).rows, update_view(observed()).rows) == (0, 0)
    update = observed(queued, running)
    assert "1 dataset, uncounted rows written" in final_line(update_view(update))
    assert [flow["rows"] for flow in status_json(update)["flows"]] == [None]


def test_the_rate_is_unknown_when_the_last_micro_batch_of_a_running_flow_is_old() -> None:
    events = [event(FlowStatus.RUNNING), *batch(0, 100, seconds=1)]
    assert folded(*events, now=20).rows_per_second == 200
    assert folded(*events, now=60).rows_per_second is None
    ended = folded(*events, event(FlowStatus.COMPLETED, seconds=2), now=600)
    assert ended.rows_per_second == 200
    assert ended.duration_seconds == 2


def test_a_late_micro_batch_changes_no_state_when_the_flow_has_ended() -> None:
    view = folded(
        event(FlowStatus.RUNNING),
        event(FlowStatus.STOPPED, seconds=1),
        *batch(0, 10, seconds=2),
    )
    assert view.state is FlowStatus.STOPPED
    assert view.rows == 9


def test_last_error_is_kept_when_a_retry_succeeds() -> None:
    error = ErrorInfo(condition="X", class_name="FlowError", message="no")
    view = folded(
        event(FlowStatus.RUNNING),
        event(FlowStatus.QUEUED, error=error),
        event(FlowStatus.RUNNING, seconds=3),
    )
    assert view.state is FlowStatus.RUNNING
    assert view.last_error == error


def test_a_dataset_shows_the_worst_state_when_its_flows_differ() -> None:
    view = folded(
        event(FlowStatus.COMPLETED, flow="a"),
        event(FlowStatus.FAILED, flow="b"),
        event(FlowStatus.RUNNING, flow="c"),
    )
    assert view.state is FlowStatus.FAILED
    assert view.flows == ("a", "b", "c")


def test_temporary_views_are_hidden_and_sinks_are_shown() -> None:
    snapshot = ObservedUpdate()
    for name, kind in (("c.s.t", "STREAMING_TABLE"), ("c.s.v", "TEMPORARY_VIEW")):
        origin = EventOrigin(dataset_name=name)
        snapshot(definition("dataset_definition", origin, "", {"dataset_type": kind}))
    snapshot(definition("sink_definition", EventOrigin(sink_name="out"), "", {"format": "kafka"}))
    snapshot(flow_progress(EventOrigin(dataset_name="c.s.t"), FlowStatus.EXCLUDED, "not selected"))
    sink = EventOrigin(sink_name="out", flow_name="to_out")
    snapshot(flow_progress(sink, FlowStatus.RUNNING, ""))
    datasets = [(view.display, view.kind, view.state) for view in update_view(snapshot).datasets]
    assert datasets == [
        ("t", "streaming table", FlowStatus.EXCLUDED),
        ("out", "sink", FlowStatus.RUNNING),
    ]


def test_update_view_has_the_details_of_the_update() -> None:
    snapshot = ObservedUpdate()
    origin = EventOrigin(pipeline_name="shop", update_id="u")
    failed = ErrorInfo(condition="UPDATE_FAILED", class_name="UpdateFailedError", message="1")
    for seconds, event in (
        (0, definition("create_update", origin, "", {"spark_log": "/x"})),
        (1, update_progress(origin, UpdateState.RUNNING, "go")),
        (2, definition("hook_progress", origin, "careful", {})),
        (5, update_progress(origin, UpdateState.FAILED, "bad", error=failed)),
    ):
        snapshot(replace(event, timestamp=START + timedelta(seconds=seconds)))
    view = update_view(snapshot, START + timedelta(hours=1))
    assert (view.pipeline_name, view.update_id, view.state) == ("shop", "u", UpdateState.FAILED)
    assert view.has_ended
    assert view.duration_seconds == 5
    assert view.error == failed
    assert view.warnings == ("careful",)
    assert view.properties["spark_log"] == "/x"


def test_update_view_is_not_changed_by_later_events() -> None:
    snapshot = ObservedUpdate()
    snapshot(event(FlowStatus.RUNNING))
    before = update_view(snapshot)
    for progress in batch(0, 100, seconds=1):
        snapshot(progress)
    assert before.datasets[0].rows == 0
    assert update_view(snapshot).datasets[0].rows == 99


def test_no_row_is_lost_when_threads_emit_and_read_concurrently() -> None:
    snapshot = ObservedUpdate()
    done = threading.Event()

    def read_views() -> None:
        while not done.is_set():
            update_view(snapshot)

    def emit(flow: str) -> None:
        for number in range(200):
            metrics = FlowMetrics(num_output_rows=1)
            snapshot(event(FlowStatus.RUNNING, flow=flow, batch=number, metrics=metrics))

    reader = threading.Thread(target=read_views)
    reader.start()
    emitters = [threading.Thread(target=emit, args=(f"f{n}",)) for n in range(4)]
    for thread in emitters:
        thread.start()
    for thread in emitters:
        thread.join()
    done.set()
    reader.join()
    assert update_view(snapshot).datasets[0].rows == 800


def test_display_names_are_as_short_as_possible() -> None:
    names = ["c.s.orders", "c.t.orders", "c.s.customers", "plain"]
    assert short_names(names) == {
        "c.s.orders": "s.orders",
        "c.t.orders": "t.orders",
        "c.s.customers": "customers",
        "plain": "plain",
    }
    assert short_names(["a.orders", "orders"])["a.orders"] == "a.orders"
    assert last_part("s.`order lines.csv`") == "`order lines.csv`"


def test_metrics_of_a_view_are_those_of_its_last_refresh() -> None:
    origin = EventOrigin(update_id="u", dataset_name="c.s.silver")
    kind = {"dataset_type": "MATERIALIZED_VIEW"}
    declared = replace(definition("dataset_definition", origin, "", kind), timestamp=START)
    refreshes = [
        event(
            FlowStatus.RUNNING,
            seconds=seconds,
            metrics=FlowMetrics(num_output_rows=rows, quarantined_records=1, dropped_records=1),
            rules=(
                ExpectationCounts(
                    name="positive", dataset="silver", passed_records=rows, failed_records=1
                ),
            ),
        )
        for seconds, rows in ((1, 10), (2, 12))
    ]
    view = folded(declared, *refreshes)
    (flow,) = observed(declared, *refreshes).flows.values()
    assert (view.rows, view.quarantined, view.dropped) == (12, 1, 1)
    assert [(rule.passed, rule.failed) for rule in view.rules] == [(12, 1)]
    assert flow.batches == 2
