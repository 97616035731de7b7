"""Comparison of two updates."""

import json
from dataclasses import replace

import pytest
from made_events import column_lineage, definition, flow_progress, update_progress
from planted_secrets import planted
from starlette.testclient import TestClient

from penstock._observe.events import EventOrigin, FlowMetrics, FlowStatus, UpdateState
from penstock._ui.difference import _other_lineage, differences
from penstock._ui.model import UpdateModel
from penstock._ui.server import build_app

ORIGIN = EventOrigin(pipeline_name="p", update_id="u")
PROPERTIES = {"storage": "/s", "continuous": False, "spark_log": "/1", "full_refresh": False}


class Told:
    """Builds an update from tables and flows with these properties."""

    def __init__(self, **properties) -> None:
        self.model = UpdateModel()
        body = {**PROPERTIES, **properties}
        self.model.fold(definition("create_update", ORIGIN, "", body))
        self.model.fold(update_progress(ORIGIN, UpdateState.RUNNING, ""))

    def table(self, name, columns, rules=(), line=3, kind="STREAMING_TABLE"):
        fields = [
            {"name": column, "type": type_, "nullable": True, "metadata": {}}
            for column, type_ in columns.items()
        ]
        body = {
            "dataset_type": kind,
            "declared_at": f"a.py:{line}",
            "schema_json": json.dumps({"type": "struct", "fields": fields}),
            "expectations": [
                {"name": rule, "condition": condition, "action": action}
                for rule, condition, action in rules
            ],
        }
        table = replace(ORIGIN, dataset_name=name)
        self.model.fold(definition("dataset_definition", table, "", body))
        return self

    def flow(self, name, inputs, rows=0, made_of="id", **more):
        flow = replace(ORIGIN, flow_name=name)
        body = {"output_dataset": name, "input_datasets": inputs, "flow_type": "APPEND", **more}
        self.model.fold(definition("flow_definition", flow, "", body))
        table = replace(flow, dataset_name=name, batch_id=0)
        lineage = {"sources": [{"dataset": "in"}], "columns": {"id": [[0, made_of, "IDENTITY"]]}}
        self.model.fold(column_lineage(table, lineage))
        self.model.fold(flow_progress(table, FlowStatus.RUNNING, ""))
        metrics = FlowMetrics(num_output_rows=rows, num_input_rows=rows, batch_duration_ms=1500)
        self.model.fold(flow_progress(table, FlowStatus.RUNNING, "", metrics=metrics))
        return self

    def outline(self):
        return self.model.outline()


def _one(items, name):
    return next(item for item in items if item["id"] == name)


def test_changed_line_numbers_and_row_counts_are_not_a_difference():
    before = Told().table("t", {"id": "long"}).flow("t", ["in"], rows=5).outline()
    after = Told(spark_log="/2").table("t", {"id": "long"}, line=9).flow("t", ["in"], rows=8)
    changes = differences(before, after.outline())
    assert changes["properties"] == []
    (table,) = changes["datasets"]
    assert table["change"] == "same"
    assert table["numbers"]["rows"] == [5, 8]
    assert table["numbers"]["busy_seconds"] == [1.5, 1.5]
    (flow,) = changes["flows"]
    assert (flow["change"], flow["numbers"]["batches"]) == ("same", [1, 1])


def test_different_definitions_are_shown_side_by_side():
    nested = {"type": "struct", "fields": [{"name": "a", "type": "long"}]}
    wider = {"type": "struct", "fields": [{"name": "a", "type": "string"}]}
    before = Told().table("gone", {}).flow("gone", []).table("same", {})
    before.table("t", {"id": "long", "x": nested, "old": "date"}, [("r", "id > 0", "drop")])
    before.flow("t", ["in"])
    after = Told(continuous=True, full_refresh=True).table("new", {}).table("same", {})
    after.table("t", {"id": "long", "x": wider, "y": "int"}, [("r", "id > 0", "fail")])
    after.flow("t", ["in", "other"], made_of="key", once=True)
    shown = differences(before.outline(), after.outline())
    assert shown["properties"] == [
        {"name": "continuous", "before": "no", "after": "yes"},
        {"name": "full refresh", "before": "no", "after": "yes"},
    ]
    changes = {item["id"]: item["change"] for item in shown["datasets"]}
    assert changes == {"gone": "removed", "new": "added", "t": "changed", "same": "same"}
    assert shown["datasets"][-1]["id"] == "same"
    table = _one(shown["datasets"], "t")
    assert table["columns"] == [
        {"name": "x.a", "before": "long", "after": "string"},
        {"name": "y", "before": "", "after": "int"},
        {"name": "old", "before": "date", "after": ""},
    ]
    assert table["rules"] == [{"name": "r", "before": "drop: id > 0", "after": "fail: id > 0"}]
    assert (table["lineage"], table["facts"]) == (["id"], [])
    flow = _one(shown["flows"], "t")
    assert flow["facts"] == [
        {"name": "once", "before": "no", "after": "yes"},
        {"name": "reads", "before": "in", "after": "in, other"},
    ]
    assert _one(shown["flows"], "gone")["numbers"]["batches"] == [1, None]


@pytest.fixture
def client(shop):
    app = build_app([shop], host="127.0.0.1", token=None)
    return TestClient(app, base_url="http://127.0.0.1:7070")


def test_two_updates_are_compared_when_both_are_recorded(client, shop):
    newest, older = (update.update_id for update in shop.history())
    address = "/api/pipelines/shop/differences"
    changes = client.get(address, params={"before": older}).json()
    assert changes["before"]["update_id"] == older and changes["after"]["update_id"] == newest
    (rule,) = changes["datasets"][0]["rules"]
    assert (rule["before"], rule["after"]) == ("drop: amount > 0", "fail: amount > 0")
    for params, status in (
        ({}, 422),
        ({"before": "nothing"}, 404),
        ({"before": older, "after": "../../etc/passwd"}, 404),
        ({"before": "x" * 101}, 422),
    ):
        assert client.get(address, params=params).status_code == status, params


def test_lineage_influences_have_the_same_labels_on_the_dataset_page(client):
    made_of, other = ({"columns": {}, "influences": [column]} for column in ("a", "b"))
    (words,) = _other_lineage(made_of, other)
    assert f"`{words}`" in client.get("/app.js").text


def test_no_secret_of_a_definition_is_shown(client, logs, shop):
    texts, secrets = planted()
    path = sorted((logs / "shop").glob("*.jsonl"))[-1]
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        body = event["details"][event["event_type"]]
        if event["event_type"] == "create_update":
            body["storage"] = " ".join(texts)
        if event["event_type"] == "dataset_definition":
            body["expectations"] = [
                {"name": f"r{n}", "condition": text, "action": "drop"}
                for n, text in enumerate(texts)
            ]
        if event["event_type"] == "flow_definition":
            body["external_inputs"], body["comment"] = texts, texts[0]
    path.write_text("\n".join(map(json.dumps, events)) + "\n")
    older = shop.history()[1].update_id
    answer = client.get("/api/pipelines/shop/differences", params={"before": older})
    assert len(answer.json()["datasets"][0]["rules"]) >= len(texts)
    assert {secret for secret in secrets if secret in answer.text} == set()
