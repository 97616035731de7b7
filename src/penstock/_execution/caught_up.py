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
from penstock._tables.read.checkpoint_files import batches, table_offsets
from penstock._tables.read.log_scan import keeps_rows


def is_caught_up(tables: PipelineTables, node: FlowNode, state: FlowState) -> bool:
    """Whether a flow has finished all versions of the only table that it reads as a stream.

    False if this is unknown: for queries with state, which may have a batch without rows, and for
    sources that are not tables of the pipeline.
    """
    if state.stateful_operators is None or plans.has_state(state.stateful_operators):
        return False
    if node.analysis.external_inputs:
        return False
    files = StorageFiles(tables.spark)
    checkpoint = tables.layout.checkpoint_path(node.flow.name, state.epoch)
    last = batches(files, checkpoint, "offsets")[-1:]
    if not last or not files.exists(f"{checkpoint}/commits/{last[0]}"):
        return False
    offset = next(table_offsets(files.read(f"{checkpoint}/offsets/{last[0]}") or ""), None)
    if offset is None or offset["isStartingVersion"]:
        return False
    # Delta stores the end of a version as the start of the next one.
    finished = int(offset["reservoirVersion"]) - 1
    delta = DeltaJvm(tables.spark)
    for key in node.upstream:
        path = tables.graph.datasets[key].read_from or tables.paths[key]
        snapshot = delta.snapshot(path)
        if delta.metadata(snapshot).id == offset["reservoirId"]:
            return keeps_rows(delta, path, finished, int(snapshot.version()))
    return False
