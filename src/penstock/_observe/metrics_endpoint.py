"""The HTTP endpoint for Prometheus, on a background thread."""

import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock._model.extras import import_extra
from penstock._observe.loopback import is_loopback, names_loopback
from penstock._observe.metrics import Kind, Series, metric_series
from penstock._observe.state import BATCH_BUCKETS, ObservedUpdate
from penstock.errors import SetupError

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

PATH = "/metrics"
_CLIENT_SECONDS = 10.0
_MAX_CLIENTS = 8
_FRESH_SECONDS = 0.5


def require_metrics_extra() -> None:
    """Raise `MISSING_EXTRA` unless prometheus-client is installed."""
    import_extra(
        "prometheus_client",
        extra="metrics",
        feature="the metrics endpoint",
        package="prometheus-client",
    )


def exposition(update: ObservedUpdate, accept: str = "") -> tuple[bytes, str]:
    """The body of a scrape and its content type, in the format that the `Accept` header selects."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    # The encoders only call `collect`.
    registry: Any = SimpleNamespace(collect=lambda: map(_family, metric_series(update)))
    return encode(registry), content_type


def _family(series: Series) -> "Family":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric = series.metric
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, counts in series.values.items():
            buckets, count = [], 0
            for bound, more in zip((*BATCH_BUCKETS, "+Inf"), counts.counts, strict=True):
                count += more
                buckets.append((str(bound), float(count)))
            histogram.add_metric(labels, buckets, sum_value=counts.total)
        return histogram
    make: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family: Family = make(metric.name, metric.help, labels=metric.labels)
    add: Any = family
    for labels, value in series.values.items():
        add.add_metric(labels, value)
    return family


class MetricsEndpoint:
    """Serves the metrics of an update on `/metrics` until closed; port 0 selects a free port.

    On a loopback address only loopback host names are accepted, so that a web page cannot read the
    metrics by DNS rebinding. The response is rendered at most twice a second and at most eight
    clients are served at once, to bound the load on the driver.
    """

    def __init__(self, update: ObservedUpdate, *, address: str, port: int) -> None:
        require_metrics_extra()
        self._address = address
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            server_class = type("Server", (_Server,), {"address_family": family})
            self._server: _Server = server_class((address, port), _Handler)
        except OSError as error:
            raise SetupError(
                "CANNOT_LISTEN",
                f"metrics cannot be served on {address}, port {port}: {error.strerror or error}",
                hint="set another port with --metrics-port or `metrics.port` in the settings; 0 "
                "selects a free port",
            ) from error
        self._server.update = update
        self._server.checks_host = is_loopback(address)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        name = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{name}:{self._server.server_address[1]}{PATH}"

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    update: ObservedUpdate
    checks_host: bool

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, bytes, str]] = {}
        super().__init__(*arguments)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The response to a scrape, rendered at most twice a second."""
        form = "openmetrics" if "openmetrics" in accept else ""
        with self._lock:
            made, body, content_type = self._kept.get(form, (-_FRESH_SECONDS, b"", ""))
            now = time.monotonic()
            if not body or now - made >= _FRESH_SECONDS:
                # Cached by format, not by header: the cache has one entry per format.
                wanted = "application/openmetrics-text;version=1.0.0" if form else ""
                body, content_type = exposition(self.update, wanted)
                self._kept[form] = (now, body, content_type)
        return body, content_type

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up the host name in DNS and block.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_SECONDS
    server_version = "penstock"
    sys_version = ""

    def do_GET(self) -> None:
        if self.server.checks_host and not names_loopback(self.headers.get("Host", "")):
            self._answer(421, b"this server accepts requests for localhost only\n")
        elif self.path.partition("?")[0] != PATH:
            self._answer(404, b"the metrics are at /metrics\n")
        else:
            body, content_type = self.server.exposition(self.headers.get("Accept", ""))
            self._answer(200, body, content_type)

    def _answer(
        self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: the terminal belongs to the update."""
