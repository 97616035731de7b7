"""The actions that changes of a declaration require, and the plan as text."""

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock._execution.declaration import Declaration, stored_declaration
from penstock._execution.declaration_changes import Need, flow_differences
from penstock._execution.flow_state import FlowState
from penstock._repair.deployment_plan import (
    Change,
    DeploymentPlan,
    Size,
    effect_of,
    plan_lines,
)

TABLE = Declaration(
    target="c.s.silver",
    display="silver",
    kind="streaming table",
    path="/s/tables/silver",
    query="q1",
    reads=("bronze",),
    rules={"positive": "amount > 0 [drop]"},
    options={"quarantine": "on"},
)
VIEW = replace(TABLE, kind="materialized view")
PEOPLE = replace(TABLE, history={"keys": "id", "SCD type": "2", "sequence": "ts"}, rules={})
KAFKA = replace(TABLE, reads=(), external=("kafka orders",))
FILES = replace(TABLE, reads=(), external=("json /data/a",))
UNION = replace(TABLE, reads=("a", "b"), order=("a", "b"))
SINK = replace(TABLE, kind="sink", path="json /out", rules={}, options={})


def _differences(before: Declaration, **changes: Any) -> list[tuple[Need, str]]:
    facts = {
        "has_checkpoint": changes.pop("has_checkpoint", before is not VIEW),
        "has_state": changes.pop("has_state", False),
    }
    now = replace(before, **changes)
    return [(d.need, d.text) for d in flow_differences("f", before, now, **facts)]


@pytest.mark.parametrize("declared", [TABLE, VIEW, PEOPLE, KAFKA, FILES, UNION, SINK])
def test_declaration_read_from_a_file_has_no_differences(declared):
    body = json.loads(json.dumps(declared.to_json()))
    assert body == declared.to_json()
    state = FlowState(epoch="e", deployed={**body, "added_by_a_later_version": 1})
    assert stored_declaration(state) == declared
    assert _differences(declared) == []


def test_state_of_an_earlier_version_has_no_declaration():
    assert stored_declaration(FlowState(epoch="e")) is None
    assert stored_declaration(None) is None


@pytest.mark.parametrize(
    ("before", "changes", "need", "words"),
    [
        (TABLE, {"query": "q2"}, Need.UPDATE, "the query of flow f changed"),
        (TABLE, {"code": "c2"}, Need.UPDATE, "Python functions"),
        (TABLE, {"rules": {}}, Need.UPDATE, "rule positive: amount > 0 [drop] is removed"),
        (TABLE, {"rules": {"positive": "amount > 0 [fail]"}}, Need.UPDATE, "becomes amount > 0"),
        (TABLE, {"options": {}}, Need.UPDATE, "quarantine: on is removed"),
        (TABLE, {"reads": ("other",)}, Need.REBUILD, "bronze is not read any more, other is read"),
        (TABLE, {"target": "c.s.gold"}, Need.REBUILD, "wrote to silver before"),
        (TABLE, {"kind": "materialized view"}, Need.UPDATE, "it was a streaming table"),
        (TABLE, {"path": "/moved/tables/silver"}, None, ""),
        (VIEW, {"kind": "streaming table"}, Need.FULL_REFRESH, "it was a materialized view"),
        (VIEW, {"reads": ("other",)}, Need.UPDATE, "other is read"),
        (PEOPLE, {"history": {"keys": "id", "sequence": "ts"}}, Need.FULL_REFRESH, "2 is removed"),
        (
            PEOPLE,
            {"history": {**PEOPLE.history, "keys": "id, shop"}},
            Need.FULL_REFRESH,
            "keys: id becomes id, shop",
        ),
        (PEOPLE, {"reads": ("other",)}, Need.REBUILD, "other is read"),
        (PEOPLE, {"options": {"apply_as_deletes": "gone"}}, Need.UPDATE, "gone is new"),
        (KAFKA, {"external": ("kafka orders2",)}, Need.CHECKPOINT, "kafka orders2 is read"),
        (FILES, {"external": ("json /data/b",)}, Need.CHECKPOINT, "json /data/b is read"),
        (FILES, {"external": (), "has_state": True}, Need.REBUILD, "json /data/a is not read"),
        (FILES, {"external": ("kafka orders",)}, Need.CHECKPOINT, "kafka orders is read"),
        (FILES, {"external": (), "reads": ("bronze",)}, Need.REBUILD, "bronze is read"),
        (SINK, {"target": "c.s.gold", "kind": "streaming table"}, Need.FULL_REFRESH, "wrote to"),
        (SINK, {"path": "json /elsewhere"}, Need.UPDATE, "it was json /out"),
    ],
)
def test_each_change_requires_its_action(before, changes, need, words):
    differences = _differences(before, **changes)
    assert max((each for each, _ in differences), default=None) == need
    assert words in " | ".join(text for _, text in differences)


def test_completed_one_time_flow_is_not_repeated_for_another_source():
    assert _differences(TABLE, reads=("other",), has_checkpoint=False)[0][0] is Need.UPDATE


def test_effect_describes_what_happens_to_stored_rows():
    def effect(need: Need, kind: str = "streaming table", **more: bool) -> str:
        facts = {"is_new": False, "concerns_rows": True, **more}
        return effect_of(need, kind, ["f"], **facts)

    assert effect(Need.UPDATE) == "stored rows stay, new rows are as declared"
    assert effect(Need.UPDATE, "materialized view") == "all rows are recomputed"
    assert effect(Need.UPDATE, concerns_rows=False) == ""
    assert effect(Need.UPDATE, is_new=True) == ""
    assert "replaced in one commit" in effect(Need.MIGRATION)
    assert "rows that its sources have no more are lost" in effect(Need.FULL_REFRESH)
    assert "lost" not in effect(Need.FULL_REFRESH, "materialized view")
    assert effect(Need.CHECKPOINT).startswith("stored rows stay, and f starts again")


def _plan(*changes: Change) -> DeploymentPlan:
    return DeploymentPlan(pipeline="p", storage="/s", changes=changes, unchanged=("bronze",))


def test_plan_text_has_reasons_sizes_and_refusals():
    change = Change(
        key="out",
        name="out",
        kind="sink",
        change="changed",
        need=Need.CHECKPOINT,
        reasons=("flow f: kafka b is read",),
        effect="stored rows stay",
        reads=Size(rows=None, bytes=2048),
        unmeasured=("kafka b",),
        table=Size(rows=1200, bytes=34_567),
        refused="rows would be duplicated",
    )
    assert plan_lines(_plan(change)) == [
        "pipeline p, storage /s:",
        "~ out [sink]: new checkpoint",
        "    flow f: kafka b is read",
        "    -> stored rows stay",
        "    stored: 1,200 rows, 34,567 bytes",
        "    to read: an unknown number of rows, 2,048 bytes, kafka b (size unknown)",
        "    refused: rows would be duplicated",
        "unchanged: bronze",
    ]


def test_removed_declarations_are_shown_but_not_pending():
    gone = Change(
        key="old",
        name="old",
        kind="streaming table",
        change="removed",
        need=Need.NOTHING,
        reasons=("its table stays",),
    )
    plan = _plan(gone)
    assert plan.pending == ()
    assert plan_lines(plan)[1] == "- old [streaming table]: nothing"
    assert plan_lines(plan)[-1] == "nothing differs"
