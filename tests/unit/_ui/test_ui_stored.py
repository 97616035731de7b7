"""Rows of tables and of quarantine over HTTP."""

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from planted_secrets import planted
from starlette.testclient import TestClient

from penstock._tables.browsing import TableBrowser
from penstock._ui.recording import Recording
from penstock._ui.server import build_app

HERE = "http://127.0.0.1:7070"
NAME = "spark_catalog.default.silver"


@pytest.fixture
def storage(logs, tmp_path):
    """The shop's tables: one with rows, also in quarantine; secrets are planted in both."""
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
    tables = TableBrowser(str(storage))
    recording = Recording("shop", "shop", logs / "shop", tables=tables)
    blind = Recording("blind", "blind", logs / "shop")
    app = build_app([recording, blind], host="127.0.0.1", token=None)
    return TestClient(app, base_url=HERE)


def _get(client, path, **params):
    answer = client.get(f"/api/pipelines/shop/{path}", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_rows_and_quarantine_are_answered_when_the_storage_is_known(client):
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


def test_the_reason_is_told_when_there_is_nothing_to_show(client):
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
def test_a_question_is_refused_when_it_is_out_of_bounds(client, query):
    answer = client.get(f"/api/pipelines/shop/quarantine?name={NAME}&{query}")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "name", ["nothing", "../../silver", "a.b.../../../../etc", "/etc/passwd", "%2e%2e", "a.b.c%00"]
)
def test_no_table_is_read_when_the_pipeline_does_not_have_it(client, name):
    assert client.get("/api/pipelines/shop/rows", params={"name": name}).status_code == 404
    body = _get(client, "quarantine", name=name)
    assert set(body) == {"problem"}


def test_no_secret_is_in_any_answer_when_tables_hold_some(client):
    _, secrets = planted()
    answers = [client.get(f"/api/pipelines/shop/rows?name={NAME}").text]
    answers.append(client.get("/api/pipelines/shop/quarantines").text)
    page = client.get(f"/api/pipelines/shop/quarantine?name={NAME}&limit=100")
    answers.append(page.text)
    assert len(page.json()["rows"]) > 50
    assert {secret for secret in secrets for text in answers if secret in text} == set()
    for secret in secrets[::7]:
        found = _get(client, "quarantine", name=NAME, search=secret, limit=100)
        assert found["rows"] == [], secret
