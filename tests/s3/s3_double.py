"""A server with the API of S3 (moto), and a proxy in front of it that simulates failures."""

import http.client
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from penstock._local.broker_files import free_ports

HOME = Path(__file__).resolve().parents[2] / ".venv-double"
_SERVER = Path(__file__).with_name("atomic_moto.py")
BUCKET = "lake"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "not-a-secret-at-all"}
_START_SECONDS = 60.0
_REFUSALS = {"busy": 503, "denied": 403}


class S3Double:
    """The server with an empty bucket; its objects are kept in memory."""

    def __init__(self, log: Path) -> None:
        python = HOME / "bin" / "python"
        assert python.exists(), "the double is not installed: make .venv-double/.installed"
        self.port = free_ports()[0]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(python), str(_SERVER), "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **CREDENTIALS},
            )
        deadline, pause = time.monotonic() + _START_SECONDS, threading.Event()
        while not self._has_bucket():
            assert time.monotonic() < deadline, log.read_text()
            assert self._process.poll() is None, log.read_text()
            pause.wait(0.1)

    def _has_bucket(self) -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)


class FaultyProxy:
    """Forwards requests to a server, unless `fault` returns a failure.

    `fault` gets the number of the request, its method and its path, and returns `""`, `busy` or
    `denied` (not forwarded; 503 or 403) or `lost` (forwarded, but the client gets no response).
    """

    def __init__(self, port: int, fault: Callable[[int, str, str], str] | None = None) -> None:
        proxy = self
        self.fault = fault or (lambda number, method, path: "")
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                del self.headers["Transfer-Encoding"]
                return body

            def handle_any(self) -> None:
                body = self.read_body()
                with proxy._lock:
                    proxy.counts["all"] += 1
                    kind = proxy.fault(proxy.counts["all"], self.command, self.path)
                    proxy.counts[kind or "passed"] += 1
                if kind in _REFUSALS:
                    self.send_response(_REFUSALS[kind])
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                try:
                    server.request(self.command, self.path, body, dict(self.headers))
                    answer = server.getresponse()
                    content = answer.read()
                finally:
                    server.close()
                if kind == "lost":
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                if answer.getheader("Content-Length") is None:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def settings_of(port: int) -> dict[str, str]:
    """Spark settings for the server at a local port."""
    return {
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port}",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
