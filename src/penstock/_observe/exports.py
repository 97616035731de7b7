"""Exports of an update while it runs: metrics endpoint, OpenLineage and OpenTelemetry."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock._model.pipeline import PipelineSettings
from penstock._observe import lineage_delivery, telemetry
from penstock._observe.bus import EventBus
from penstock._observe.events import Event, EventOrigin, PlanWarning
from penstock._observe.lineage_delivery import Lineage, is_wanted, make_client
from penstock._observe.metrics_endpoint import MetricsEndpoint
from penstock._observe.state import ObservedUpdate
from penstock._observe.telemetry import Telemetry
from penstock.errors import MissingExtraError, SpecError


class Exports:
    """Opens the configured exports; `update` must be subscribed to the bus already."""

    def __init__(
        self,
        settings: PipelineSettings,
        bus: EventBus,
        origin: EventOrigin,
        update: ObservedUpdate,
        resolve_secrets: Callable[[str], str],
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._lineage: Lineage | None = None
        self._client: Any = None
        self._warnings: list[str] = []
        self._endpoint: MetricsEndpoint | None = None
        self._telemetry: Telemetry | None = None
        lineage, otel, metrics = settings.lineage, settings.telemetry, settings.metrics
        try:
            if is_wanted(lineage, settings.root, os.environ):
                with self._optional("lineage", is_wanted=lineage.is_wanted):
                    lineage_delivery.require_extra()
                    self._client = make_client(lineage, settings.root, resolve_secrets)
                    self._lineage = Lineage(
                        bus, origin, self._client.emit, namespace=lineage.namespace
                    )
                    bus.subscribe(self._lineage)
            if telemetry.is_wanted(otel, os.environ):
                with self._optional("telemetry", is_wanted=otel.is_wanted):
                    telemetry.require_extra()
                    self._telemetry = Telemetry(
                        otel, bus, origin, update, resolve_secrets=resolve_secrets
                    )
                    bus.subscribe(self._telemetry)
            if metrics.port is not None:
                self._endpoint = MetricsEndpoint(update, address=metrics.address, port=metrics.port)
        except BaseException:
            self.close()
            raise

    @property
    def metrics_url(self) -> str | None:
        """URL for Prometheus to scrape; `None` without an endpoint."""
        return None if self._endpoint is None else self._endpoint.url

    @property
    def note(self) -> str:
        """Suffix for messages, with the URL of the metrics."""
        return "" if self._endpoint is None else f"; metrics at {self._endpoint.url}"

    def warn(self) -> None:
        """Emit the warnings of the start; call it after the event log is subscribed."""
        for text in self._warnings:
            self._bus.emit(Event(self._origin, PlanWarning(text), text))

    def close(self) -> None:
        """Send what is queued, within the timeouts, and close the endpoint."""
        close_telemetry = None if self._telemetry is None else self._telemetry.close
        closing = threading.Thread(target=close_telemetry, name="telemetry close")
        closing.start()
        if self._lineage is not None:
            self._lineage.close()
            with contextlib.suppress(Exception):
                self._client.close(timeout=1.0)
        closing.join()
        if self._endpoint is not None:
            self._endpoint.close()

    @contextlib.contextmanager
    def _optional(self, what: str, *, is_wanted: bool | None) -> Iterator[None]:
        """Turn errors into warnings unless the settings of the pipeline want the export."""
        try:
            yield
        except (MissingExtraError, SpecError) as error:
            if is_wanted:
                raise
            # It is configured for the whole machine, not by the pipeline.
            self._warnings.append(f"{error.message}: no {what} is sent; {error.hint}")
