"""Settings of exports of a running pipeline: metrics, lineage and traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """The endpoint for Prometheus; port 0 for any free one, `None` = no endpoint."""

    port: int | None = None
    address: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class LineageSettings:
    """OpenLineage events.

    Without `is_wanted` and for an empty namespace, OpenLineage's own configuration decides. The
    transport is as its client takes it, and may hold references to secrets.
    """

    is_wanted: bool | None = None
    namespace: str = ""
    transport: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """Metrics and traces over OpenTelemetry's protocol.

    The `OTEL_*` variables decide without `is_wanted`, and about an empty endpoint and interval.
    Headers may hold references to secrets.
    """

    is_wanted: bool | None = None
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: bool = True
    traces: bool = True
    interval_seconds: float | None = None
