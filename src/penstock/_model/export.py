"""Settings of exports of a running pipeline: metrics, lineage and traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """The endpoint for Prometheus; port 0 means any free port, `None` no endpoint."""

    port: int | None = None
    address: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class LineageSettings:
    """OpenLineage events.

    If `is_wanted` is `None` or the namespace is empty, OpenLineage's own configuration applies. The
    transport has the form of OpenLineage's client, and may contain references to secrets.
    """

    is_wanted: bool | None = None
    namespace: str = ""
    transport: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """Metrics and traces over OpenTelemetry's protocol.

    The `OTEL_*` variables apply if `is_wanted` is `None`, and to an endpoint or interval that is
    not set. Headers may contain references to secrets.
    """

    is_wanted: bool | None = None
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: bool = True
    traces: bool = True
    interval_seconds: float | None = None
