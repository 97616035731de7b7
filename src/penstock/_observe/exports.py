"""Exports of an update while it runs: metrics endpoint, OpenLineage and OpenTelemetry."""

import contextlib
import os
import threading
from collections.abc import Callable
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
        metrics = settings.metrics
        try:
            if is_wanted(settings.lineage, settings.root, os.environ):
                self._open_lineage(settings, resolve_secrets)
            if telemetry.is_wanted(settings.telemetry, os.environ):
                self._open_telemetry(settings, update, resolve_secrets)
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
        closing = threading.Thread(target=self._close_telemetry, name="telemetry close")
        closing.start()
        if self._lineage is not None:
            self._lineage.close()
            with contextlib.suppress(Exception):
                self._client.close(timeout=1.0)
        closing.join()
        if self._endpoint is not None:
            self._endpoint.close()

    def _close_telemetry(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()

    def _open_telemetry(
        self,
        settings: PipelineSettings,
        update: ObservedUpdate,
        resolve_secrets: Callable[[str], str],
    ) -> None:
        is_wanted = settings.telemetry.is_wanted
        try:
            telemetry.require_extra()
            self._telemetry = Telemetry(
                settings.telemetry, self._bus, self._origin, update, resolve_secrets=resolve_secrets
            )
        except (MissingExtraError, SpecError) as error:
            if is_wanted:
                raise
            # OpenTelemetry is configured for the whole machine, not by the pipeline.
            text = f"{error.message}: no telemetry is sent; {error.hint}"
            self._warnings.append(text)
        else:
            self._bus.subscribe(self._telemetry)

    def _open_lineage(
        self, settings: PipelineSettings, resolve_secrets: Callable[[str], str]
    ) -> None:
        try:
            lineage_delivery.require_extra()
            self._client = make_client(settings.lineage, settings.root, resolve_secrets)
        except (MissingExtraError, SpecError) as error:
            if settings.lineage.is_wanted:
                raise
            # OpenLineage is configured for the whole machine, not by the pipeline.
            self._warnings.append(f"{error.message}: no lineage is sent; {error.hint}")
            return
        self._lineage = Lineage(
            self._bus, self._origin, self._client.emit, namespace=settings.lineage.namespace
        )
        self._bus.subscribe(self._lineage)
