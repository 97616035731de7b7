"""Exactly-once writes to PostgreSQL: staging, then one transaction for rows and fence.

A batch has three steps. A staging table is created, with a first row. Spark's tasks write their
rows there, one transaction per partition. Then the driver moves the rows to the target, records the
batch in the fence table and drops the staging table, all in one transaction.

* A batch that the fence has is not written again, only evaluated: a stateful query must compute
  every batch.
* If the answer to a commit is lost, the fence shows whether it happened.
* A task that runs twice leaves duplicated rows: they carry the id of their transaction, and of each
  partition one transaction counts.
* Staging tables are not logged. A crash of the server empties them, and with them the first row,
  without which nothing is moved.
* The fence carries a token of the writer that started last; an earlier one can no longer commit.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock._model.dataset import SinkFacts
from penstock._model.flow import Flow, OutputMode
from penstock._model.sql_text import quoted
from penstock._spark.failures import full_text
from penstock._tables.kill_points import is_switched_off, kill_point
from penstock.errors import CheckpointError, ConnectorError, FlowError
from penstock.sinks.base import BatchSink, OpenedSink, Sink, SinkCommit, Write, evaluate, option
from penstock.sinks.jdbc.connection import PostgreSql, connected
from penstock.sinks.jdbc.options import (
    JdbcSinkOptions,
    TableName,
    WriteRows,
    jdbc_sink_options,
    quote,
)
from penstock.sinks.jdbc.postgresql import (
    ATTEMPT,
    PART,
    SinkColumn,
    create_table,
    fit_columns,
    move_rows,
)
from penstock.sources.jdbc.database import DatabaseError

_REFUSED = {
    OutputMode.UPDATE: "mode `append` would add each new version of a row as another row",
    OutputMode.COMPLETE: "mode `append` would add the whole result with every batch",
}


class JdbcSink(Sink):
    """Exactly once: rows and the id of their batch are committed by one transaction."""

    formats = ("jdbc",)

    def facts(self, options: Mapping[str, str]) -> SinkFacts:
        is_keyed = bool(option(options, "keys"))
        return SinkFacts(is_keyed=is_keyed, refuses_new_checkpoint=not is_keyed)

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        jdbc_sink_options(options)
        return dict(options)

    def check_query(
        self, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
    ) -> None:
        """Columns are compared with the table when the flow starts."""
        if jdbc_sink_options(options).mode is WriteRows.APPEND and mode in _REFUSED:
            raise ConnectorError(
                "SINK_MODE_NOT_SUPPORTED",
                f"the JDBC sink cannot take a flow in {mode.value} mode: {_REFUSED[mode]}",
                hint='set {"mode": "upsert", "keys": "..."} on the sink: the grouping columns',
            )

    def open(self, write: Write) -> OpenedSink:
        writer = JdbcSinkWriter(
            write.spark,
            jdbc_sink_options(write.options),
            pipeline=write.pipeline,
            flow=write.flow,
            epoch=write.epoch,
        )
        writer.start(write.schema)
        return writer


_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_NUL, _REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"
_SAYS_NUL = "invalid byte sequence for encoding"


@dataclass(frozen=True)
class _Fence:
    epoch: str
    last_batch: int
    last_rows: int
    writer: str


class JdbcSinkWriter(BatchSink):
    """Writes the batches of one flow; pipeline, flow and target are the key of its fence."""

    def __init__(
        self,
        spark: SparkSession,
        options: JdbcSinkOptions,
        *,
        pipeline: str,
        flow: Flow,
        epoch: str,
    ) -> None:
        self._spark = spark
        self._options = options
        self._pipeline = pipeline
        self._flow = flow
        self._epoch = epoch
        self._writer = uuid.uuid4().hex
        self._columns: tuple[SinkColumn, ...] = ()
        identity = "\0".join((pipeline, flow.name, str(options.table)))
        self._prefix = f"penstock_stage_{hashlib.sha256(identity.encode()).hexdigest()[:16]}_"

    # -- before the query ----------------------------------------------------------------------

    def start(self, schema: T.StructType) -> None:
        """Create missing tables, check the target, and fence out earlier writers of this flow."""
        try:
            with connected(self._spark, self._options) as database:
                with database.transaction():
                    # Two flows may make the same tables.
                    database.query("SELECT pg_advisory_xact_lock(hashtext('penstock sinks'))")
                    self._make_tables(database, schema)
                    self._columns = fit_columns(
                        schema, database.columns(self._options.table), self._options
                    )
                    self._check_keys(database)
                    self._claim(database)
                self._drop_leftovers(database)
        except DatabaseError as error:
            raise self._failed(error, None) from error

    def _make_tables(self, database: PostgreSql, schema: T.StructType) -> None:
        options = self._options
        kind = database.relation_kind(options.table)
        if kind is None and not options.create_table:
            raise ConnectorError(
                "SINK_TABLE_NOT_FOUND",
                f"there is no table {options.table} in {options.place}",
                hint='create it, or leave out {"createTable": "false"}',
            )
        if kind is None:
            database.execute(create_table(schema, options))
        elif kind not in ("r", "p"):
            raise ConnectorError(
                "SINK_TABLE_NOT_FOUND",
                f"{options.table} in {options.place} is a view or a foreign table",
                hint="use a table, where rows and fence share a transaction",
            )
        if not database.exists(options.fence):
            database.execute(
                f"CREATE TABLE {options.fence} (pipeline text, flow text, target text, "
                "epoch text NOT NULL, last_batch bigint NOT NULL, last_rows bigint NOT NULL, "
                "writer text NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
                "PRIMARY KEY (pipeline, flow, target))"
            )

    def _check_keys(self, database: PostgreSql) -> None:
        options = self._options
        if options.mode is not WriteRows.UPSERT:
            return
        keys = [column.target for column in self._named(options.keys)]
        if not database.has_unique_index(options.table, keys):
            raise ConnectorError(
                "SINK_KEYS_NOT_UNIQUE",
                f"table {options.table} has no primary key or unique index on "
                f"exactly {', '.join(keys)}",
                hint="upserts need one: ALTER TABLE ... ADD PRIMARY KEY or CREATE UNIQUE INDEX",
            )

    def _claim(self, database: PostgreSql) -> None:
        """Put our token into the fence; from now on earlier writers cannot commit."""
        fence, values = self._options.fence, self._identity
        row = self._read_fence(database, lock=True)
        if row is None:
            database.execute(
                f"INSERT INTO {fence} (pipeline, flow, target, epoch, last_batch, last_rows, "
                "writer) VALUES (?, ?, ?, ?, -1, 0, ?)",
                *values,
                self._epoch,
                self._writer,
            )
            return
        is_new = row.epoch != self._epoch
        if is_new and row.last_batch >= 0 and self._options.mode is WriteRows.APPEND:
            raise CheckpointError(
                "SINK_CHECKPOINT_LOST",
                f"flow {self._flow.name!r} starts with a new checkpoint, but {self._options.table} "
                f"has the rows of an earlier one, up to its batch {row.last_batch}: they would "
                "be duplicated",
                flow=self._flow.name,
                origin=self._flow.origin,
                hint="restore the pipeline's storage; or empty the table and delete the flow's "
                f"row in {self._options.fence}",
            )
        reset = ", last_batch = -1, last_rows = 0" if is_new else ""
        database.execute(
            f"UPDATE {fence} SET writer = ?, epoch = ?, updated_at = now(){reset} "
            "WHERE pipeline = ? AND flow = ? AND target = ?",
            self._writer,
            self._epoch,
            *values,
        )

    def _drop_leftovers(self, database: PostgreSql) -> None:
        rows = database.query(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence = 'u' "
            "AND starts_with(c.relname, ?)",
            self._prefix,
        )
        for schema, table in rows:
            database.execute(f"DROP TABLE IF EXISTS {TableName(str(schema), str(table))}")

    # -- one batch -----------------------------------------------------------------------------

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        kill_point("before_write", self._flow.name, batch_id)
        try:
            with connected(self._spark, self._options) as database:
                known = self._known(self._read_fence(database), batch_id)
                staging = None if known else self._make_staging(database)
            if staging is None:
                evaluate(df)
                return SinkCommit(rows=0, replayed=True)
            self._stage(df, staging, batch_id)
            kill_point("after_staging", self._flow.name, batch_id)
            rows = self._commit(staging, batch_id)
        except DatabaseError as error:
            raise self._failed(error, batch_id) from error
        kill_point("after_target_commit", self._flow.name, batch_id)
        return SinkCommit(rows=rows, is_upsert=self._options.mode is WriteRows.UPSERT)

    def _known(self, fence: _Fence | None, batch_id: int) -> bool:
        """Whether a batch is committed; raises `SINK_FENCED` or `SINK_BEHIND`."""
        if fence is None or fence.writer != self._writer:
            reason = "another driver of the same pipeline has started since"
            if fence is None:
                reason = "its row in the fence table was deleted"
            raise self._error(
                "SINK_FENCED",
                batch_id,
                f"flow {self._flow.name!r} may no longer write to {self._options.table}: {reason}",
                hint="run the pipeline in one place only; nothing of the batch was written",
            )
        if is_switched_off("sink-fence"):
            return False
        if fence.last_batch < batch_id - 1 and not self._options.accept_gap:
            raise self._error(
                "SINK_BEHIND",
                batch_id,
                f"flow {self._flow.name!r} continues with batch {batch_id}, but the last one that "
                f"{self._options.place} knows for {self._options.table} is {fence.last_batch}: "
                "it is another database or table, or was restored from a backup",
                hint="give the flow a new name to write everything again (into an empty table), or "
                'set {"onGap": "continue"} on the sink to continue without the rows between',
            )
        return fence.last_batch >= batch_id

    def _make_staging(self, database: PostgreSql) -> TableName:
        staging = TableName(self._options.staging_schema, self._prefix + uuid.uuid4().hex[:12])
        columns = ", ".join(f"{quote(c.staged)} {c.staged_type}" for c in self._columns)
        with database.transaction():
            database.execute(
                f"CREATE UNLOGGED TABLE {staging} ({columns}, {quote(PART)} integer NOT NULL, "
                f"{quote(ATTEMPT)} bigint NOT NULL DEFAULT txid_current())"
            )
            database.execute(f"INSERT INTO {staging} ({quote(PART)}) VALUES (-1)")
        return staging

    def _stage(self, df: DataFrame, staging: TableName, batch_id: int) -> None:
        options = self._options
        rows = df.coalesce(options.partitions).select(
            *(self._staged(column) for column in self._columns), F.spark_partition_id().alias(PART)
        )
        writer = rows.write.format("jdbc").mode("append").options(**options.connection)
        try:
            writer.options(
                url=options.url,
                dbtable=str(staging),
                driver="org.postgresql.Driver",
                batchsize=options.batch_size,
                reWriteBatchedInserts=True,
                isolationLevel="READ_COMMITTED",
            ).save()
        except Exception as error:
            if _SAYS_NUL in full_text(error):
                raise self._nul_error(df, batch_id) from error
            raise

    def _staged(self, column: SinkColumn) -> Column:
        value = F.col(quoted(column.source))
        kind = column.spark_type
        if isinstance(kind, T.TimestampType):
            staged = F.unix_micros(value)
        elif isinstance(kind, T.ByteType):
            staged = value.cast("smallint")
        elif isinstance(kind, T.ArrayType | T.StructType | T.MapType | T.VariantType):
            staged = F.to_json(value, _JSON)
            if self._options.replace_nul:
                # JSON spells the character out; an escaped backslash before it is another string.
                staged = F.regexp_replace(staged, r"(?<!\\)((?:\\\\)*)\\u0000", "$1" + _REPLACEMENT)
        elif column.staged_type == "text":
            staged = value.cast("string")
            if self._options.replace_nul:
                staged = F.translate(staged, _NUL, _REPLACEMENT)
        else:
            staged = value
        return staged.alias(column.staged)

    def _commit(self, staging: TableName, batch_id: int) -> int:
        """Move the rows, set the fence, drop the staging table; returns the number of rows."""
        try:
            with connected(self._spark, self._options) as database, database.transaction():
                if self._known(self._read_fence(database, lock=True), batch_id):
                    database.execute(f"DROP TABLE {staging}")
                    return 0
                rows = self._move(database, staging)
                database.execute(
                    f"UPDATE {self._options.fence} SET last_batch = ?, last_rows = ?, "
                    "updated_at = now() WHERE pipeline = ? AND flow = ? AND target = ?",
                    batch_id,
                    rows,
                    *self._identity,
                )
                database.execute(f"DROP TABLE {staging}")
                kill_point("before_target_commit", self._flow.name, batch_id)
            return rows
        except DatabaseError as error:
            if not error.may_pass:
                raise self._refused(error, staging, batch_id) from error
            # Only the answer may be lost. If the database is unavailable, a retry reads the fence.
            with connected(self._spark, self._options) as database:
                fence = self._read_fence(database)
            if fence is not None and fence.epoch == self._epoch and fence.last_batch == batch_id:
                return fence.last_rows
            raise

    def _move(self, database: PostgreSql, staging: TableName) -> int:
        rows = database.query(
            f"SELECT {quote(PART)}, {quote(ATTEMPT)}, count(*) FROM {staging} GROUP BY 1, 2 "
            "ORDER BY 1, 2"
        )
        counts = [tuple(int(str(value)) for value in row) for row in rows]
        if not any(part == -1 for part, _, _ in counts):
            raise DatabaseError("08000", "the server lost the staging table in a crash")
        chosen: dict[int, tuple[int, int]] = {}
        for part, attempt, count in counts:
            if part >= 0:
                chosen.setdefault(part, (attempt, count))
        if not chosen:
            return 0
        has_duplicates = len(counts) > len(chosen) + 1
        attempts = (
            [(part, attempt) for part, (attempt, _) in chosen.items()] if has_duplicates else []
        )
        database.execute(move_rows(str(staging), self._columns, self._options, attempts))
        return sum(count for _, count in chosen.values())

    # -- parts ---------------------------------------------------------------------------------

    @property
    def _identity(self) -> tuple[str, str, str]:
        return (self._pipeline, self._flow.name, str(self._options.table))

    def _named(self, names: Sequence[str]) -> list[SinkColumn]:
        by_name = {column.source.lower(): column for column in self._columns}
        return [by_name[name.lower()] for name in names]

    def _read_fence(self, database: PostgreSql, *, lock: bool = False) -> _Fence | None:
        rows = database.query(
            f"SELECT epoch, last_batch, last_rows, writer FROM {self._options.fence} "
            "WHERE pipeline = ? AND flow = ? AND target = ?" + (" FOR UPDATE" if lock else ""),
            *self._identity,
        )
        if not rows:
            return None
        epoch, last_batch, last_rows, writer = (str(value) for value in rows[0])
        return _Fence(epoch, int(last_batch), int(last_rows), writer)

    # -- errors --------------------------------------------------------------------------------

    def _error(
        self, condition: str, batch_id: int | None, message: str, **details: Any
    ) -> FlowError:
        flow = self._flow
        return FlowError(
            condition, message, flow=flow.name, batch_id=batch_id, origin=flow.origin, **details
        )

    def _failed(self, error: DatabaseError, batch_id: int | None) -> FlowError:
        batch = "" if batch_id is None else f" in batch {batch_id}"
        return self._error(
            "SINK_UNAVAILABLE",
            batch_id,
            f"flow {self._flow.name!r}: {self._options.place} failed{batch}: {error}",
            retryable=error.may_pass,
            hint="what the database committed is not written again",
        )

    def _refused(self, error: DatabaseError, staging: TableName, batch_id: int) -> Exception:
        if error.state == "21000":
            return self._duplicate_key(staging, batch_id)
        if not error.is_about_rows:
            return error
        return self._error(
            "SINK_ROWS_REFUSED",
            batch_id,
            f"flow {self._flow.name!r}: table {self._options.table} refuses a row of batch "
            f"{batch_id}: {error}",
            hint="nothing of the batch was written; keep such rows apart with an expectation of "
            "the table that the flow reads, or correct the table, and run again",
        )

    def _duplicate_key(self, staging: TableName, batch_id: int) -> FlowError:
        keys = self._named(self._options.keys)
        values = ", ".join(key.value for key in keys)
        example = ""
        with connected(self._spark, self._options) as database:
            rows = database.query(
                f"SELECT {values}, count(*) FROM {staging} AS s WHERE s.{quote(PART)} >= 0 "
                f"GROUP BY {', '.join(str(at + 1) for at in range(len(keys)))} "
                "HAVING count(*) > 1 LIMIT 1"
            )
        if rows:
            named = zip(keys, rows[0], strict=False)
            example = ", such as " + ", ".join(f"{key.source} = {text}" for key, text in named)
        return self._error(
            "SINK_KEYS_NOT_UNIQUE",
            batch_id,
            f"flow {self._flow.name!r}: batch {batch_id} has several rows with the same "
            f"{', '.join(self._options.keys)}{example}: their order is not defined",
            hint='name the column that orders them in option "sequenceBy", or deduplicate in the '
            "query; nothing of the batch was written",
        )

    def _nul_error(self, df: DataFrame, batch_id: int) -> FlowError:
        strings = [c for c in self._columns if isinstance(c.spark_type, T.StringType)]
        columns: list[str] = []
        if strings:
            checks = [
                F.max(F.col(quoted(c.source)).contains(_NUL)).alias(c.staged) for c in strings
            ]
            row = df.agg(*checks).first()
            columns = [c.source for c in strings if row is not None and row[c.staged]]
        where = f"column {', '.join(columns)}" if columns else "a nested value"
        return self._error(
            "SINK_ROWS_REFUSED",
            batch_id,
            f"flow {self._flow.name!r}: batch {batch_id} has the character U+0000 in {where}, "
            "which PostgreSQL cannot store",
            hint='set {"nulCharacters": "replace"} on the sink to store U+FFFD instead, or keep '
            "such rows apart with an expectation of the table that the flow reads",
        )
