"""Metrics and traces over OpenTelemetry's protocol, OTLP over HTTP, with its own exporters."""

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
from penstock._observe.delivery import DRAIN_SECONDS, MOMENT_SECONDS, Delivery, Signal
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
"""Of an export with the exporter's own retries, if no `OTEL_*` variable says another one."""

_INTERVAL_SECONDS = 60.0
_GATHER_SECONDS = 5.0
_SPANS_AT_ONCE = 512
_LOGGERS = "opentelemetry.exporter"


def is_wanted(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    """Whether anything is to be sent: as the settings say, or as `OTEL_*` variables do.

    Args:
        settings: Of the pipeline.
        environ: Environment variables.
    """
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
    """Make sure that OpenTelemetry's SDK and exporters are installed.

    Raises:
        MissingExtraError: `MISSING_EXTRA`.
    """
    import_extra(
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry.sdk.trace",
        extra="otel",
        feature="OpenTelemetry",
        package="opentelemetry-exporter-otlp-proto-http",
    )


class Telemetry:
    """Sends metrics and traces of an update, each on threads of its own; see `Delivery`.

    Subscribe it to the bus, and the state of the update before it.

    Args:
        settings: Of the pipeline.
        bus: Takes `telemetry_progress` events.
        origin: Of those events.
        update: Its state.
        resolve_secrets: Fills `${secret:...}` in.
        environ: Environment variables; what OpenTelemetry itself reads is that of the process.

    Raises:
        SpecError: `TELEMETRY_NOT_CONFIGURED`.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        bus: EventBus,
        origin: EventOrigin,
        update: ObservedUpdate,
        *,
        resolve_secrets: Callable[[str], str],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._bus, self._origin = bus, origin
        _require_http(settings, environ)
        options = _Options(settings, environ, resolve_secrets)
        self._words = _ExporterWords()
        self._exporters: list[Any] = []
        self._metrics: Delivery | None = None
        self._traces: Delivery | None = None
        try:
            resource = _resource(origin, environ)
            if _has_signal(settings, "metrics", environ):
                self._metrics = self._open_metrics(options, resource, update)
            if _has_signal(settings, "traces", environ):
                self._traces = self._open_traces(options, resource, environ)
        except Exception as error:
            # The exporters read a dozen variables; what they find wrong has no type of its own.
            self.close()
            text = shown(f"{type(error).__name__}: {error}")
            raise SpecError(
                NOT_CONFIGURED,
                f"OpenTelemetry does not accept its configuration: {text}",
                hint="see `opentelemetry` in the settings, and the OTEL_* variables",
            ) from None

    def __call__(self, event: Event) -> None:
        """Take an event; any thread, never blocks."""
        if self._traces is not None:
            self._traces(event)

    def close(self) -> None:
        """Send what is waiting, within bounds, both signals at a time.

        Mostly both go to one receiver: where one signal fails, the other one hardly waits, either.
        """
        open_ones = [sender for sender in (self._metrics, self._traces) if sender is not None]
        most = MOMENT_SECONDS if any(sender.is_failing for sender in open_ones) else DRAIN_SECONDS
        closing = [
            threading.Thread(target=sender.close, args=(most,), daemon=True) for sender in open_ones
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for exporter in self._exporters:
            exporter.shutdown()
        self._exporters.clear()
        self._words.close()

    # -- signals -------------------------------------------------------------------------------

    def _open_traces(
        self, options: "_Options", resource: "Resource", environ: Mapping[str, str]
    ) -> Delivery:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        from penstock._observe.telemetry_traces import TraceFold

        exporter = OTLPSpanExporter(**options.of("traces"))
        self._exporters.append(exporter)
        fold = TraceFold(resource, environ)

        def send(spans: list[Any]) -> None:
            if exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise ConnectionError(self._words.last("trace_exporter"))

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

    def _open_metrics(
        self, options: "_Options", resource: "Resource", update: ObservedUpdate
    ) -> Delivery:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        from penstock._observe.telemetry_metrics import metrics_data

        exporter = OTLPMetricExporter(**options.of("metrics"))
        self._exporters.append(exporter)
        started = time.time_ns()

        def report() -> "list[MetricsData]":
            series = metric_series(update)
            return [metrics_data(series, resource, started=started, now=time.time_ns())]

        def send(reports: "list[MetricsData]") -> None:
            # Sums grow from the beginning, so the newest report has all that those before it have.
            if exporter.export(reports[-1]) is not MetricExportResult.SUCCESS:
                raise ConnectionError(self._words.last("metric_exporter"))

        return Delivery(
            self._bus,
            self._origin,
            _signal_of("metrics", "reports"),
            fold=lambda _: (),
            send=send,
            finish=report,
            regularly=report,
            every_seconds=options.interval_seconds,
            queue_size=2,
            batch_size=2,
            newest_counts=True,
        )


class _Options:
    """Arguments of exporters: what the settings say; the rest they read from `OTEL_*` variables."""

    def __init__(
        self,
        settings: TelemetrySettings,
        environ: Mapping[str, str],
        resolve_secrets: Callable[[str], str],
    ) -> None:
        self._endpoint = settings.endpoint.rstrip("/")
        self._headers = {key: resolve_secrets(value) for key, value in settings.headers.items()}
        for value in self._headers.values():
            remember_secret(value)
            remember_secret(value.rpartition(" ")[2])
        self._environ = environ
        self.interval_seconds = settings.interval_seconds or _interval(environ)

    def of(self, signal: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        if self._endpoint:
            attributes["endpoint"] = f"{self._endpoint}/v1/{signal}"
        if self._headers:
            attributes["headers"] = self._headers
        names = ("OTEL_EXPORTER_OTLP_TIMEOUT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_TIMEOUT")
        if not any(self._environ.get(name) for name in names):
            attributes["timeout"] = _TIMEOUT_SECONDS
        return attributes


class _ExporterWords(logging.Handler):
    """Keeps what the exporters log: the reason of a failure, which they give nowhere else.

    It does not go to the terminal, which belongs to the update.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: dict[str, str] = {}
        self._logger = logging.getLogger(_LOGGERS)
        self._propagated = self._logger.propagate
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._said[record.name.rpartition(".")[2]] = record.getMessage()

    def last(self, exporter: str) -> str:
        """The newest words of an exporter."""
        return self._said.get(exporter, "the receiver did not take it")

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()


def _signal_of(signal: str, things: str) -> Signal:
    return Signal(
        name=signal,
        things=things,
        body=partial(TelemetryProgress, signal=signal),
        condition="TELEMETRY_NOT_DELIVERED",
        class_name="TelemetryError",
    )


def _require_http(settings: TelemetrySettings, environ: Mapping[str, str]) -> None:
    names = [f"OTEL_EXPORTER_OTLP_{part}PROTOCOL" for part in ("TRACES_", "METRICS_", "")]
    said = next((name for name in names if environ.get(name)), None)
    protocol = environ[said].strip() if said else ""
    if said and not settings.endpoint and protocol != "http/protobuf":
        raise SpecError(
            NOT_CONFIGURED,
            f"{said} is {protocol!r}, and only http/protobuf is spoken here",
            hint="name an OTLP/HTTP receiver as `opentelemetry.endpoint`; its port is mostly 4318",
        )


def _interval(environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not text:
        return _INTERVAL_SECONDS
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(
            NOT_CONFIGURED,
            f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}, and not a number of milliseconds",
            hint="60000 is one minute",
        )
    return int(text) / 1000


def _resource(origin: EventOrigin, environ: Mapping[str, str]) -> "Resource":
    """Who tells: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else the pipeline."""
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
