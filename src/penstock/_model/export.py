"""What a pipeline tells other systems while it runs: metrics and lineage."""

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
