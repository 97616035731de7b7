import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._execution import tables
from penstock._execution.flow_state import FlowState, StateStore, check_state
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._tables.files import StorageFiles
from penstock.errors import CheckpointError, PlanError


def _store(root: Path, pipeline: str) -> StateStore:
    return StateStore(StorageFiles(None), str(root), pipeline)


def test_flow_keeps_the_pipeline_name_of_its_first_start(tmp_path: Path):
    _store(tmp_path, "shop").new_flow("silver")
    renamed = _store(tmp_path, "store")
    assert renamed.pipeline_of("silver") == "shop"
    assert renamed.pipeline_of("new") == "store"
    renamed.new_flow("silver")  # as a full refresh does
    renamed.save_flow("silver", FlowState(epoch="e", pipeline=""))
    again = _store(tmp_path, "other")
    state = again.flow("silver")
    assert state is not None
    assert state.pipeline == again.pipeline_of("silver") == "shop"


def test_the_state_of_a_newer_version_is_refused(tmp_path: Path):
    store = _store(tmp_path, "shop")
    store.new_flow("silver")
    (file,) = (tmp_path / "flows").glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": 1}))
    with pytest.raises(PlanError, match=r"silver\.json has fields .* not support: later") as error:
        store.flow("silver")
    assert error.value.condition == "STATE_OF_NEWER_VERSION"


def test_new_checkpoint_of_a_flow_keeps_the_pipeline_name(tmp_path: Path):
    _store(tmp_path, "shop").new_flow("silver")
    renamed = _store(tmp_path, "store")
    with renamed.apart("silver", str(tmp_path / "beside.json")):
        assert renamed.flow("silver") is None
        renamed.save_flow("silver", FlowState(epoch="e"))
        state = renamed.flow("silver")
    assert state is not None
    assert state.pipeline == "shop"


def test_state_of_an_older_version_gets_the_current_pipeline_name(tmp_path: Path):
    store = _store(tmp_path, "shop")
    state = store.new_flow("silver")
    file = tmp_path / "flows" / "silver.json"
    body = json.loads(file.read_text())
    del body["pipeline"]
    file.write_text(json.dumps(body))
    earlier = _store(tmp_path, "store")
    assert earlier.flow("silver") == state
    assert earlier.pipeline_of("silver") == "store"
    earlier.save_flow("silver", state)
    assert _store(tmp_path, "other").pipeline_of("silver") == "store"


@pytest.mark.parametrize(
    ("before", "message", "hint"),
    [
        ({}, "'c.prod.t' was dropped or recreated", "--full-refresh t rebuilds it"),
        ({"path": "/prod/t"}, "'c.prod.t' was dropped or recreated", "--full-refresh t rebuilds"),
        ({"path": "/dev/t"}, "the table /dev/t; its table is /prod/t now", "set `storage` in each"),
        (
            {"kind": "sink", "path": "kafka t"},
            "kafka t; its target is t now",
            "another name",
        ),
    ],
)
def test_error_distinguishes_a_changed_target_from_a_dropped_table(
    before: dict[str, Any], message: str, hint: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "table_state", lambda *_: None)
    own: Any = SimpleNamespace(paths={"c.prod.t": "/prod/t"}, spark=None)
    flow = SimpleNamespace(name="t", target="t", origin=None)
    node: Any = SimpleNamespace(target="c.prod.t", flow=flow)
    state = FlowState(epoch="e", target_id="id", deployed=before)
    with pytest.raises(CheckpointError) as raised:
        tables.PipelineTables.check_ownership(own, node, state)
    assert raised.value.condition == "TABLE_REPLACED"
    assert message in str(raised.value)
    assert hint in str(raised.value.hint)


def test_checkpoint_is_refused_when_its_sources_are_in_another_order():
    def check(*order: str) -> None:
        operators = ("source StreamingRelationV2",) * 2
        state = FlowState(epoch="e", stateful_operators=operators, deployed={"order": ["a", "b"]})
        flow = Flow(name="u", target="u", function=lambda: None, origin=SourceLocation("a.py", 1))
        check_state(
            flow, state, operators=operators, order=order, output_mode="append", display="u"
        )

    for order in (("a", "b"), ("a", "moved"), ()):
        check(*order)
    with pytest.raises(CheckpointError, match="its sources was a, b, and is b, a"):
        check("b", "a")
