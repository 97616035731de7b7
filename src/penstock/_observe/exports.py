"""What goes from the events of an update to other systems while it runs."""

from collections.abc import Callable

from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import EventOrigin
from penstock._observe.metrics import MetricsFold
from penstock._observe.metrics_endpoint import MetricsEndpoint


class Exports:
    """Opens what the settings ask for and subscribes it to the bus; close it at the end.

    Args:
        settings: Of the pipeline.
        bus: Of the update.
        origin: Of the events that tell how it goes.
        resolve_secrets: Fills `${secret:...}` in.

    Raises:
        SetupError: `CANNOT_LISTEN`.
        MissingExtraError: `MISSING_EXTRA`.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bus: EventBus,
        origin: EventOrigin,
        resolve_secrets: Callable[[str], str],
    ) -> None:
        self._endpoint: MetricsEndpoint | None = None
        wanted = settings.metrics
        if wanted.port is not None:
            fold = MetricsFold()
            self._endpoint = MetricsEndpoint(fold, address=wanted.address, port=wanted.port)
            bus.subscribe(fold)

    @property
    def metrics_url(self) -> str | None:
        """What Prometheus scrapes; `None` without an endpoint."""
        return None if self._endpoint is None else self._endpoint.url

    @property
    def note(self) -> str:
        """For people, to stand behind another message."""
        return "" if self._endpoint is None else f"; metrics at {self._endpoint.url}"

    def warn(self) -> None:
        """Emit what is worth a warning; called when the event log is there."""

    def close(self) -> None:
        """Send what is waiting, within bounds, and stop serving."""
        if self._endpoint is not None:
            self._endpoint.close()
