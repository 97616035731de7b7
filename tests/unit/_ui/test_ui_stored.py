"""Rows of tables and of quarantine over HTTP."""

import json
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from planted_secrets import planted
from starlette.testclient import TestClient

from penstock._project.excerpt import excerpt
from penstock._tables.read.browsing import TableBrowser
from penstock._ui.recording import Recording
from penstock._ui.server import build_app

HERE = "http://127.0.0.1:7070"
NAME = "spark_catalog.default.silver"


@pytest.fixture
def storage(logs, tmp_path):
    """A table of `shop` and its quarantine table, both with secrets in their rows."""
    root = tmp_path / "storage"
    texts, _ = planted()
    table = root / "tables/spark_catalog/default/silver"
    write_deltalake(str(table), pa.table({"note": texts, "n": list(range(len(texts)))}))
    rows = [json.dumps({"n": n, "note": text}) for n, text in enumerate(texts)]
    rules = [["positive"], ["known", "positive"]] * (len(texts) // 2) + [["known"]]
    body = {"_failed_rules": rules[: len(texts)], "_row": rows, "_source": texts}
    write_deltalake(f"{table}_quarantine", pa.table(body))
    return root


@pytest.fixture
def client(logs, storage):
    tables = TableBrowser(str(storage), monotonic=lambda: 0.0)  # no search reaches its time limit
    recording = Recording(key="shop", label="shop", directory=logs / "shop", tables=tables)
    blind = Recording(key="blind", label="blind", directory=logs / "shop")
    app = build_app([recording, blind], host="127.0.0.1", token=None)
    return TestClient(app, base_url=HERE)


def _get(client, path, **params):
    answer = client.get(f"/api/pipelines/shop/{path}", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_rows_and_quarantine_are_served_from_the_storage(client):
    rows = _get(client, "rows", name=NAME)
    assert [column["name"] for column in rows["columns"]] == ["note", "n"]
    assert len(rows["rows"]) == 50 and rows["total"] > 50
    (table,) = _get(client, "quarantines")["tables"]
    assert table["dataset"] == NAME
    assert set(table["rules"]) == {"positive", "known"}
    first = _get(client, "quarantine", name=NAME, limit=10)
    second = _get(client, "quarantine", name=NAME, limit=100, before=first["next"])
    assert len(first["rows"]) + len(second["rows"]) == first["total"] == table["rows"]
    only = _get(client, "quarantine", name=NAME, rule="known", search='"n": 3,')
    assert [json.loads(row["row"])["n"] for row in only["rows"]] == [3]


def test_reason_is_shown_when_there_are_no_rows(client):
    problem = _get(client, "rows", name="spark_catalog.default.bronze")["problem"]
    assert "not written yet" in problem["message"]
    problem = _get(client, "quarantine", name="spark_catalog.default.bronze")["problem"]
    assert "not written yet" in problem["message"]
    for path in ("rows", "quarantine"):
        answer = client.get(f"/api/pipelines/blind/{path}", params={"name": NAME})
        assert "no rows" in answer.json()["problem"]["message"]
    assert "no rows" in client.get("/api/pipelines/blind/quarantines").json()["problem"]["message"]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "before=1",
        "before=../../etc/passwd",
        "before=" + "1" * 61,
        "search=" + "x" * 201,
        "rule=" + "x" * 301,
    ],
)
def test_request_out_of_bounds_is_refused(client, query):
    answer = client.get(f"/api/pipelines/shop/quarantine?name={NAME}&{query}")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "name", ["nothing", "../../silver", "a.b.../../../../etc", "/etc/passwd", "%2e%2e", "a.b.c%00"]
)
def test_table_of_another_pipeline_is_not_read(client, name):
    assert client.get("/api/pipelines/shop/rows", params={"name": name}).status_code == 404
    body = _get(client, "quarantine", name=name)
    assert set(body) == {"problem"}


def test_no_secret_of_a_table_is_in_a_response(client):
    _, secrets = planted()
    answers = [client.get(f"/api/pipelines/shop/rows?name={NAME}").text]
    answers.append(client.get("/api/pipelines/shop/quarantines").text)
    page = client.get(f"/api/pipelines/shop/quarantine?name={NAME}&limit=100")
    answers.append(page.text)
    assert len(page.json()["rows"]) > 50
    assert {secret for secret in secrets for text in answers if secret in text} == set()
    for secret in secrets[::7]:
        result = _get(client, "quarantine", name=NAME, search=secret, limit=100)
        assert result["rows"] == [], secret


def test_files_and_versions_of_a_table_are_shown(client, storage):
    page = _get(client, "table", name=NAME)
    assert (page["version"], page["files"], page["small_files"]) == (0, 1, 1)
    assert page["bytes"] > 0 and page["advice"] is None
    (version,) = page["versions"]
    assert (version["operation"], version["files_added"], version["files_removed"]) == (
        "WRITE",
        1,
        0,
    )
    assert version["rows"] == len(planted()[0])
    assert (version["flow"], version["batch_id"]) == ("", None)
    assert client.get("/api/pipelines/shop/table", params={"name": "x.y.z"}).status_code == 404
    blind = client.get("/api/pipelines/blind/table", params={"name": NAME}).json()
    assert "shows no rows" in blind["problem"]["message"]


def test_many_small_files_give_a_warning(client, storage):
    table = storage / "tables/spark_catalog/default/silver"
    schema = DeltaTable(table).schema()
    for number in range(20):  # the files need not exist: only the log is read
        files = [f"{number}-{part}.parquet" for part in range(6)]
        adds = [AddAction(file, 900, {}, number, True, '{"numRecords": 1}') for file in files]
        DeltaTable(table).create_write_transaction(adds, "append", schema)
    page = _get(client, "table", name=NAME)
    assert (page["files"], page["small_files"], len(page["versions"])) == (121, 121, 20)
    assert "121 files are below 16 MiB" in page["advice"] and "OPTIMIZE" in page["advice"]


def test_source_code_is_shown_when_the_project_is_known(logs, tmp_path):
    (tmp_path / "transformations").mkdir()
    code = "\n" * 18 + "import dlt\n\n\n@dlt.table\ndef silver():\n    password = 'hunter2'\n"
    (tmp_path / "transformations" / "orders.py").write_text(code)
    recordings = [
        Recording(
            key="shop", label="shop", directory=logs / "shop", code_of=partial(excerpt, tmp_path)
        ),
        Recording(key="blind", label="blind", directory=logs / "shop"),
    ]
    app = build_app(recordings, host="127.0.0.1", token=None)
    client = TestClient(app, base_url=HERE)
    page = _get(client, "code", name=NAME)["code"]
    assert page["file"] == "transformations/orders.py"
    assert "import dlt" in page["text"] or "def silver" in page["text"]
    assert "hunter2" not in page["text"]
    assert client.get("/api/pipelines/blind/code", params={"name": NAME}).json() == {"code": None}
    for name in ("x.y.z", "../../etc/passwd"):
        assert client.get("/api/pipelines/shop/code", params={"name": name}).status_code == 404
