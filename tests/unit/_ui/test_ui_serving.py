"""The server of the dashboard, with real connections."""

import os
import socket
import threading
import urllib.request

import pytest

from penstock._ui import serving
from penstock._ui.recording import WatchedLog
from penstock._ui.serving import listen, serve


def test_connection_with_an_incomplete_request_ends(logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "_IDLE_SECONDS", 0.2)
    reader, writer = os.pipe()
    ready = threading.Event()
    watched = [WatchedLog(label="demo", directory=logs / "demo")]
    with listen("127.0.0.1", 0) as listening, os.fdopen(reader, "rb") as until:
        place = listening.getsockname()
        server = threading.Thread(
            target=serve,
            args=(watched, listening),
            kwargs={"until": until, "ready": ready.set},
            daemon=True,
        )
        server.start()
        assert ready.wait(30)
        with (
            socket.create_connection(place, timeout=30) as slow,
            socket.create_connection(place, timeout=30) as stream,
        ):
            host = f"Host: 127.0.0.1:{place[1]}\r\n"
            stream.sendall(f"GET /api/pipelines/demo/stream HTTP/1.1\r\n{host}\r\n".encode())
            slow.sendall(b"GET /api/pipelines HTTP/1.1\r\nHost: ")
            assert slow.recv(100) == b""
            with urllib.request.urlopen(f"http://127.0.0.1:{place[1]}/", timeout=30) as page:
                assert page.status == 200
            # The stream of events remains open after the limit for incomplete requests.
            seen = b""
            while b"event: update" not in seen:
                seen += stream.recv(65536)
            stream.settimeout(1.0)
            with pytest.raises(TimeoutError):
                while stream.recv(65536):
                    pass
        os.close(writer)
        server.join(30)
        assert not server.is_alive()
