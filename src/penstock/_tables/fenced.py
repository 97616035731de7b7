"""A table as one flow sees it: transactions that know whether a batch is in, and fenced commits."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from penstock._tables.commit_note import NotedCommit
from penstock._tables.commits import CommitResult, result_from_commit
from penstock._tables.damage import check_commit
from penstock._tables.delta_log import DeltaJvm, TableMetadata, known_versions
from penstock._tables.layout import TableRef
from penstock._tables.log_scan import last_batch, live_files
from penstock._tables.schema import (
    SchemaDifference,
    check_columns,
    compare,
    has_identity,
    plain_schema,
    reconcile,
    schema_json,
)
from penstock.errors import InternalError

_REPLAY_SEARCH = 500
_UNKNOWN = -2


@dataclass(frozen=True)
class Begun:
    """A transaction that was started.

    Attributes:
        transaction: Delta's `OptimisticTransaction`.
        done: The batch is in the table already.
        metadata: Of the version that the transaction read.
    """

    transaction: Any
    done: bool
    metadata: TableMetadata

    @property
    def version(self) -> int:
        """Version that the transaction read."""
        return int(self.transaction.snapshot().version())


class FencedTable:
    """One table and the app id under which one flow writes it.

    Args:
        delta: The bridge.
        ref: The table; it must exist.
        app_id: Names the fence.
    """

    def __init__(self, delta: DeltaJvm, ref: TableRef, app_id: str) -> None:
        self.ref = ref
        self._delta = delta
        self._app_id = app_id
        self._version = _UNKNOWN
        self._metadata: TableMetadata | None = None
        self._difference: SchemaDifference | None = None
        self._query: StructType | None = None
        self.generation = 0
        """Grows when the table's metadata may have changed."""
        self.last_commit: NotedCommit | None = None
        """The newest one with a batch that was made through this object."""

    def begin(self, batch_id: int | None) -> Begun:
        """Start a transaction on the newest version.

        The last batch is looked up in the newest commits, else in the state of the whole table; not
        at all while every version of the table is one that this process committed.

        Args:
            batch_id: `None` for a write without a fence.

        Raises:
            SetupError: `TABLE_LOG_DAMAGED`, by the first call.
        """
        transaction = self._delta.begin(self.ref.path)
        version = int(transaction.snapshot().version())
        if version < 0:
            raise InternalError("TABLE_NOT_PREPARED", f"{self.ref.name} does not exist")
        if self._metadata is None:
            check_commit(self._delta, self.ref, version)
        if self._metadata is None or version != self._version:
            self._metadata = self._delta.metadata(transaction)
            self._difference = None
            self._version = version
            self.generation += 1
        if batch_id is None:
            return Begun(transaction, False, self._metadata)
        last = known_versions.last(self._metadata.id, version, self._app_id)
        if last is None:
            logged = last_batch(self._delta, self.ref.path, version, self._app_id)
            last = int(transaction.txnVersion(self._app_id)) if logged is None else logged
            known_versions.looked_up(self._metadata.id, version, self._app_id, last)
        # A commit of our app id by anyone else in between must fail ours.
        transaction.readTxn().addOne(self._app_id)
        return Begun(transaction, last >= batch_id, self._metadata)

    def evolve(
        self, begun: Begun, query: StructType, *, allow_missing: bool, replaces: bool
    ) -> StructType:
        """Check the query's schema and make the transaction carry what it adds.

        Args:
            begun: From `begin`.
            query: Columns that will be written.
            allow_missing: Columns that the query lacks become NULL.
            replaces: All rows are replaced, so any schema fits.

        Returns:
            The schema after the commit.

        Raises:
            PlanError: `SCHEMA_INCOMPATIBLE`.
        """
        have = begun.metadata.schema
        if self._difference is None or self._query != query:
            self._query = query
            self.generation += 1
            self._difference = (
                _replacing(have, query, self.ref.name, allow_missing)
                if replaces
                else reconcile(have, query, name=self.ref.name, allow_missing=allow_missing)
            )
        merged = self._difference.merged
        text = schema_json(merged)
        if text != schema_json(have):
            content = dict(begun.metadata.content, schemaString=text)
            begun.transaction.updateMetadata(self._delta.action({"metaData": content}), False)
            self._version = _UNKNOWN
        return merged

    def commit_evolution(self, begun: Begun, batch_id: int | None) -> Begun:
        """Commit the columns that `evolve` added, alone and without the fence.

        Returns:
            A transaction on the version that has them; the same one where there are none.
        """
        if not begun.transaction.newMetadata().isDefined():
            return begun
        operation = self._delta.alter_operation(begun.metadata.jvm, begun.transaction.metadata())
        begun.transaction.commit(self._delta.seq([]), operation)
        return self.begin(batch_id)

    def removals(self, begun: Begun) -> list[Any]:
        """Actions that remove every file of the table."""
        known = live_files(self._delta, self.ref.path, begun.version)
        if known is not None:
            # As after a look at all files: an append by anyone in between must fail our commit.
            begun.transaction.readWholeTable()
            return [file.remove() for file in self._delta.add_files(known)]
        files = begun.transaction.filterFiles()
        return [file.remove() for file in self._delta.items(files)]

    def removals_where(self, begun: Begun, condition: str) -> tuple[list[Any], int]:
        """Actions that remove the rows that fulfil a condition, and how many these are.

        Files of which other rows stay are written anew without them, or get a deletion vector.
        """
        return self._delta.deletions(begun.transaction, condition)

    def commit(
        self,
        begun: Begun,
        actions: Sequence[Any],
        batch_id: int | None,
        result: CommitResult,
        *,
        complete: bool,
        where: str | None = None,
    ) -> int:
        """Commit with the fence and the record of the batch; returns the version made.

        Args:
            begun: From `begin`.
            actions: What is added and removed.
            batch_id: `None` for a write without a fence.
            result: The record.
            complete: Rows that were there are replaced, says the history.
            where: Only those that fulfil this, it says.
        """
        record = result.to_metadata()
        if batch_id is None:
            operation = self._delta.write_operation(record, overwrite=complete, where=where)
        else:
            now = int(time.time() * 1000)
            actions = [self._delta.set_transaction(self._app_id, batch_id, now), *actions]
            operation = self._delta.streaming_operation(
                self._app_id, batch_id, record, complete=complete
            )
        version = int(begun.transaction.commit(self._delta.seq(actions), operation))
        known_versions.committed(begun.metadata.id, version, self._app_id, batch_id)
        self._committed(begun.metadata.id, version, batch_id)
        # The metadata is still the one we know only when nobody committed in between, and Delta did
        # not note in it how far an identity column has counted.
        is_same = self._version == version - 1 and not has_identity(begun.metadata.schema)
        self._version = version if is_same else _UNKNOWN
        return version

    def recorded(self, batch_id: int | None) -> CommitResult | None:
        """What the commit of a batch that is in recorded; `None` if it is too long ago."""
        newest = int(self._delta.snapshot(self.ref.path).version())
        for version in range(newest, max(-1, newest - _REPLAY_SEARCH), -1):
            info = self._delta.commit_info(self.ref.path, version)
            if info is None:
                return None
            found = result_from_commit(version, info)
            if found and found.app_id == self._app_id and found.batch_id == batch_id:
                if self._metadata is not None:
                    self._committed(self._metadata.id, version, batch_id)
                return replace(found, replayed=True)
        return None

    def _committed(self, table_id: str, version: int, batch_id: int | None) -> None:
        if batch_id is not None:
            self.last_commit = NotedCommit(
                table_id=table_id, version=version, batch_id=batch_id, app_id=self._app_id
            )


def last_number(delta: DeltaJvm, path: str, app_id: str) -> int:
    """The last batch of an app id that a table has taken; -1 before the first."""
    transaction = delta.begin(path)
    version = int(transaction.snapshot().version())
    logged = last_batch(delta, path, version, app_id)
    return int(transaction.txnVersion(app_id)) if logged is None else logged


def _replacing(
    table: StructType, query: StructType, name: str, allow_missing: bool
) -> SchemaDifference:
    """The schema of a table whose rows are replaced: the query's, where it does not just add."""
    check_columns(query, name)
    difference = compare(table, query)
    if difference.conflicts or (difference.missing and not allow_missing):
        return SchemaDifference(plain_schema(query, nullable=True))
    return difference
