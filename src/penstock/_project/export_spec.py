"""What a pipeline keeps and sends: `events`, `maintenance`, `metrics`, `lineage`, ..."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.name import resolve_name
from penstock._model.pipeline import EventLogSettings, MaintenanceSettings


class SpecPart(BaseModel):
    """A mapping of a spec file: unknown keys and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class EventsSpec(SpecPart):
    """`events: {table: ..., quality_table: ..., keep_days: ..., ...}`."""

    table: str | None = Field(
        default=None, description="Delta table that gets a row per event; default: no table."
    )
    quality_table: str | None = Field(
        default=None,
        description="Delta table that gets a row per batch, dataset and rule; default: no table.",
    )

    keep_days: float | None = Field(
        default=None,
        strict=False,
        gt=0,
        description="Days until an update is deleted from the event log; default: never.",
    )
    keep_progress_days: float | None = Field(
        default=EventLogSettings().keep_progress_days,
        strict=False,
        gt=0,
        description="Days until details of single batches are rolled up; null: never.",
    )
    max_progress_mb: float | None = Field(
        default=EventLogSettings().max_progress_mb,
        strict=False,
        gt=0,
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

    port: int | None = Field(
        default=None,
        strict=False,
        ge=0,
        le=65535,
        description="Serve metrics for Prometheus on this port; 0 for any free one.",
    )
    address: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")

    def settings(self) -> MetricsSettings:
        return MetricsSettings(**dict(self))


def _as_switch(value: Any) -> Any:
    return {"enabled": value} if isinstance(value, bool) else value


class MaintenanceSpec(SpecPart):
    """`maintenance: {min_small_files: ..., ...}`, or `maintenance: false`."""

    enabled: bool = Field(default=True, description="false: updates do not maintain tables.")
    min_small_files: int = Field(
        default=MaintenanceSettings().min_small_files,
        strict=False,
        ge=2,
        description="Number of small files from which a table is compacted.",
    )
    optimize_interval_hours: float = Field(
        default=MaintenanceSettings().optimize_interval_hours,
        strict=False,
        gt=0,
        description="Hours between two runs of Z-order or clustering of a table.",
    )
    vacuum_interval_hours: float | None = Field(
        default=MaintenanceSettings().vacuum_interval_hours,
        strict=False,
        gt=0,
        description="Hours between two runs of VACUUM of a table; null: never.",
    )

    def settings(self) -> MaintenanceSettings:
        return MaintenanceSettings(**dict(self))


Maintenance = Annotated[
    MaintenanceSpec | None,
    BeforeValidator(_as_switch, json_schema_input_type=bool | MaintenanceSpec | None),
]


class LineageSpec(SpecPart):
    """`lineage: {namespace: ..., transport: {...}}`, or `lineage: true`."""

    enabled: bool = Field(default=True, description="false: never send.")
    namespace: str = Field(default="", description="OpenLineage namespace of the jobs.")
    transport: dict[str, Any] = Field(
        default_factory=dict,
        description="Transport as in openlineage.yml; `${secret:...}` is filled in.",
    )

    def settings(self) -> LineageSettings:
        values = dict(self)
        return LineageSettings(is_wanted=values.pop("enabled"), **values)


Lineage = Annotated[
    LineageSpec | None,
    BeforeValidator(_as_switch, json_schema_input_type=bool | LineageSpec | None),
]


class TelemetrySpec(SpecPart):
    """`opentelemetry: {endpoint: ...}`, or `opentelemetry: true`."""

    enabled: bool = Field(default=True, description="false: never send.")
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="Base URL of an OTLP/HTTP receiver, such as http://localhost:4318.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="HTTP headers; `${secret:...}` is filled in."
    )
    metrics: bool = Field(default=True, description="Send metrics.")
    traces: bool = Field(default=True, description="Send traces.")
    interval_seconds: float | None = Field(
        default=None,
        strict=False,
        ge=1,
        description="Export interval of metrics; OTEL_METRIC_EXPORT_INTERVAL, or 60.",
    )

    def settings(self) -> TelemetrySettings:
        values = dict(self)
        return TelemetrySettings(is_wanted=values.pop("enabled"), **values)


Telemetry = Annotated[
    TelemetrySpec | None,
    BeforeValidator(_as_switch, json_schema_input_type=bool | TelemetrySpec | None),
]
