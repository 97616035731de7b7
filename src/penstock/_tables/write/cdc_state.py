"""The state of a CDC target: a Delta table in the storage's state folder.

Rows are only appended, one commit per batch; reading merges them. So writing a batch takes one
small job regardless of the size of the state, and appends of two flows cannot conflict. The files
are periodically compacted (`cdc_compaction`).
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm, file_count
from penstock._tables.layout import TableRef
from penstock._tables.write.cdc_events import EventShape, TargetShape
from penstock._tables.write.cdc_history import (
    StateColumns,
    merged,
    state_rows,
    state_schema,
    stored_values,
)
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.key_joins import in_one_task
from penstock._tables.write.keyed import has_exact_keys
from penstock._tables.write.prepare import prepare_table
from penstock._tables.write.schema import column_mapping, compare
from penstock._tables.write.table_spec import TableSpec, table_state
from penstock.errors import CheckpointError

_PROPERTY = "penstock.cdc"
_TRUNCATES = "apply_as_truncates"


class CdcState:
    """The state of one target for one flow."""

    def __init__(
        self,
        delta: DeltaJvm,
        ref: TableRef,
        app_id: str,
        events: EventShape,
        *,
        target_has_rows: bool,
        flow: str,
    ) -> None:
        """Create the table, or align it with the flow; with `target_has_rows`, it must exist."""
        self._delta = delta
        self.table = FencedTable(delta, ref, app_id)
        self._events = events
        self.truncates = events.shape.truncates
        """Whether there may be a row for all keys."""
        self._use(self._prepared(target_has_rows=target_has_rows, flow=flow))

    def _prepared(self, *, target_has_rows: bool, flow: str) -> StructType:
        ref, shape = self.table.ref, self._events.shape
        state = table_state(self._delta.spark, ref.path)
        if state is None and target_has_rows:
            raise CheckpointError(
                "CDC_STATE_MISSING",
                f"flow {flow!r} changes a table that has rows, but no CDC state: the rows were "
                "written in another way, or the state was deleted",
                flow=flow,
                hint="--full-refresh of the table rebuilds both from the source",
            )
        wanted = self._wanted(None if state is None else state.schema)
        mark = fingerprint(shape, self._events)
        if state is not None and file_count(self._delta.snapshot(ref.path)) > 0:
            stored = json.loads(state.properties.get(_PROPERTY, "{}"))
            self.truncates |= stored.get(_TRUNCATES, False)
            changed = _changes(stored, mark)
            conflicts = compare(state.schema, wanted).conflicts
            if not changed and conflicts:
                name, have, want = conflicts[0]
                changed = f"the type of {name} was {have} and is {want} now"
            if changed:
                raise CheckpointError(
                    "CDC_STATE_INCOMPATIBLE",
                    f"flow {flow!r}: {changed}; the state of its table does not match any more",
                    flow=flow,
                    hint="revert the change, or --full-refresh the table",
                )
        elif state is not None:
            wanted = self._wanted(None)
        if self.truncates:
            mark[_TRUNCATES] = True
        properties = {_PROPERTY: json.dumps(mark, sort_keys=True), **column_mapping(wanted)}
        spec = TableSpec(schema=wanted, comment="state of an auto CDC table", properties=properties)
        return prepare_table(self._delta.spark, ref, spec).schema

    def _use(self, schema: StructType) -> None:
        self.columns = StateColumns(schema)
        self._event_columns = self._events.event_columns(
            self.columns.key_type, stored_values(schema)
        )

    def _wanted(self, stored: StructType | None) -> StructType:
        keys, values = self._events.key_type(), self._events.value_type()
        if stored is not None:
            have = stored["k"].dataType
            if isinstance(have, StructType) and not compare(have, keys).added:
                keys = have
            values = compare(stored_values(stored), values).merged
        return state_schema(self._events.shape, keys, values, self._events.sequence)

    def begin(self, batch_id: int | None) -> TableTransaction:
        """Start the transaction of a batch, with the columns that other flows added meanwhile."""
        txn = self.table.begin(batch_id)
        wanted = self._wanted(txn.metadata.schema)
        schema = self.table.evolve(txn, wanted, allow_missing=True, replaces=False)
        if schema != self.columns.schema:
            self._use(schema)
        return txn

    def events(self, rows: DataFrame) -> DataFrame:
        """The events of rows of the source that have a sequence and a key."""
        # Rounded up to a minute: Spark compiles the query again for each different number in it.
        now_ms = math.ceil(time.time() / 60) * 60_000
        return self._events.events(rows, self._event_columns, now_ms)

    def write(
        self, txn: TableTransaction, events: DataFrame, *, small: bool
    ) -> list[dict[str, Any]]:
        """Write the events of a batch as files; returns `AddFile` contents for `commit`."""
        events = in_one_task(events) if small else events
        rows = merged(state_rows(events, self.columns), self.columns)
        return self._delta.file_contents(txn.jvm.writeFiles(rows._jdf))

    def commit(
        self, txn: TableTransaction, files: Sequence[Mapping[str, Any]], result: CommitResult
    ) -> int | None:
        """Commit the files of a batch; returns the version, `None` if it is already committed."""
        if txn.is_committed:
            return None
        actions = self._delta.add_files(files)
        return self.table.commit(txn, actions, result.batch_id, result, complete=False)

    def written(self, txn: TableTransaction, files: Sequence[Mapping[str, Any]]) -> DataFrame:
        """The rows, with `kind`, of the files of a batch, whether or not they are committed."""
        rows = self._delta.read_files(txn.jvm.snapshot(), self._delta.add_files(files))
        return rows if "kind" in rows.columns else rows.withColumn("kind", F.lit(0))

    def rows(self, like: DataFrame) -> DataFrame:
        """All rows, not merged, in the session of `like`."""
        snapshot = self._delta.snapshot(self.table.ref.path)
        files = self.table.live_files.all(snapshot)
        return self._delta.read_files(snapshot, files, like.sparkSession)

    def size(self) -> int:
        """The size of the files in bytes, as of the newest snapshot in memory."""
        snapshot = self._delta.log(self.table.ref.path).unsafeVolatileSnapshot()
        return self.table.live_files.size(snapshot)

    def rows_of(self, keys: Any, like: DataFrame) -> DataFrame:
        """The rows of some `BatchKeys`, not merged, without the row for all keys."""
        snapshot = self._delta.snapshot(self.table.ref.path)
        live = self.table.live_files.jvm
        types = self._delta.jvm.org.apache.spark.sql.types.DataType
        schema = types.fromJson(self.columns.schema.json())
        session = self._delta.spark._jsparkSession
        rows = self._delta.own.KeySearch.rows(session, snapshot, live, keys, schema)
        return DataFrame(rows, like.sparkSession)

    def can_search(self) -> bool:
        return has_exact_keys(self._delta, self.columns.key_type)


def fingerprint(shape: TargetShape, events: EventShape) -> dict[str, Any]:
    """The parts of the declaration that a state depends on."""

    def folded(names: tuple[str, ...] | None) -> list[str] | None:
        return None if names is None else sorted(name.lower() for name in names)

    partial: set[tuple[str, ...]] = set()
    for spec in shape.specs:
        if spec.columns_to_update is not None:
            partial.add(("all but", spec.columns_to_update.lower()))
        elif spec.ignore_null_updates and spec.ignore_null_columns is not None:
            partial.add(("only", *(folded(spec.ignore_null_columns) or ())))
        elif spec.ignore_null_updates:
            partial.add(("all but", *(folded(spec.ignore_null_except_columns) or ())))
    return {
        "keys": {f.name.lower(): f.dataType.simpleString() for f in events.keys},
        "stored_as_scd_type": str(shape.scd_type),
        "sequence_by": events.sequence.simpleString(),
        "track_history_column_list": folded(shape.track_history.columns),
        "track_history_except_column_list": folded(shape.track_history.except_columns),
        "columns that events may leave as they are": [list(each) for each in sorted(partial)],
    }


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if not before:
        return None
    for name, value in now.items():
        if before.get(name) != value:
            return f"{name} changed from {_shown(before.get(name))} to {_shown(value)}"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {kind}" for name, kind in value.items())
    if isinstance(value, list):
        return "; ".join(" ".join(e) if isinstance(e, list) else str(e) for e in value) or "none"
    return "none" if value is None else str(value)
