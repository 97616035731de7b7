"""Exactly-once writes to a database: staging, then one transaction for rows and fence.

A batch is written in three steps. A staging table is created. Spark's tasks write their rows into
it, with one transaction per partition. Then the driver moves the rows to the target and records the
batch in the fence table, in one transaction, and drops the staging table.

* A batch that is recorded in the fence is not written again, only evaluated: a stateful query must
  compute every batch.
* If the response to a commit is lost, the fence shows whether the commit succeeded.
* A repeated task leaves no duplicate rows. PostgreSQL: rows have the id of their transaction, and
  one transaction is chosen per partition. MySQL: the rows of the second attempt are rejected.
* Staging tables of PostgreSQL are unlogged. A crash of the server truncates them, including the
  first row, without which no rows are moved.
* The fence has a token of the writer that started last; earlier writers can no longer commit.
"""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock._model.sql_text import quoted
from penstock._observe.masking import shown
from penstock._spark.failures import JDBC_DRIVER_FAILED, JDBC_READER, full_text
from penstock._tables.kill_points import is_switched_off, kill_point
from penstock.errors import CheckpointError, ConnectorError, FlowError
from penstock.sinks.base import (
    BatchSink,
    SinkCommit,
    Write,
    check_checkpoint,
    check_names,
    evaluate,
)
from penstock.sinks.jdbc.connection import connected, dialect_of
from penstock.sinks.jdbc.dialect import PART, SinkColumn, Unstorable
from penstock.sinks.jdbc.options import TableName, WriteRows, jdbc_sink_options, quote
from penstock.sources.jdbc.database import Database, DatabaseError

_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_NUL, _REPLACEMENT = "\0", "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class _Fence:
    epoch: str
    last_batch: int
    last_rows: int
    writer: str


class JdbcSinkWriter(BatchSink):
    """Writes the batches of one flow; pipeline, flow and target are the key of its fence row."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._spark = write.spark
        self._options = jdbc_sink_options(write.options)
        self._dialect = dialect_of(self._options.system)
        self._staging_options: dict[str, str] = {}
        self._flow = write.flow
        self._epoch = write.epoch
        self._writer = uuid.uuid4().hex
        self._columns: tuple[SinkColumn, ...] = ()
        self._identity = (write.pipeline, write.flow.name, str(self._options.table))
        digest = hashlib.sha256("\0".join(self._identity).encode()).hexdigest()
        self._prefix = f"penstock_stage_{digest[:16]}_"

    # -- before the query ----------------------------------------------------------------------

    def start(self, schema: T.StructType) -> None:
        """Create missing tables, check the target, and fence out earlier writers of this flow."""
        check_names(schema)
        try:
            with connected(self._spark, self._options) as database:
                with database.transaction():
                    # Two flows may create the same tables.
                    self._dialect.lock(database)
                    self._make_tables(database, schema)
                    table = self._dialect.columns(database, self._options.table)
                    self._columns = self._dialect.fit_columns(schema, table, self._options)
                    self._check_keys(database)
                    self._claim(database)
                self._drop_leftovers(database)
                self._staging_options = self._dialect.staging_options(database)
        except DatabaseError as error:
            raise self._failed(error, None) from error

    def _make_tables(self, database: Database, schema: T.StructType) -> None:
        options = self._options
        is_table = self._dialect.is_table(database, options.table)
        if is_table is None and not options.create_table:
            raise ConnectorError(
                "SINK_TABLE_NOT_FOUND",
                f"there is no table {options.table} in {options.place}",
                hint='create it, or leave out {"createTable": "false"}',
            )
        is_fence = self._dialect.is_table(database, options.fence)
        for table, is_suitable in ((options.table, is_table), (options.fence, is_fence)):
            if is_suitable is False:
                raise ConnectorError(
                    "SINK_TABLE_NOT_FOUND",
                    f"{table} in {options.place} is not {self._dialect.table_kind}",
                    hint="use a table, where rows and fence share a transaction",
                )
        if is_table is None:
            database.execute(self._dialect.create_table(schema, options))
        if is_fence is None:
            database.execute(self._dialect.create_fence(options.fence))

    def _check_keys(self, database: Database) -> None:
        options = self._options
        if options.mode is not WriteRows.UPSERT:
            return
        keys = [column.target for column in self._named(options.keys)]
        problem = self._dialect.keys_problem(database, options.table, keys, self._columns)
        if problem is not None:
            raise ConnectorError(
                "SINK_KEYS_NOT_UNIQUE",
                f"table {options.table} {problem}",
                hint="upserts need a primary key or unique index on the keys: ALTER TABLE ... ADD "
                "PRIMARY KEY or CREATE UNIQUE INDEX",
            )

    def _claim(self, database: Database) -> None:
        """Store the token of this writer in the fence, so that earlier writers cannot commit."""
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
        if not is_new:
            check_checkpoint(self._write, row.last_batch, str(self._options.table))
        reset = ", last_batch = -1, last_rows = 0" if is_new else ""
        database.execute(
            f"UPDATE {fence} SET writer = ?, epoch = ?, updated_at = now(){reset} "
            "WHERE pipeline = ? AND flow = ? AND target = ?",
            self._writer,
            self._epoch,
            *values,
        )

    def _drop_leftovers(self, database: Database) -> None:
        schema = self._options.staging_schema
        for table in self._dialect.leftovers(database, schema, self._prefix):
            try:
                database.execute(f"DROP TABLE IF EXISTS {table}")
            except DatabaseError as error:
                # Locked by a task on a lost machine: a later start drops the table.
                if not error.may_pass:
                    raise

    # -- one batch -----------------------------------------------------------------------------

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        kill_point("before_write", self._flow.name, batch_id)
        name = f"{self._prefix}{uuid.uuid4().hex[:12]}"
        staging = TableName(self._options.staging_schema, name)
        try:
            with connected(self._spark, self._options) as database:
                known = self._known(self._read_fence(database), batch_id)
                if not known:
                    self._dialect.make_staging(database, staging, self._columns)
            if known:
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

    def _stage(self, df: DataFrame, staging: TableName, batch_id: int) -> None:
        options = self._options
        rows = df.coalesce(options.partitions).select(
            *(self._staged(column) for column in self._columns),
            F.expr(self._dialect.part_function).alias(PART),
        )
        writer = rows.write.format("jdbc").mode("append")
        writer = writer.options(**{**self._staging_options, **options.connection})
        try:
            writer.options(
                url=options.url,
                dbtable=str(staging),
                driver=options.system.driver,
                batchsize=options.batch_size,
                isolationLevel="READ_COMMITTED",
            ).save()
        except Exception as error:
            text = full_text(error)
            for values in self._dialect.unstorable:
                if values.message.search(text):
                    raise self._unstorable(values, df, batch_id) from error
            failure = JDBC_DRIVER_FAILED.search(text)
            # A JDBC reader may have failed in the same tasks.
            if failure is not None and JDBC_READER.search(text) is None:
                raise DatabaseError("", shown(failure[1])) from error
            raise

    def _staged(self, column: SinkColumn) -> Column:
        value = F.col(quoted(column.source))
        kind = column.spark_type
        if isinstance(kind, T.TimestampType):
            staged = F.unix_micros(value)
        elif isinstance(kind, T.ByteType):
            staged = value.cast("smallint")
        elif isinstance(kind, T.FloatType):
            # The string of the largest FLOAT is out of range in MySQL.
            staged = value.cast("double")
        elif isinstance(kind, T.ArrayType | T.StructType | T.MapType | T.VariantType):
            staged = F.to_json(value, _JSON)
            if self._options.replace_nul:
                # JSON escapes NUL as `\u0000`; in `\\u0000`, a backslash is escaped instead.
                staged = F.regexp_replace(staged, r"(?<!\\)((?:\\\\)*)\\u0000", "$1" + _REPLACEMENT)
        elif column.staged_type == self._dialect.text_type:
            staged = value.cast("string")
            if self._options.replace_nul:
                staged = F.translate(staged, _NUL, _REPLACEMENT)
        else:
            staged = value
        return staged.alias(column.staged)

    def _commit(self, staging: TableName, batch_id: int) -> int:
        """Move the rows, set the fence, drop the staging table; returns the number of rows."""
        try:
            with connected(self._spark, self._options) as database:
                with database.transaction():
                    rows = self._move(database, staging, batch_id)
                database.execute(f"DROP TABLE IF EXISTS {staging}")
            return rows
        except DatabaseError as error:
            if not error.may_pass:
                raise self._refused(error, staging, batch_id) from error
            # Perhaps only the response was lost. If this read fails too, a retry reads the fence.
            with connected(self._spark, self._options) as database:
                fence = self._read_fence(database)
            if fence is not None and fence.epoch == self._epoch and fence.last_batch == batch_id:
                return fence.last_rows
            raise

    def _move(self, database: Database, staging: TableName, batch_id: int) -> int:
        if self._known(self._read_fence(database, lock=True), batch_id):
            return 0
        rows, attempts = self._dialect.count_staged(database, staging)
        if rows:
            options = self._options
            is_silent = not self._dialect.upsert_reports_duplicates
            if is_silent and options.keys and options.sequence_by is None:
                duplicate = self._duplicate(database, staging)
                if duplicate:
                    raise self._duplicate_key(duplicate, batch_id)
            database.execute(self._dialect.move_rows(staging, self._columns, options, attempts))
            if is_silent:
                # Indexes determine which rows are equal, and may have changed since the start; the
                # transaction locks them now.
                self._check_keys(database)
        database.execute(
            f"UPDATE {self._options.fence} SET last_batch = ?, last_rows = ?, "
            "updated_at = now() WHERE pipeline = ? AND flow = ? AND target = ?",
            batch_id,
            rows,
            *self._identity,
        )
        kill_point("before_target_commit", self._flow.name, batch_id)
        return rows

    # -- parts ---------------------------------------------------------------------------------

    def _named(self, names: Sequence[str]) -> list[SinkColumn]:
        by_name = {column.source.lower(): column for column in self._columns}
        return [by_name[name.lower()] for name in names]

    def _read_fence(self, database: Database, *, lock: bool = False) -> _Fence | None:
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
        hint = "what the database committed is not written again"
        if error.state[:2] == "28" or "denied" in error.text:
            hint = "correct the options `user` and `password` of the sink, or the user's rights"
        elif not error.may_pass:
            hint = f"correct the table or the options of the sink, and run again; {hint}"
        return self._error(
            "SINK_UNAVAILABLE",
            batch_id,
            f"flow {self._flow.name!r}: {self._options.place} failed{batch}: {error}",
            retryable=error.may_pass,
            hint=hint,
        )

    def _refused(self, error: DatabaseError, staging: TableName, batch_id: int) -> Exception:
        if error.state == "21000":
            with connected(self._spark, self._options) as database:
                return self._duplicate_key(self._duplicate(database, staging), batch_id)
        if not error.is_about_rows:
            return error
        hints = [v.hint for v in self._dialect.unstorable if v.message.search(error.text)]
        hints.append(
            "nothing of the batch was written; keep such rows apart with an expectation of "
            "the table that the flow reads, or correct the table, and run again"
        )
        return self._error(
            "SINK_ROWS_REFUSED",
            batch_id,
            f"flow {self._flow.name!r}: table {self._options.table} refuses a row of batch "
            f"{batch_id}: {error}",
            hint=hints[0],
        )

    def _duplicate(self, database: Database, staging: TableName) -> str:
        """A key that several staged rows have; empty if there is none."""
        keys = self._named(self._options.keys)
        values = [self._dialect.key_value(key) for key in keys]
        where = " AND ".join(f"{value} IS NOT NULL" for value in values)
        rows = database.query(
            f"SELECT {', '.join(values)} FROM {staging} AS s "
            f"WHERE s.{quote(PART)} >= 0 AND {where} "
            f"GROUP BY {', '.join(str(at + 1) for at in range(len(keys)))} "
            "HAVING count(*) > 1 LIMIT 1"
        )
        if not rows:
            return ""
        named = zip(keys, rows[0], strict=True)
        return ", ".join(f"{key.source} = {text}" for key, text in named)

    def _duplicate_key(self, duplicate: str, batch_id: int) -> FlowError:
        example = f", such as {duplicate}" if duplicate else ""
        return self._error(
            "SINK_KEYS_NOT_UNIQUE",
            batch_id,
            f"flow {self._flow.name!r}: batch {batch_id} has several rows with the same "
            f"{', '.join(self._options.keys)}{example}: their order is not defined",
            hint='name the column that orders them in option "sequenceBy", or deduplicate in the '
            "query; nothing of the batch was written",
        )

    def _unstorable(self, values: Unstorable, df: DataFrame, batch_id: int) -> FlowError:
        checked = [c for c in self._columns if isinstance(c.spark_type, values.types)]
        columns: list[str] = []
        if checked:
            checks = [F.max(values.is_in(F.col(quoted(c.source)))).alias(c.staged) for c in checked]
            row = df.agg(*checks).first()
            columns = [c.source for c in checked if row is not None and row[c.staged]]
        where = f"column {', '.join(columns)}" if columns else "a nested value"
        return self._error(
            "SINK_ROWS_REFUSED",
            batch_id,
            f"flow {self._flow.name!r}: batch {batch_id} has {values.name} in {where}, "
            f"which {self._options.system.name} cannot store",
            hint=values.hint,
        )
