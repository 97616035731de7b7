"""Pipelines on Azure and Google Cloud Storage."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from other_doubles import AzureDouble, GcsDouble
from store_project import SOURCE, StoreSession, check_tables, penstock, write_settings

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

LOG_STORES = {"azure": "io.delta.storage.AzureLogStore", "gcs": "io.delta.storage.GCSLogStore"}


@pytest.fixture(scope="module", params=[AzureDouble, GcsDouble], ids=["azure", "gcs"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    double = request.param(tmp_path_factory.mktemp("store") / "server.log")
    yield double
    double.stop()


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[StoreSession]:
    made = StoreSession(server.jar_set, server.settings(), server.storage)
    yield made
    made.stop()


def test_each_row_is_stored_once_after_a_kill(
    server: Any, session: StoreSession, tmp_path: Path
) -> None:
    storage = f"{server.storage}/shop"
    (tmp_path / "in").mkdir()
    (tmp_path / "shop.py").write_text(SOURCE.format(folder=tmp_path / "in"), encoding="utf-8")
    write_settings(tmp_path, storage, server.settings())
    for number in range(2):
        lines = [json.dumps({"id": 100 * number + each}) for each in range(100)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
        if number == 1:
            penstock(tmp_path, "run", kill_at="after_quarantine_commit:bronze:1")
        assert "COMPLETED" in penstock(tmp_path, "run")
    check_tables(session("read", storage), 200)
    assert "positive" in penstock(tmp_path, "quarantine", "show", "bronze")
    penstock(tmp_path, "checkpoint", "reset", "newest", "--from", "earliest", "--yes")
    assert "COMPLETED" in penstock(tmp_path, "run")
    check_tables(session("read", storage), 200)
    # A machine that has run no update reads the copy of the event log.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("pipeline.yaml", "shop.py"):
        shutil.copy(tmp_path / name, elsewhere)
    history = json.loads(penstock(elsewhere, "history", "--output", "json"))
    assert [row["state"] for row in history] == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert json.loads(penstock(elsewhere, "status", "--output", "json"))["state"] == "COMPLETED"


def test_a_version_has_one_writer(server: Any, session: StoreSession) -> None:
    store, folder = LOG_STORES[server.jar_set], f"{server.storage}/race"
    result = session("race", store, folder)
    a, b, contents = result["won"]["a"], result["won"]["b"], result["contents"]
    assert sorted(a + b) == list(range(len(contents)))
    assert [version for version, writer in enumerate(contents) if writer == "a"] == a
