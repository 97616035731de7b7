"""Settings of exports of a running pipeline: metrics, lineage and traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """The endpoint for Prometheus.

    Attributes:
        port: 0 for any free one; `None` = no endpoint.
        address: What it listens on.
    """

    port: int | None = None
    address: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class LineageSettings:
    """OpenLineage events.

    Attributes:
        is_wanted: Whether the settings say so; otherwise OpenLineage's own configuration decides.
        namespace: Of the jobs; empty = OpenLineage's own configuration, or `penstock`.
        transport: As OpenLineage's client takes it; may hold references to secrets.
    """

    is_wanted: bool | None = None
    namespace: str = ""
    transport: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """Metrics and traces over OpenTelemetry's protocol.

    Attributes:
        is_wanted: Whether the settings say so; otherwise the `OTEL_*` variables decide.
        endpoint: Base URL of the receiver; empty = as those variables say.
        headers: Of each request; may hold references to secrets.
        metrics: Whether metrics are sent.
        traces: Whether traces are sent.
        interval_seconds: Between two reports of metrics; `None` = as those variables say.
    """

    is_wanted: bool | None = None
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: bool = True
    traces: bool = True
    interval_seconds: float | None = None
