"""Recognizes flows that have no new rows, without starting their queries.

Spark takes longer to start a query and to find no rows than to process a small batch. In an update
of many tables most flows have nothing to do.
"""

from penstock._execution.flow_state import FlowState
from penstock._execution.tables import PipelineTables
from penstock._graph.dataflow import FlowNode
from penstock._spark import plans
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import newest_if_finished
from penstock._tables.read.log_scan import keeps_rows


def is_caught_up(tables: PipelineTables, node: FlowNode, state: FlowState) -> bool:
    """Whether a flow has finished all versions of the only table that it reads as a stream.

    False where it is not known: for queries with state, which may have a batch without rows, and
    for sources that are not tables of the pipeline.
    """
    if state.stateful_operators is None or plans.has_state(state.stateful_operators):
        return False
    if node.analysis.external_inputs:
        return False
    checkpoint = tables.layout.checkpoint_path(node.flow.name, state.epoch)
    last = newest_if_finished(StorageFiles(tables.spark), checkpoint)
    if last is None or len(last.offsets) != 1:
        return False
    offset = last.offsets[0]
    if not isinstance(offset, dict) or offset.get("isStartingVersion", True):
        return False
    delta = DeltaJvm(tables.spark)
    for path in map(tables.paths.__getitem__, node.upstream):
        snapshot = delta.snapshot(path)
        if delta.metadata(snapshot).id == offset["reservoirId"]:
            # The end of a version is the beginning of the next one.
            finished = int(offset["reservoirVersion"]) - 1
            return keeps_rows(delta, path, finished, int(snapshot.version()))
    return False
