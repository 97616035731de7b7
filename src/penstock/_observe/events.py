"""Events as frozen data; one class of body per event type of Lakeflow.

Components emit events on the bus (`_observe.bus`); they are written to the event log and folded
into the state of the update (`_observe.state`), which terminal, status file, dashboard and metrics
read. Only `_observe.codec` knows the JSON form. The bus masks credentials (`_observe.masking`), so
components may emit events that quote messages of libraries.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from penstock._model.lineage import FlowLineage, LineageSource

Key = TypeVar("Key")


class Level(StrEnum):
    """Severity; METRICS events are for machines only."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    METRICS = "METRICS"


class UpdateState(StrEnum):
    """States of an update, with Lakeflow's names."""

    CREATED = "CREATED"
    INITIALIZING = "INITIALIZING"
    RESETTING = "RESETTING"
    SETTING_UP_TABLES = "SETTING_UP_TABLES"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


TERMINAL_STATES = frozenset({UpdateState.COMPLETED, UpdateState.FAILED, UpdateState.CANCELED})


class FlowStatus(StrEnum):
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    STOPPED = "STOPPED"
    IDLE = "IDLE"
    EXCLUDED = "EXCLUDED"


FINAL_STATUSES = frozenset(
    {FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.SKIPPED, FlowStatus.STOPPED}
)


@dataclass(frozen=True, kw_only=True)
class EventOrigin:
    """Subject of an event. Empty fields are omitted from the JSON form."""

    pipeline_name: str = ""
    update_id: str = ""
    dataset_name: str = ""
    flow_name: str = ""
    sink_name: str = ""
    batch_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorInfo:
    """An error, ready for JSON."""

    condition: str
    class_name: str
    message: str
    fatal: bool = True


@dataclass(frozen=True, kw_only=True)
class ExpectationCounts:
    name: str
    dataset: str
    passed_records: int
    failed_records: int

    def add_to(self, sums: dict[Key, list[int]], key: Key) -> None:
        """Add the passed and failed records to the sums of a key."""
        records = sums.setdefault(key, [0, 0])
        records[0] += self.passed_records
        records[1] += self.failed_records


@dataclass(frozen=True, kw_only=True)
class FlowMetrics:
    """Metrics of one micro-batch or one refresh; `None` means unknown.

    `num_upserted_rows` are merged by an update-mode or CDC flow. `backlog_records` are unread at
    the sources (Kafka: offsets). `dropped_records` include the quarantined ones. `late_records`
    arrived after the watermark; the keys of `duplicate_records` were already in the table.
    """

    num_output_rows: int | None = None
    num_upserted_rows: int | None = None
    num_deleted_rows: int | None = None
    num_input_rows: int | None = None
    batch_duration_ms: int | None = None
    backlog_records: int | None = None
    dropped_records: int | None = None
    quarantined_records: int | None = None
    late_records: int | None = None
    duplicate_records: int | None = None


@dataclass(frozen=True)
class Body:
    """Content of an event, which determines the type, level and maturity of the event."""

    event_type: ClassVar[str]
    maturity_level: ClassVar[str] = "STABLE"
    severity: ClassVar[Level] = Level.INFO
    omits_none: ClassVar[bool] = False

    def level(self, error: ErrorInfo | None) -> Level:
        return self.severity


@dataclass(frozen=True, kw_only=True)
class UnknownBody:
    """Body of an unknown type, or with invalid values, as recorded."""

    event_type: str
    details: Mapping[str, Any]
    recorded_level: Level = Level.INFO
    maturity_level: str = "STABLE"

    def level(self, error: ErrorInfo | None) -> Level:
        return self.recorded_level


@dataclass(frozen=True)
class CreateUpdate(Body):
    """Start of an update, or of a command that changes a table; `properties` are its settings."""

    event_type = "create_update"
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_continuous(self) -> bool:
        return bool(self.properties.get("continuous"))


@dataclass(frozen=True)
class UpdateProgress(Body):
    event_type = "update_progress"
    state: UpdateState

    def level(self, error: ErrorInfo | None) -> Level:
        return Level.ERROR if self.state is UpdateState.FAILED else Level.INFO


@dataclass(frozen=True, kw_only=True)
class Rule:
    name: str = ""
    condition: str = ""
    action: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetDefinition(Body):
    """A table or view; `declared_at` is file and line, `schema_json` Spark's JSON of the schema."""

    event_type = "dataset_definition"
    omits_none = True
    dataset_type: str = ""
    path: str | None = None
    num_flows: int = 0
    declared_at: str = ""
    schema_json: str | None = ""
    expectations: tuple[Rule, ...] = ()

    @property
    def kind(self) -> str:
        """The type in lower case: `streaming table`."""
        return self.dataset_type.lower().replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class SinkDefinition(Body):
    """A sink of the pipeline, with its location if its options define one."""

    event_type = "sink_definition"
    omits_none = True
    format: str = ""
    place: LineageSource | None = None

    kind: ClassVar[str] = "sink"


@dataclass(frozen=True, kw_only=True)
class FlowDefinition(Body):
    event_type = "flow_definition"
    output_dataset: str | None = ""
    output_sink: str | None = ""
    input_datasets: tuple[str, ...] = ()
    external_inputs: tuple[str, ...] = ()
    flow_type: str = ""
    once: bool = False
    language: str = ""
    comment: str | None = None

    @property
    def target(self) -> str:
        return self.output_dataset or self.output_sink or ""


@dataclass(frozen=True)
class ColumnLineage(Body):
    event_type = "column_lineage"
    severity = Level.METRICS
    lineage: FlowLineage


@dataclass(frozen=True, kw_only=True)
class RolledUp:
    """Number of events that a roll-up replaces, and its own fields; see docs/event-log.md."""

    omits_none: ClassVar[bool] = True

    events: int = 1
    batches: int = 0
    rule_batches: int | None = None
    first_batch_id: int | None = None
    since: str | None = None
    first_table_version: int | None = None
    longest_batch_ms: int | None = None
    batch_durations: Mapping[str, int] | None = None
    durations_ms: Mapping[str, int] | None = None
    dropped_by_watermark: Mapping[str, int] | None = None


@dataclass(frozen=True)
class FlowProgress(Body):
    """A flow entered a state, or finished a micro-batch (`RUNNING` with metrics).

    The counts are those of the micro-batch, which committed `table_version` of the target.
    `rolled_up` is set if the event replaces many micro-batches.
    """

    event_type = "flow_progress"
    status: FlowStatus
    metrics: FlowMetrics | None = None
    expectations: tuple[ExpectationCounts, ...] = ()
    table_version: int | None = None
    rolled_up: RolledUp | None = None

    def level(self, error: ErrorInfo | None) -> Level:
        """ERROR for a failure; an error with any other status is a warning."""
        if self.status is FlowStatus.FAILED:
            return Level.ERROR
        return Level.INFO if error is None else Level.WARN


@dataclass(frozen=True)
class StreamProgress(Body):
    """Spark's own `StreamingQueryProgress` of one micro-batch, or the sums of many."""

    event_type = "stream_progress"
    omits_none = True
    severity = Level.METRICS
    maturity_level = "EVOLVING"
    progress_json: Mapping[str, Any] | None = None
    rolled_up: RolledUp | None = None


@dataclass(frozen=True, kw_only=True)
class LagProgress(Body):
    """How far a flow is behind its sources, measured concurrently with its micro-batches.

    The batch id of the event is that of the last finished batch. The fields are those of
    `_observe.lag.lag_summary`; `sources` are read by `_observe.lag`.
    """

    event_type = "lag_progress"
    severity = Level.METRICS
    maturity_level = "EVOLVING"
    measured_at: str | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    seconds_behind: float | None = None
    seconds_to_loss: float | None = None
    loss: str | None = None


@dataclass(frozen=True)
class PlanWarning(Body):
    """A problem of the plan that does not prevent the update."""

    event_type = "plan_warning"
    severity = Level.WARN
    message: str = ""


@dataclass(frozen=True)
class PlanningInformation(Body):
    """How a materialized view is refreshed, and why; see docs/materialized-views.md."""

    event_type = "planning_information"
    technique: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterResources(Body):
    """Executors of the cluster after a change; `lost` are those that ended unexpectedly."""

    event_type = "cluster_resources"
    num_executors: int = 0
    num_task_slots: int = 0
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def level(self, error: ErrorInfo | None) -> Level:
        return Level.WARN if self.lost else Level.INFO


@dataclass(frozen=True, kw_only=True)
class SourceProgress(Body):
    """A source of a running flow stopped responding (`NO_ANSWER`) or responds again (`ANSWERS`)."""

    event_type = "source_progress"
    state: str = ""
    source: str = ""
    problem: str | None = None
    since: str = ""

    def level(self, error: ErrorInfo | None) -> Level:
        return Level.WARN if self.state == "NO_ANSWER" else Level.INFO


@dataclass(frozen=True)
class SourceRowsLost(Body):
    """A source had deleted rows before they were read, and the flow continued without them.

    Each range has `topic`, `partition`, `first` and `end` (exclusive, `None` if unknown); for
    Kinesis `stream`, `shard`, `after`, `rows`; for files `file`.
    """

    event_type = "source_rows_lost"
    severity = Level.WARN
    ranges: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class HookProgress(Body):
    """A failure of an event hook of the user."""

    event_type = "hook_progress"
    severity = Level.WARN
    hook_name: str = ""
    status: str = ""
    declared_at: str = ""


@dataclass(frozen=True, kw_only=True)
class AlertProgress(Body):
    """An alert fired or was resolved, and the targets that were notified.

    `version` is the version of the JSON form for webhooks and commands. It omits `told`, the labels
    of the notified targets, and `not_told`, the reasons why others were not notified. `about` is a
    flow, or a dataset and rule; `suppressed` counts the changes of state that were not notified.
    """

    event_type = "alert_progress"
    version: int = 1
    alert: str = ""
    kind: str = ""
    state: str = ""
    about: str = ""
    value: float | None = None
    threshold: float = 0.0
    message: str = ""
    pipeline: str = ""
    update_id: str = ""
    timestamp: str = ""
    suppressed: int = 0
    told: tuple[str, ...] = ()
    not_told: tuple[str, ...] = ()

    def level(self, error: ErrorInfo | None) -> Level:
        """A warning if it fires, or if a target could not be notified."""
        is_quiet = error is None and self.state != "firing"
        return Level.INFO if is_quiet else Level.WARN


@dataclass(frozen=True, kw_only=True)
class DeliveryProgress(Body):
    """Totals of items sent to another system; for telemetry, per signal."""

    omits_none = True
    signal: str | None = None
    sent: int = 0
    failed: int = 0
    dropped: int = 0

    def level(self, error: ErrorInfo | None) -> Level:
        return Level.INFO if error is None else Level.WARN


class LineageProgress(DeliveryProgress):
    event_type = "lineage_progress"


class TelemetryProgress(DeliveryProgress):
    event_type = "telemetry_progress"


@dataclass(frozen=True, kw_only=True)
class BackfillProgress(Body):
    """A step of a backfill: `planned`, `resumed`, `batch`, `staged`, `done`, and its figures."""

    event_type = "backfill_progress"
    backfill_id: str = ""
    way: str = ""
    range: str = ""
    step: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MigrationProgress(Body):
    """A step of a migration: `planned`, `resumed`, `batch`, `built`, `done`, `undone`."""

    event_type = "migration_progress"
    migration_id: str = ""
    step: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MaintenanceProgress(Body):
    """Maintenance of a table: `operation` is OPTIMIZE or VACUUM; `table` may be a quarantine.

    `status` is COMPLETED, SKIPPED or FAILED, the latter two with the `reason`.
    """

    event_type = "maintenance_progress"
    omits_none = True
    operation: str = ""
    status: str = ""
    table: str = ""
    table_version: int | None = None
    reason: str | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)

    def level(self, error: ErrorInfo | None) -> Level:
        return Level.WARN if self.status == "FAILED" else Level.INFO


@dataclass(frozen=True)
class Event:
    """One event; `timestamp` is in UTC, `message` is one line for people."""

    origin: EventOrigin
    body: Body | UnknownBody
    message: str = ""
    error: ErrorInfo | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def event_type(self) -> str:
        """Lakeflow's name: `update_progress`, `flow_progress`, ..."""
        return self.body.event_type

    @property
    def level(self) -> Level:
        return self.body.level(self.error)
