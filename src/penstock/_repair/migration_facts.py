"""The present table, query and readers of a flow that is to be migrated."""

from collections.abc import Mapping
from typing import Any

from penstock._execution.flow_state import FlowState
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline
from penstock._repair.migration_plan import Reader
from penstock._spark.plans import stateful_operators
from penstock._tables.delta_log import DeltaJvm, size_in_bytes
from penstock._tables.read.log_scan import replaced_at
from penstock._tables.write.prepare import read_version, table_state
from penstock.errors import PenstockError
from penstock.sources.base import path_key
from penstock.sources.delta.source import DeltaStream


class MigrationFacts:
    def __init__(self, pipeline: OpenPipeline, node: FlowNode, dataset: DatasetNode) -> None:
        self._pipeline = pipeline
        self._node = node
        self._dataset = dataset

    def table(self) -> dict[str, Any] | None:
        """Id, version, rows, bytes, columns and properties; `None` without a table."""
        spark, path = self._pipeline.spark, self._pipeline.tables.paths[self._dataset.key]
        state = table_state(spark, path)
        if state is None:
            return None
        return {
            "id": state.id,
            "version": state.version,
            "rows": spark.read.format("delta").load(path).count(),
            "size": size_in_bytes(DeltaJvm(spark).snapshot(path)),
            "columns": {c.name: c.dataType.simpleString() for c in state.schema},
            "properties": dict(state.properties),
        }

    def replaced_at(self) -> int:
        """When all rows of the table were last replaced; see `log_scan.replaced_at`."""
        delta, path = DeltaJvm(self._pipeline.spark), self._pipeline.tables.paths[self._dataset.key]
        return replaced_at(delta, path, delta.version(path))

    def quarantine_version(self) -> int:
        """Newest version of the quarantine; -1 if there is none."""
        path = self._pipeline.tables.quarantine_path(self._dataset)
        version = read_version(self._pipeline.spark, path)
        return -1 if version is None else version

    def query(self, df: Any) -> dict[str, Any]:
        mode = self._node.analysis.output_mode
        return {
            "operators": list(stateful_operators(df)),
            "output_mode": None if mode is None else mode.value,
            "columns": {c.name: c.dataType.simpleString() for c in df.schema},
        }

    def columns(self, before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
        if self._dataset.declared.schema is not None:
            return ()
        return changed_columns(before, now)

    def readers(self) -> tuple[Reader, ...]:
        """Flows of the pipeline that read the table, and the effect of its replacement."""
        pipeline, key = self._pipeline, self._dataset.key
        readers = []
        for name, node in pipeline.graph.flows.items():
            if key not in node.upstream or name == self._node.flow.name:
                continue
            effect = "recomputes"
            if node.analysis.is_streaming:
                try:
                    path = path_key(pipeline.tables.paths[key])
                    effects = {
                        source.on_replacement
                        for source in pipeline.query(node)[1]
                        if isinstance(source, DeltaStream) and source.path == path
                    }
                    order = ("stops", "skips", "changes")
                    effect = next((each for each in order if each in effects), "changes")
                except PenstockError:
                    effect = "stops"  # the worst case: another source of it is not available
            readers.append(Reader(flow=name, target=pipeline.target_name(node), effect=effect))
        return tuple(readers)


def changed_columns(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    old = {name.lower(): kind for name, kind in before.items()}
    new = {name.lower() for name in now}
    gone = [f"{name} is removed" for name in before if name.lower() not in new]
    new_columns = [f"{name} {kind} is new" for name, kind in now.items() if name.lower() not in old]
    other = [
        f"{name} was {old[name.lower()]} and is {kind}"
        for name, kind in now.items()
        if old.get(name.lower(), kind) != kind
    ]
    return (*gone, *new_columns, *other)


def changed_operators(old: FlowState, query: Mapping[str, Any]) -> tuple[str, ...]:
    """The differences of a query from the one of the checkpoint."""
    before, now = list(old.stateful_operators or ()), list(query["operators"])
    changes = [f"gone: {line}" for line in before if line not in now]
    changes += [f"new: {line}" for line in now if line not in before]
    if old.output_mode is not None and old.output_mode != query["output_mode"]:
        changes.append(f"output mode: {old.output_mode}, now {query['output_mode']}")
    return tuple(changes)
