"""Snapshot flows: the next snapshots, and the progress of the flow."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from penstock._analysis.cdc import (
    NoSnapshotError,
    SnapshotQuery,
    decode_version,
    encode_version,
    snapshot_shape,
)
from penstock._execution.flow_state import FlowState
from penstock._model.flow import Flow
from penstock._tables.commits import CommitResult
from penstock._tables.write.cdc_events import RowShape
from penstock._tables.write.cdc_snapshot import SnapshotWriter
from penstock.errors import DefinitionError


@dataclass(frozen=True)
class NextSnapshot:
    """A snapshot that is newer than the last one.

    `is_named`: it is the content of a named source, which may be unchanged. `apply` returns `None`
    if there is no change.
    """

    df: DataFrame
    is_named: bool
    text: str
    apply: Callable[[], CommitResult | None]


class SnapshotProgress:
    """Iterates over the snapshots of a flow and records the last one.

    `last_number` is the number of the last snapshot in the table; -1 before the first.
    """

    def __init__(
        self,
        flow: Flow,
        evaluate: Callable[[Flow], DataFrame],
        last_number: int,
        state: FlowState,
        save: Callable[[str, FlowState], None],
    ) -> None:
        self._flow = flow
        self._evaluate = evaluate
        self._number = last_number
        self._save = save
        self.state = state
        self.last_known: Any = None  # newest skipped version that the table already has

    def newer(self, writer_of: Callable[[RowShape], SnapshotWriter]) -> Iterator[NextSnapshot]:
        """The snapshots after the last one, each to be applied before the next is requested.

        A named source has one snapshot. A function is called until it returns `None`; a version
        that is not newer than the last one is skipped, and ends the iteration when it is returned
        again. Versions that the history of the table already has are skipped as well.
        """
        assert self._flow.snapshot is not None
        is_named = self._flow.snapshot.next_snapshot is None
        noted = self.state.snapshots.get(str(self._number))
        latest = None if noted is None else decode_version(noted)
        # The table may have a history that the state does not know: the flow has a new name, its
        # state was lost, or a driver that had lost its lease overwrote it with an older one.
        may_be_known = (self._number < 0 or noted is None) and not is_named
        skipped: Any = None
        while True:
            query = SnapshotQuery(self._flow, latest)
            try:
                df = self._evaluate(query.flow)
            except NoSnapshotError:
                return
            if not self._follows(query.version, latest):
                if query.version == skipped:
                    return
                skipped = query.version
                continue
            writer = writer_of(snapshot_shape(df, self._flow, query.version))
            if may_be_known and not writer.is_newer(query.version):
                self.last_known = latest = query.version
                self._note({self._number: latest})
                continue
            may_be_known = False
            apply = partial(self._apply, writer, df, latest, query.version, always=not is_named)
            yield NextSnapshot(df, is_named, f"snapshot {query.version}", apply)
            if is_named:
                return
            latest = query.version

    def _apply(
        self, writer: SnapshotWriter, df: DataFrame, latest: Any, version: Any, *, always: bool
    ) -> CommitResult | None:
        number = self._number + 1
        # Before the commit: after a kill the table shows whether this number was committed.
        self._note({number: version} | ({} if latest is None else {self._number: latest}))
        result = writer.apply(df, version, number, always=always)
        if result is not None:
            self._number = number
        return result

    def _note(self, versions: Mapping[int, Any]) -> None:
        noted = {str(number): encode_version(version) for number, version in versions.items()}
        self.state = replace(self.state, snapshots=noted)
        self._save(self._flow.name, self.state)

    def _follows(self, version: Any, latest: Any) -> bool:
        if latest is None:
            return True
        try:
            return bool(version > latest)
        except TypeError:
            raise DefinitionError(
                "SNAPSHOT_FUNCTION_INVALID",
                f"the function of snapshot flow {self._flow.name!r} returned a version of type "
                f"{type(version).__name__} after one of type {type(latest).__name__}",
                origin=self._flow.origin,
                hint="keep one type of versions, or --full-refresh the table",
            ) from None
