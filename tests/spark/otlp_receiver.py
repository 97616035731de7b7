"""A receiver of OTLP over HTTP on this machine that decodes requests."""

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_FORMS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@dataclass(frozen=True)
class Span:
    """A received span."""

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    began: int
    ended: int
    attributes: dict[str, Any]
    status: int
    message: str
    events: list[dict[str, Any]]


class OtlpReceiver:
    """Stores posted bodies. `status` is its response; it responds when `released` is set."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[tuple[str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.released.wait(30)
                receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
                if receiver.status < 300:
                    receiver.bodies.append((self.path, body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def messages(self, path: str) -> list[Any]:
        return [_FORMS[p].FromString(body) for p, body in list(self.bodies) if p == path]

    @property
    def spans(self) -> list[Span]:
        return [
            Span(
                name=span.name,
                trace=span.trace_id,
                span=span.span_id,
                parent=span.parent_span_id,
                began=span.start_time_unix_nano,
                ended=span.end_time_unix_nano,
                attributes=attributes(span.attributes),
                status=span.status.code,
                message=span.status.message,
                events=[{"name": e.name, **attributes(e.attributes)} for e in span.events],
            )
            for message in self.messages("/v1/traces")
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last report by name."""
        (resource,) = self.messages("/v1/metrics")[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    @property
    def resources(self) -> list[dict[str, Any]]:
        received = [r for m in self.messages("/v1/traces") for r in m.resource_spans]
        received += [r for m in self.messages("/v1/metrics") for r in m.resource_metrics]
        return [attributes(resource.resource.attributes) for resource in received]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def points(metric: Any) -> dict[tuple[str, ...], Any]:
    """Data points of a metric by their label values, in the order of the labels."""
    data = getattr(metric, metric.WhichOneof("data"))
    return {tuple(attributes(point.attributes).values()): point for point in data.data_points}
