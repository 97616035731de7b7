"""Transactions of one flow on one table, with Delta's `SetTransaction` as the fence per batch."""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock._tables.commit_note import NotedCommit
from penstock._tables.commits import CommitResult, result_from_commit
from penstock._tables.delta_log import DeltaJvm, TableMetadata, file_count
from penstock._tables.jvm import iterate
from penstock._tables.kill_points import is_switched_off
from penstock._tables.layout import TableRef
from penstock._tables.read.damage import check_commit
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.read.log_scan import last_batch
from penstock._tables.write.schema import (
    COLUMN_MAPPING,
    SchemaDifference,
    absent_key,
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


class _KnownVersions:
    """Newest versions and batches of the tables that this process writes, as a cache.

    As long as a table's newest version was committed by this process, no other process has
    committed a transaction of its flows, so the cached last batch of each app id is correct.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version: dict[str, int] = {}
        self._batches: dict[tuple[str, str], int] = {}

    def committed(self, table_id: str, version: int, app_id: str, batch_id: int | None) -> None:
        """Record a commit of this process, unless a version before it is unknown."""
        with self._lock:
            if self._version.get(table_id) == version - 1:
                self._version[table_id] = version
            if batch_id is not None:
                self._batches[table_id, app_id] = batch_id

    def looked_up(self, table_id: str, version: int, app_id: str, batch_id: int) -> None:
        with self._lock:
            if self._version.get(table_id) != version:
                # Other processes may have committed batches of the other flows in between.
                for key in [key for key in self._batches if key[0] == table_id]:
                    del self._batches[key]
                self._version[table_id] = version
            self._batches[table_id, app_id] = batch_id

    def last(self, table_id: str, version: int, app_id: str) -> int | None:
        """Last batch of an app id at a version; `None` if it must be looked up."""
        with self._lock:
            is_known = self._version.get(table_id) == version
            return self._batches.get((table_id, app_id)) if is_known else None


_known_versions = _KnownVersions()


@dataclass(frozen=True)
class TableTransaction:
    jvm: Any  # Delta's OptimisticTransaction
    is_committed: bool  # the table has the batch already
    metadata: TableMetadata  # of the version that was read

    @property
    def version(self) -> int:
        return int(self.jvm.snapshot().version())


class FencedTable:
    """One existing table, and the application id under which one flow writes it."""

    def __init__(self, delta: DeltaJvm, ref: TableRef, app_id: str) -> None:
        self.ref = ref
        self.delta = delta
        self.app_id = app_id
        self.live_files = LiveFiles(delta, ref.path)
        self._version = _UNKNOWN
        self._metadata: TableMetadata | None = None
        self._difference: SchemaDifference | None = None
        self._query: StructType | None = None
        self.keys: Collection[str] = ()
        """Columns by which the flow finds the rows that it replaces."""
        self.generation = 0
        """Incremented when the table's metadata may have changed."""
        self.last_commit: NotedCommit | None = None
        """The newest commit of a batch that was made or found by this object."""

    def begin(self, batch_id: int | None) -> TableTransaction:
        """Start a transaction on the newest version; `None` means a write without a fence.

        The last batch is read from the newest commits, otherwise from the state of the whole table;
        it is cached while every version of the table is committed by this process. The first call
        checks the newest commit for damage.
        """
        transaction = self.delta.begin(self.ref.path, writes=True)
        version = int(transaction.snapshot().version())
        if version < 0:
            raise InternalError("TABLE_NOT_PREPARED", f"{self.ref.name} does not exist")
        if self._metadata is None:
            check_commit(self.delta, self.ref, version)
        if self._metadata is None or version != self._version:
            self._metadata = self.delta.metadata(transaction)
            self._difference = None
            self._version = version
            self.generation += 1
        if batch_id is None:
            return TableTransaction(transaction, False, self._metadata)
        last = _known_versions.last(self._metadata.id, version, self.app_id)
        if last is None:
            last = _last_batch(self.delta, self.ref.path, transaction, self.app_id)
            _known_versions.looked_up(self._metadata.id, version, self.app_id, last)
        # A concurrent commit with our app id must conflict with ours.
        transaction.readTxn().addOne(self.app_id)
        is_committed = last >= batch_id and not is_switched_off("fence")
        return TableTransaction(transaction, is_committed, self._metadata)

    def evolve(
        self, txn: TableTransaction, query: StructType, *, allow_missing: bool, replaces: bool
    ) -> StructType:
        """Check the query's schema, and add its new columns to the transaction.

        With `allow_missing`, columns that the query lacks become NULL; with `replaces`, all rows
        are replaced, so any schema fits. Returns the new schema.
        """
        have = txn.metadata.schema
        if self._difference is None or self._query != query:
            error = absent_key(have, self.keys, self.ref.name)
            if error is not None and file_count(txn.jvm.snapshot()) > 0:
                raise error
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
            content = dict(txn.metadata.content, schemaString=text)
            txn.jvm.updateMetadata(self.delta.action({"metaData": content}), False)
            self._version = _UNKNOWN
        return merged

    def commit_evolution(self, txn: TableTransaction, batch_id: int | None) -> TableTransaction:
        """Commit the columns that `evolve` added, without the fence; returns a new transaction."""
        if not txn.jvm.newMetadata().isDefined():
            return txn
        operation = self.delta.alter_operation(txn.metadata.jvm, txn.jvm.metadata())
        txn.jvm.commit(self.delta.seq([]), operation)
        return self.begin(batch_id)

    def name_columns(self, txn: TableTransaction, batch_id: int | None) -> TableTransaction:
        """Like `commit_evolution`, but only for tables with column mapping.

        Each transaction generates other physical names for new columns. In files that are committed
        by another transaction, the columns would be NULL.
        """
        is_mapped = COLUMN_MAPPING in txn.metadata.configuration
        return self.commit_evolution(txn, batch_id) if is_mapped else txn

    def set_property(
        self, txn: TableTransaction, key: str, value: str, batch_id: int | None
    ) -> TableTransaction:
        """Commit a property, without the fence; returns a new transaction."""
        configuration = {**txn.metadata.configuration, key: value}
        content = dict(txn.metadata.content, configuration=configuration)
        txn.jvm.updateMetadata(self.delta.action({"metaData": content}), False)
        txn.jvm.commit(self.delta.seq([]), self.delta.properties_operation({key: value}))
        return self.begin(batch_id)

    def files(self, txn: TableTransaction) -> Any:
        """All files, as a Scala `Seq`; a concurrent change of them fails the commit."""
        txn.jvm.readWholeTable()
        return self.live_files.all(txn.jvm.snapshot())

    def rows(self, txn: TableTransaction, like: DataFrame) -> DataFrame:
        """All rows, in the session of `like`; a concurrent change of them fails the commit."""
        return self.delta.read_files(txn.jvm.snapshot(), self.files(txn), like.sparkSession)

    def removals(self, txn: TableTransaction) -> list[Any]:
        # The transaction counts as having read all files: a concurrent append must fail it.
        txn.jvm.readWholeTable()
        return list(iterate(self.live_files.removals(txn.jvm.snapshot())))

    def commit(
        self,
        txn: TableTransaction,
        actions: Sequence[Any],
        batch_id: int | None,
        result: CommitResult,
        *,
        complete: bool,
        where: str | None = None,
    ) -> int:
        """Commit with the fence (if there is a batch id) and the record; returns the new version.

        `complete` and `where` are recorded in the history: all existing rows, or those of a window,
        are replaced.
        """
        record = result.to_metadata()
        if batch_id is None:
            operation = self.delta.write_operation(record, overwrite=complete, where=where)
        else:
            now = int(time.time() * 1000)
            actions = [self.delta.set_transaction(self.app_id, batch_id, now), *actions]
            operation = self.delta.streaming_operation(
                self.app_id, batch_id, record, complete=complete
            )
        version = self.delta.commit(txn.jvm, actions, operation)
        _known_versions.committed(txn.metadata.id, version, self.app_id, batch_id)
        self._remember(txn.metadata.id, version, batch_id)
        # The metadata is still valid only if there was no other commit in between, and Delta did
        # not record the high-water mark of an identity column in it.
        is_same = self._version == version - 1 and not has_identity(txn.metadata.schema)
        self._version = version if is_same else _UNKNOWN
        return version

    def recorded(self, batch_id: int | None) -> CommitResult | None:
        """The record of a committed batch; `None` if its commit is too old."""
        newest = self.delta.version(self.ref.path)
        for version in range(newest, max(-1, newest - _REPLAY_SEARCH), -1):
            info = self.delta.commit_info(self.ref.path, version)
            if info is None:
                return None
            result = result_from_commit(version, info)
            if result and result.app_id == self.app_id and result.batch_id == batch_id:
                if self._metadata is not None:
                    self._remember(self._metadata.id, version, batch_id)
                return replace(result, replayed=True)
        return None

    def _remember(self, table_id: str, version: int, batch_id: int | None) -> None:
        if batch_id is not None:
            self.last_commit = NotedCommit(
                table_id=table_id, version=version, batch_id=batch_id, app_id=self.app_id
            )


def last_number(delta: DeltaJvm, path: str, app_id: str) -> int:
    """The last committed batch of an app id in a table; -1 if there is none."""
    return _last_batch(delta, path, delta.begin(path), app_id)


def _last_batch(delta: DeltaJvm, path: str, transaction: Any, app_id: str) -> int:
    logged = last_batch(delta, path, int(transaction.snapshot().version()), app_id)
    return int(transaction.txnVersion(app_id)) if logged is None else logged


def _replacing(
    table: StructType, query: StructType, name: str, allow_missing: bool
) -> SchemaDifference:
    """The schema of a table whose rows are replaced: the query's, unless it only adds columns."""
    check_columns(query, name)
    difference = compare(table, query)
    if difference.conflicts or (difference.missing and not allow_missing):
        return SchemaDifference(plain_schema(query, nullable=True))
    return difference
