"""Check of the tables whose quarantine can be replayed."""

from collections.abc import Sequence

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind, LateRows
from penstock._model.flow import OutputMode
from penstock.errors import PlanError

_RUN = "correct the rule or the query, and run the pipeline"


def check_replay(node: DatasetNode, flows: Sequence[FlowNode]) -> None:
    """Raise `QUARANTINE_REPLAY_NOT_POSSIBLE` if a replay must not add rows to a table."""
    hint = f"correct the rule, then --full-refresh {node.display}"
    if node.kind is not DatasetKind.STREAMING_TABLE:
        reason = f"it is a {node.kind.value}, which every update recomputes"
        hint = _RUN
    elif any(replaces_rows(flow.flow) for flow in flows):
        reason = "its flow replaces rows that match a condition, and would remove the added rows"
        hint = _RUN
    elif any(is_cdc(flow.flow) for flow in flows):
        reason = "its rows are made from change events"
    elif {flow.analysis.output_mode for flow in flows} - {None, OutputMode.APPEND}:
        reason = "its flow changes rows that it has written"
    elif node.declared.late_rows is LateRows.QUARANTINE:
        # Late rows have the columns of the operation's input, not of the table.
        reason = "its quarantine has late rows as well, which are input of a window or join"
    elif node.declared.deduplicate_by:
        reason = "it is de-duplicated by key, which a replay does not check"
    else:
        return
    raise PlanError(
        "QUARANTINE_REPLAY_NOT_POSSIBLE",
        f"the quarantine of {node.display} cannot be replayed: {reason}",
        origin=node.declared.origin,
        hint=hint,
    )
