"""What a pipeline keeps and sends: `events`, `maintenance`, `metrics`, `lineage`, ..."""

from types import UnionType
from typing import Annotated, Any, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.name import resolve_name
from penstock._model.pipeline import EventLogSettings, MaintenanceSettings
from penstock._project.documents import as_truth


class SpecPart(BaseModel):
    """A mapping of a spec file: unknown keys and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# Numbers are read as strings, as are all values.
Count = Annotated[int, Field(strict=False, ge=0)]
PositiveCount = Annotated[int, Field(strict=False, ge=1)]
PositiveNumber = Annotated[float, Field(strict=False, gt=0)]
Truth = Annotated[bool, BeforeValidator(as_truth)]


def shorthand(kind: type | UnionType, key: str, *types: Any) -> BeforeValidator:
    """Accept a value of type `kind` as a mapping with only `key`; `types` are the other types."""

    def written_out(value: Any) -> Any:
        value = as_truth(value) if kind is bool else value
        return {key: value} if isinstance(value, kind) else value

    return BeforeValidator(written_out, json_schema_input_type=Union[(kind, *types)])


class EventsSpec(SpecPart):
    """`events: {table: ..., quality_table: ..., keep_days: ..., ...}`."""

    table: str | None = Field(
        default=None, description="Delta table that gets a row per event; default: no table."
    )
    quality_table: str | None = Field(
        default=None,
        description="Delta table that gets a row per batch, dataset and rule; default: no table.",
    )

    keep_days: PositiveNumber | None = Field(
        default=None,
        description="Days until an update is deleted from the event log; default: never.",
    )
    keep_progress_days: PositiveNumber | None = Field(
        default=EventLogSettings().keep_progress_days,
        description="Days until details of single batches are rolled up; null: never.",
    )
    max_progress_mb: PositiveNumber | None = Field(
        default=EventLogSettings().max_progress_mb,
        description="MiB of details of single batches to keep per update; null: all.",
    )

    @field_validator("table", "quality_table")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        try:
            if name is not None:
                resolve_name(name, catalog="c", schema="s")
        except ValueError as error:
            raise ValueError(f"is not the name of a table: {error}") from None
        return name

    def settings(self) -> EventLogSettings:
        return EventLogSettings(**dict(self))


class MetricsSpec(SpecPart):
    """`metrics: {port: ..., address: ...}`."""

    port: Count | None = Field(
        default=None,
        le=65535,
        description="Serve metrics for Prometheus on this port; 0 for any free one.",
    )
    address: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")

    def settings(self) -> MetricsSettings:
        return MetricsSettings(**dict(self))


class MaintenanceSpec(SpecPart):
    """`maintenance: {min_small_files: ..., ...}`, or `maintenance: false`."""

    enabled: Truth = Field(default=True, description="false: updates do not maintain tables.")
    min_small_files: int = Field(
        default=MaintenanceSettings().min_small_files,
        strict=False,
        ge=2,
        description="Number of small files from which a table is compacted.",
    )
    optimize_interval_hours: PositiveNumber = Field(
        default=MaintenanceSettings().optimize_interval_hours,
        description="Hours between two runs of Z-order or clustering of a table.",
    )
    vacuum_interval_hours: PositiveNumber | None = Field(
        default=MaintenanceSettings().vacuum_interval_hours,
        description="Hours between two runs of VACUUM of a table; null: never.",
    )

    def settings(self) -> MaintenanceSettings:
        return MaintenanceSettings(**dict(self))


Maintenance = Annotated[MaintenanceSpec | None, shorthand(bool, "enabled", MaintenanceSpec, None)]


class LineageSpec(SpecPart):
    """`lineage: {namespace: ..., transport: {...}}`, or `lineage: true`."""

    enabled: Truth = Field(default=True, description="false: never send.")
    namespace: str = Field(default="", description="OpenLineage namespace of the jobs.")
    transport: dict[str, Any] = Field(
        default_factory=dict,
        description="Transport as in openlineage.yml; `${secret:...}` is filled in.",
    )

    def settings(self) -> LineageSettings:
        values = dict(self)
        return LineageSettings(is_wanted=values.pop("enabled"), **values)


Lineage = Annotated[LineageSpec | None, shorthand(bool, "enabled", LineageSpec, None)]


class TelemetrySpec(SpecPart):
    """`opentelemetry: {endpoint: ...}`, or `opentelemetry: true`."""

    enabled: Truth = Field(default=True, description="false: never send.")
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="Base URL of an OTLP/HTTP receiver, such as http://localhost:4318.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="HTTP headers; `${secret:...}` is filled in."
    )
    metrics: Truth = Field(default=True, description="Send metrics.")
    traces: Truth = Field(default=True, description="Send traces.")
    interval_seconds: float | None = Field(
        default=None,
        strict=False,
        ge=1,
        description="Export interval of metrics; OTEL_METRIC_EXPORT_INTERVAL, or 60.",
    )

    def settings(self) -> TelemetrySettings:
        values = dict(self)
        return TelemetrySettings(is_wanted=values.pop("enabled"), **values)


Telemetry = Annotated[TelemetrySpec | None, shorthand(bool, "enabled", TelemetrySpec, None)]
