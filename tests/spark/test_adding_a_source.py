"""The source of `examples/rest_source`, in a package that is not part of Penstock."""

import importlib
import json
import shutil
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from crashes import crashing
from update_project import Project

from penstock import monitoring
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.reset import reset_flow
from penstock.errors import PenstockError
from penstock.sources import registry
from penstock.sources.base import parse_start

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "rest_source"


class Orders(ThreadingHTTPServer):
    """A service with orders; their ids have gaps, like those of databases."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.rows: list[dict[str, Any]] = []
        self.is_down = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/orders"

    def add(self, *numbers: int) -> None:
        self.rows += [{"id": number, "customer": f"c{number}", "odd": 1} for number in numbers]


class _Answer(BaseHTTPRequestHandler):
    server: Orders

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        parameters = {name: int(value) for name, (value,) in query.items()}
        rows = [row for row in self.server.rows if row["id"] > parameters["after"]]
        newest = self.server.rows[-1]["id"] if self.server.rows else 0
        body = json.dumps({"rows": rows[: parameters["limit"]], "newest": newest}).encode()
        self.send_response(503 if self.server.is_down else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log to the terminal."""


@pytest.fixture
def orders() -> Iterator[Orders]:
    with Orders() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def installed(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The package as pip would install it into a folder of `sys.path`."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(EXAMPLE / "penstock_rest.py", site)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"penstock_rest-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)
    # Real installed packages need no setting, but this folder is not on the path of Python workers.
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(site))
    importlib.invalidate_caches()
    registry._sources.cache_clear()
    yield
    registry._sources.cache_clear()
    sys.modules.pop("penstock_rest", None)


def test_docs_page_shows_the_code_of_the_example():
    page = (ROOT / "docs" / "adding-a-source.md").read_text(encoding="utf-8")
    code = (EXAMPLE / "penstock_rest.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in page
    assert len(code.splitlines()) < 120


def test_added_source_is_read_once_and_again_after_a_reset(
    installed: None, orders: Orders, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(
        f"""
@dp.table
def orders():
    stream = spark.readStream.format("rest").option("url", "{orders.url}").option("limit", 2)
    return stream.schema("id BIGINT, customer STRING").load()
"""
    )

    def ids() -> list[int]:
        return [number for number, _ in project.rows("orders", "id", "customer")]

    orders.add(1, 2, 4, 5, 7)
    assert project.run().state is UpdateState.COMPLETED
    assert ids() == [1, 2, 4, 5, 7]
    (lag,) = project.log("lag_progress")[-1]["details"]["lag_progress"]["sources"]
    assert (lag["kind"], lag["ids"]) == ("rest", 0)

    # A retry of a planned batch reads the same rows, without rows that were added later.
    orders.add(8)
    with crashing("before_write", "orders") as crashed:
        assert project.run().state is UpdateState.FAILED
    assert crashed == {"orders"}
    orders.add(9)
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("orders", "id", "customer")[-2:] == [(8, "c8"), (9, "c9")]
    assert ids() == [1, 2, 4, 5, 7, 8, 9]

    settings = load_settings(tmp_path)
    with pytest.raises(PenstockError) as error:
        reset_flow(settings, "orders", parse_start("key=5"), execute=True)
    assert (error.value.condition, "5 ids" in error.value.message) == ("RESET_WOULD_DOUBLE", True)
    with pytest.raises(PenstockError) as error:
        reset_flow(settings, "orders", parse_start("version=1"))
    assert error.value.condition == "START_NOT_AVAILABLE"
    reset_flow(settings, "orders", parse_start("key=5"), truncate=True, execute=True)
    orders.add(10)
    assert project.run().state is UpdateState.COMPLETED
    assert ids() == [5, 7, 8, 9, 10]

    orders.is_down = True
    (failure,) = project.run().failures
    assert (failure.condition, failure.retryable) == ("REST_UNAVAILABLE", True)
    status = monitoring.status(tmp_path)
    assert status is not None
    assert status["state"] == "FAILED"
