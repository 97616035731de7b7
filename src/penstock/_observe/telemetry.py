"""Exports metrics and traces with OpenTelemetry's OTLP/HTTP exporters."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock._model.export import TelemetrySettings
from penstock._model.extras import import_extra
from penstock._model.redaction import remember_secret
from penstock._observe.bus import EventBus
from penstock._observe.delivery import DRAIN_SECONDS, FAILING_DRAIN_SECONDS, Delivery, Signal
from penstock._observe.events import Event, EventOrigin, TelemetryProgress
from penstock._observe.masking import shown
from penstock._observe.metrics import metric_series
from penstock._observe.state import ObservedUpdate
from penstock.errors import SpecError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

NOT_CONFIGURED = "TELEMETRY_NOT_CONFIGURED"

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_TIMEOUT_SECONDS = 5.0
"""Timeout of an export, including the exporter's retries, unless an `OTEL_*` variable sets one."""

_INTERVAL_SECONDS = 60.0
_GATHER_SECONDS = 5.0
_SPANS_AT_ONCE = 512
_LOGGERS = "opentelemetry.exporter"


def is_wanted(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    """Whether telemetry is enabled, by the settings or else by `OTEL_*` variables."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if settings.is_wanted is None and not any(environ.get(name) for name in _ENDPOINTS):
        return False
    return settings.is_wanted is not False and any(
        _has_signal(settings, signal, environ) for signal in ("metrics", "traces")
    )


def _has_signal(settings: TelemetrySettings, signal: str, environ: Mapping[str, str]) -> bool:
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower()
    return bool(getattr(settings, signal)) and exporter != "none"


def require_extra() -> None:
    """Raise `MISSING_EXTRA` unless OpenTelemetry's SDK and exporters are installed."""
    import_extra(
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry.sdk.trace",
        extra="otel",
        feature="OpenTelemetry",
        package="opentelemetry-exporter-otlp-proto-http",
    )


class Telemetry:
    """Sends metrics and traces of an update on background threads; see `Delivery`.

    Subscribe it to the bus after the state of the update.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        bus: EventBus,
        origin: EventOrigin,
        update: ObservedUpdate,
        *,
        resolve_secrets: Callable[[str], str],
    ) -> None:
        self._bus, self._origin = bus, origin
        _require_http(settings)
        self._endpoint = settings.endpoint.rstrip("/")
        self._headers = {key: resolve_secrets(value) for key, value in settings.headers.items()}
        for value in self._headers.values():
            remember_secret(value)
            remember_secret(value.rpartition(" ")[2])
        self._interval_seconds = settings.interval_seconds or _interval()
        self._exporter_log = _ExporterLog()
        self._exporters: list[Any] = []
        self._metrics: Delivery | None = None
        self._traces: Delivery | None = None
        try:
            resource = _resource(origin)
            if _has_signal(settings, "metrics", os.environ):
                self._metrics = self._open_metrics(resource, update)
            if _has_signal(settings, "traces", os.environ):
                self._traces = self._open_traces(resource)
        except Exception as error:
            # The exporters read a dozen variables and have no exception type for invalid ones.
            self.close()
            text = shown(f"{type(error).__name__}: {error}")
            raise SpecError(
                NOT_CONFIGURED,
                f"OpenTelemetry rejected its configuration: {text}",
                hint="see `opentelemetry` in the settings, and the OTEL_* variables",
            ) from None

    def __call__(self, event: Event) -> None:
        """Queue an event. Thread-safe, never blocks."""
        if self._traces is not None:
            self._traces(event)

    def close(self) -> None:
        """Send what is queued, both signals concurrently and within the timeouts.

        Both usually go to one receiver: if one signal fails, the wait for both is short.
        """
        deliveries = [each for each in (self._metrics, self._traces) if each is not None]
        is_failing = any(delivery.is_failing for delivery in deliveries)
        drain_seconds = FAILING_DRAIN_SECONDS if is_failing else DRAIN_SECONDS
        closing = [
            threading.Thread(target=delivery.close, args=(drain_seconds,), daemon=True)
            for delivery in deliveries
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for exporter in self._exporters:
            exporter.shutdown()
        self._exporters.clear()
        self._exporter_log.close()

    # -- signals -------------------------------------------------------------------------------

    def _options(self, signal: str) -> dict[str, Any]:
        """Arguments of an exporter, which reads the rest from `OTEL_*` variables."""
        options: dict[str, Any] = {}
        if self._endpoint:
            options["endpoint"] = f"{self._endpoint}/v1/{signal}"
        if self._headers:
            options["headers"] = self._headers
        names = ("OTEL_EXPORTER_OTLP_TIMEOUT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_TIMEOUT")
        if not any(os.environ.get(name) for name in names):
            options["timeout"] = _TIMEOUT_SECONDS
        return options

    def _open_traces(self, resource: "Resource") -> Delivery:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        from penstock._observe.telemetry_traces import TraceFold

        exporter = OTLPSpanExporter(**self._options("traces"))
        self._exporters.append(exporter)
        fold = TraceFold(resource, os.environ)

        def send(spans: list[Any]) -> None:
            if exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise ConnectionError(self._exporter_log.last("trace_exporter"))

        return Delivery(
            self._bus,
            self._origin,
            _signal_of("traces", "spans"),
            fold=fold,
            send=send,
            finish=fold.finish,
            batch_size=_SPANS_AT_ONCE,
            gather_seconds=_GATHER_SECONDS,
        )

    def _open_metrics(self, resource: "Resource", update: ObservedUpdate) -> Delivery:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        from penstock._observe.telemetry_metrics import metrics_data

        exporter = OTLPMetricExporter(**self._options("metrics"))
        self._exporters.append(exporter)
        started = time.time_ns()

        def report() -> "list[MetricsData]":
            series = metric_series(update)
            return [metrics_data(series, resource, started=started, now=time.time_ns())]

        def send(reports: "list[MetricsData]") -> None:
            # Sums are cumulative: the newest report includes the earlier ones.
            if exporter.export(reports[-1]) is not MetricExportResult.SUCCESS:
                raise ConnectionError(self._exporter_log.last("metric_exporter"))

        return Delivery(
            self._bus,
            self._origin,
            _signal_of("metrics", "reports"),
            fold=lambda _: (),
            send=send,
            finish=report,
            on_interval=report,
            interval_seconds=self._interval_seconds,
            queue_size=2,
            batch_size=2,
            drop_oldest=True,
        )


class _ExporterLog(logging.Handler):
    """Keeps the log messages of the exporters, the only source of the reason for a failure.

    They are not printed: the terminal shows the update.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: dict[str, str] = {}
        self._logger = logging.getLogger(_LOGGERS)
        self._propagated = self._logger.propagate
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._messages[record.name.rpartition(".")[2]] = record.getMessage()

    def last(self, exporter: str) -> str:
        return self._messages.get(exporter, "the receiver rejected the request")

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()


def _signal_of(signal: str, items: str) -> Signal:
    return Signal(
        name=signal,
        items=items,
        body=partial(TelemetryProgress, signal=signal),
        condition="TELEMETRY_NOT_DELIVERED",
        class_name="TelemetryError",
    )


def _require_http(settings: TelemetrySettings) -> None:
    names = [f"OTEL_EXPORTER_OTLP_{part}PROTOCOL" for part in ("TRACES_", "METRICS_", "")]
    variable = next((name for name in names if os.environ.get(name)), None)
    protocol = os.environ[variable].strip() if variable else ""
    if variable and not settings.endpoint and protocol != "http/protobuf":
        raise SpecError(
            NOT_CONFIGURED,
            f"{variable} is {protocol!r}, but only http/protobuf is supported",
            hint="set `opentelemetry.endpoint` to an OTLP/HTTP receiver; its port is usually 4318",
        )


def _interval() -> float:
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not text:
        return _INTERVAL_SECONDS
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(
            NOT_CONFIGURED,
            f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}, which is not a number of milliseconds",
            hint="set it to milliseconds: 60000 is one minute",
        )
    return int(text) / 1000


def _resource(origin: EventOrigin) -> "Resource":
    """The service from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, or the pipeline."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    resource = Resource.create()
    attributes = {key: _without_secrets(value) for key, value in resource.attributes.items()}
    if str(attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        attributes[SERVICE_NAME] = origin.pipeline_name
    return Resource(attributes, resource.schema_url)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    return [_without_secrets(item) for item in value] if isinstance(value, Sequence) else value
