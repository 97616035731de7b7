import hashlib
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock._local import doctor, jars
from penstock._local.lock import Jar, JarLock, JarSet


@dataclass
class FakeRepository:
    """An HTTP server on loopback with the layout of a Maven repository, and simulated faults."""

    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    truncate_once: set[str] = field(default_factory=set)
    status_once: dict[str, int] = field(default_factory=dict)
    ignore_range: bool = False
    together: threading.Barrier | None = None
    redirect_to: str | None = None
    url: str = ""

    @property
    def hits(self) -> Counter[str]:
        return Counter(path for path, _ in self.requests)


def _handler(repository: FakeRepository) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/repo/")
            range_header = self.headers.get("Range")
            repository.requests.append((path, range_header))
            repository.authorizations.append(self.headers.get("Authorization"))
            if repository.redirect_to:
                self.send_response(302)
                self.send_header("Location", repository.redirect_to + path)
                self.end_headers()
                return
            if repository.together is not None:
                repository.together.wait(10)
            status = repository.status_once.pop(path, None)
            body = repository.files.get(path)
            if status is not None or body is None:
                self.send_error(status or 404)
                return
            start = 0
            if range_header and not repository.ignore_range:
                start = int(range_header.removeprefix("bytes=").rstrip("-"))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            piece = body[start:]
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            if path in repository.truncate_once:
                repository.truncate_once.discard(path)
                piece = piece[: len(piece) // 2]
                self.close_connection = True
            self.wfile.write(piece)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def _serve(repository: FakeRepository) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repository))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    repository.url = f"http://127.0.0.1:{server.server_address[1]}/repo"
    return server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def repository() -> Iterator[FakeRepository]:
    fake = FakeRepository()
    server = _serve(fake)
    yield fake
    server.shutdown()
    server.server_close()


@pytest.fixture
def other_repository() -> Iterator[FakeRepository]:
    fake = FakeRepository()
    server = _serve(fake)
    yield fake
    server.shutdown()
    server.server_close()


def make_jar(name: str, size: int, folder: str = "jars") -> tuple[Jar, bytes]:
    body = random.Random(name).randbytes(size)
    digest = hashlib.sha256(body).hexdigest()
    return (
        Jar(coordinate=f"org.example.x:{name}:1.0", size=size, sha256=digest, folder=folder),
        body,
    )


@pytest.fixture
def lock(repository: FakeRepository, monkeypatch: pytest.MonkeyPatch) -> JarLock:
    """Two sets in the repository: `first` with three jars, one of them large, `broker` with one."""
    sets = {}
    for name, folder, sizes in (
        ("first", "jars", {"a": 700_000, "b": 1000, "c": 2000}),
        ("broker", "kafka-broker", {"d": 3000}),
    ):
        set_jars = []
        for jar_name, size in sizes.items():
            jar, body = make_jar(jar_name, size, folder)
            repository.files[jar.repository_path] = body
            set_jars.append(jar)
        sets[name] = JarSet(name=name, description="", folder=folder, jars=tuple(set_jars))
    lock = JarLock(sets=sets)
    for module in (jars, doctor):
        monkeypatch.setattr(module, "load_lock", lambda: lock)
    return lock


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a home folder without a local Maven repository."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
