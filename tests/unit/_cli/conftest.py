from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from made_events import definition, flow_progress, planning_information, update_progress

from penstock._observe.events import (
    ErrorInfo,
    Event,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)

START = datetime(2026, 3, 4, 14, 47, 39, 120_000, tzinfo=UTC)
UPDATE_ID = "8c1f2d3e-0000-4000-8000-000000000001"
TABLES = {
    "bronze": "STREAMING_TABLE",
    "silver": "STREAMING_TABLE",
    "revenue_per_product_and_day": "MATERIALIZED_VIEW",
    "customers": "STREAMING_TABLE",
    "customer_totals": "MATERIALIZED_VIEW",
}


class Recorder:
    """Creates the events of an update with fixed timestamps."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = START
        self._origin = {"pipeline_name": "shop", "update_id": UPDATE_ID}

    def origin(self, table: str = "", *, batch: int | None = None) -> EventOrigin:
        key = f"spark_catalog.default.{table}" if table else ""
        return EventOrigin(**self._origin, dataset_name=key, flow_name=table, batch_id=batch)

    def add(self, event: Event, after: float = 0.0) -> None:
        self.now += timedelta(seconds=after)
        self.events.append(replace(event, timestamp=self.now))

    def update(self, state: UpdateState, message: str, **kwargs) -> None:
        self.add(update_progress(self.origin(), state, message, **kwargs), 0.5)

    def status(self, table: str, status: FlowStatus, message: str = "", **kwargs) -> None:
        self.add(flow_progress(self.origin(table), status, message, **kwargs), 0.1)

    def batch(self, table: str, number: int, rows: int, bad: int = 0, *, took: float = 1.0) -> None:
        """Add the two events of a micro-batch: the writer's commit and Spark's progress."""
        origin = self.origin(table, batch=number)
        self.add(
            flow_progress(
                origin,
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(
                    num_output_rows=rows, dropped_records=bad, quarantined_records=bad
                ),
                expectations=[
                    ExpectationCounts(
                        name="positive_amount",
                        dataset=table,
                        passed_records=rows,
                        failed_records=bad,
                    )
                ]
                if bad
                else (),
                table_version=number + 1,
            ),
            took,
        )
        self.add(
            flow_progress(
                origin,
                FlowStatus.RUNNING,
                "",
                metrics=FlowMetrics(
                    num_input_rows=rows + bad,
                    batch_duration_ms=int(took * 1000),
                    backlog_records=max(0, 2000 - 1000 * number),
                ),
            )
        )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recording(recorder: Recorder) -> list[Event]:
    """An update in which `silver` quarantines rows and `customers` fails."""
    r = recorder
    r.add(
        definition(
            "create_update",
            r.origin(),
            "update of pipeline 'shop'",
            {"spark_log": "/data/logs/spark-8c1f.log", "event_log": "/data/events"},
        )
    )
    r.update(UpdateState.INITIALIZING, "starting Spark")
    for table, kind in TABLES.items():
        r.add(definition("dataset_definition", r.origin(table), "", {"dataset_type": kind}))
    r.add(
        definition(
            "dataset_definition", r.origin("raw_view"), "", {"dataset_type": "TEMPORARY_VIEW"}
        )
    )
    for table in TABLES:
        r.status(table, FlowStatus.QUEUED, f"{table} is queued")
    r.update(UpdateState.RUNNING, "running")
    for table in ("bronze", "customers"):
        r.status(table, FlowStatus.STARTING)
        r.status(table, FlowStatus.RUNNING)
    r.batch("bronze", 0, 1000)
    r.batch("bronze", 1, 246)
    r.status("bronze", FlowStatus.COMPLETED, "bronze completed")
    r.status(
        "customers",
        FlowStatus.FAILED,
        "customers failed (another try cannot help): a row violates the rule",
        error=ErrorInfo(
            condition="EXPECTATION_FAILED",
            class_name="ExpectationFailedError",
            message="a row of batch 0 violates the rule known_customer: customer_id = NULL\n"
            "  declared at transformations/customers.py:12",
        ),
    )
    r.status("customer_totals", FlowStatus.SKIPPED, "customer_totals skipped: customers failed")
    r.status("silver", FlowStatus.STARTING)
    r.status("silver", FlowStatus.RUNNING)
    r.batch("silver", 0, 1234, 12, took=3.2)
    r.status("silver", FlowStatus.COMPLETED, "silver completed")
    view = "revenue_per_product_and_day"
    r.status(view, FlowStatus.RUNNING)
    r.add(planning_information(r.origin(view), "NO_OP", "no source changed"))
    r.status(view, FlowStatus.IDLE, "no source changed")
    r.update(
        UpdateState.FAILED,
        "1 flow failed; the others finished",
        error=ErrorInfo(
            condition="UPDATE_FAILED", class_name="UpdateFailedError", message="1 flow failed"
        ),
    )
    return r.events
