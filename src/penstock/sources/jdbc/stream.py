"""A Spark source whose micro-batches are read by Spark's own JDBC reader.

Spark gets from a source its latest offset and the rows between two offsets, on the thread of the
query. It calls this source through Py4J, like the functions of `foreachBatch`. The source only
plans: rows go from the database to Spark's tasks. Offsets are keys, and Spark stores them in the
checkpoint.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from penstock._model.quantity import plural
from penstock._model.sql_text import quoted
from penstock._tables.jvm import dataframe
from penstock.errors import ConnectorError
from penstock.sources.jdbc.commit_visibility import Marks, check_postgresql
from penstock.sources.jdbc.database import Database, translated
from penstock.sources.jdbc.failures import SourceFailure, explained
from penstock.sources.jdbc.options import (
    JdbcSourceOptions,
    Key,
    KeyKind,
    between,
    count_between,
    invalid,
    nth_key,
    overlap_amount,
    read_key,
    split_range,
)

_WAIT_SECONDS = 1.0
# Without a trigger interval, Spark polls again immediately.
_IDLE_SECONDS = 1.0
_KINDS: tuple[tuple[type[T.DataType], KeyKind], ...] = (
    (T.IntegralType, KeyKind.INTEGER),
    (T.DecimalType, KeyKind.DECIMAL),
    (T.TimestampType, KeyKind.TIMESTAMP),
    (T.TimestampNTZType, KeyKind.TIMESTAMP),
)


@dataclass(frozen=True, kw_only=True)
class KeyRange:
    """The range of keys that a stream reads; `is_whole` overrides the option `startingKey`."""

    since: str | None = None
    after: str | None = None
    until: str | None = None
    is_whole: bool = False

    def as_json(self) -> dict[str, Any]:
        """The range as stored in the position of the flow."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class _Range:
    """An offset: last key and row count of a batch, and the key before it (`None` at the start).

    `table` is PostgreSQL's OID of the table, which changes if the table is created again.
    """

    low: Key | None
    high: Key
    rows: int
    table: str | None = None


def check_columns(schema: T.StructType, options: Mapping[str, str], place: str) -> None:
    """Refuse columns whose values Spark's reader would change.

    It rounds decimals of more than 38 digits, to keep all integer digits; for MySQL's BIT(n), it
    concatenates the binary digits of each byte without leading zeros.

    Raises:
        ConnectorError: `JDBC_OPTION_INVALID`.
    """
    custom = {name.lower(): text for name, text in options.items()}
    declared: Any = T.StructType.fromDDL(custom.get("customschema", ""))
    chosen = {name.lower() for name in declared.fieldNames()}
    for field in schema.fields:
        kind = field.dataType
        if field.name.lower() in chosen:
            continue
        if "binarylong" in field.metadata and isinstance(kind, T.BinaryType):
            raise invalid(
                f"column {field.name!r} of {place} is BIT with several bits, and Spark would "
                "return the same bytes for different values",
                hint=f'.option("customSchema", "{quoted(field.name)} BIGINT") reads it as a number',
            )
        if not isinstance(kind, T.DecimalType):
            continue
        # The scale that the driver reports.
        scale = int(field.metadata.get("scale", 0))
        if scale > kind.scale:
            column_type = f"DECIMAL(38,{scale})" if scale <= 38 else "STRING"
            raise invalid(
                f"column {field.name!r} of {place} has scale {scale}, and Spark would read it as "
                f"{kind.simpleString()}: digits would be lost",
                hint=f'.option("customSchema", "{quoted(field.name)} {column_type}") keeps the '
                "digits; STRING also takes numbers of more than 38 digits",
            )


class JdbcStream:
    """Spark's `Source` for one table. Called on the thread of one query; `stop` on any thread.

    Attributes:
        has_times: Whether the values of the key column are times.
        failure: Why the stream has ended; set before Spark is notified.
    """

    def __init__(
        self, spark: SparkSession, options: JdbcSourceOptions, bounds: KeyRange | None = None
    ) -> None:
        self._spark = spark
        self._options = options
        self._bounds = bounds or KeyRange()
        self._jvm: Any = spark._jvm
        self._until: Key | None = None
        self._table: str | None = None
        self._is_bounded = False
        self._is_compared = False
        self._is_idle = False
        self.failure: SourceFailure | None = None
        with explained(self._options):
            self._read_columns()
        self.has_times = self._kind is KeyKind.TIMESTAMP
        self._overlap = overlap_amount(options, self._kind)
        self._marks = Marks(self._options, self._newest, self._connected)
        for text in (options.starting_key, self._bounds.since, self._bounds.after):
            if text is not None:
                read_key(self._kind, text)

    def rows(self) -> DataFrame:
        """The stream as a DataFrame."""
        gateway = self._spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        runtime = self._jvm.org.apache.spark.sql.execution.streaming.runtime
        relation = getattr(runtime, "StreamingExecutionRelation$")
        plan = getattr(relation, "MODULE$").apply(self, self._spark._jsparkSession)
        return dataframe(self._spark, plan)

    def _read_columns(self) -> None:
        options = self._options
        java_reader = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions
        reader_options = {**options.reader, "url": options.url, "dbtable": options.table}
        self._java_options: Any = java_reader(self._jvm.PythonUtils.toScalaMap(reader_options))
        with self._connected() as database:
            # Fails for a wrong password or name with the database's own error, not Spark's.
            database.query(f"SELECT * FROM {options.table} WHERE 1 = 0")
            reader = self._spark.read.format("jdbc").options(**reader_options)
            with translated():
                self._schema = reader.load().schema
            check_columns(self._schema, options.reader, options.place)
            name, self._kind = self._key_column()
            dialect = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options.url)
            self._key = str(dialect.quoteIdentifier(name))
            if options.is_postgresql:
                self._options = check_postgresql(database, options, name)

    def _key_column(self) -> tuple[str, KeyKind]:
        wanted = self._options.key.strip('"`').lower()
        fields = [field for field in self._schema.fields if field.name.lower() == wanted]
        if len(fields) != 1:
            raise ConnectorError(
                "JDBC_KEY_INVALID",
                f"{self._options.place} has no column {self._options.key!r}",
                hint=f"its columns: {', '.join(self._schema.fieldNames())}",
            )
        for kind, key_kind in _KINDS:
            if isinstance(fields[0].dataType, kind):
                return fields[0].name, key_kind
        raise ConnectorError(
            "JDBC_KEY_INVALID",
            f"column {fields[0].name!r} of {self._options.place} is of type "
            f"{fields[0].dataType.simpleString()}, which cannot be the key of a stream",
            hint="name a column of whole numbers, or of times with option `overlap`",
        )

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """The end of the next batch, limited by `maxRowsPerTrigger`, not by Spark's `limit`."""
        with self._reported():
            last = None if start is None else self._offset(start)
            if self._is_idle and not self._is_bounded:
                self._marks.rest(_IDLE_SECONDS)
            mark = self._until if self._is_bounded else self._marks.settle(_WAIT_SECONDS)
            mark = self._within(mark)
            if mark is not None and last is not None:
                self._compare(mark, last)
            self._is_idle = mark is None or (last is not None and mark.order <= last.high.order)
            if mark is None or self._is_idle:
                return start
            return self._java_offset(self._next(last, mark))

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the rows that are committed now."""
        with self._reported():
            self._is_bounded = True
            delay = self._options.settling_delay_seconds
            longest = self._options.settle_timeout_seconds if delay is None else delay
            self._until = self._marks.settle(longest + _WAIT_SECONDS)

    def getBatch(self, start: Any, end: Any) -> Any:
        """The rows after one offset, up to and including another."""
        with self._reported():
            last = self._offset(start.get()) if start.isDefined() else None
            high = self._offset(end).high
            return self._rows(None if last is None else last.high, high)._jdf

    def reportLatestOffset(self) -> Any:
        """The greatest key that was seen, settled or not."""
        seen = self._marks.seen
        return None if seen is None else self._java_offset(_Range(None, seen, 0))

    def deserializeOffset(self, text: str) -> Any:
        return self._serialized(text)

    def schema(self) -> Any:
        return self._spark._jsparkSession.parseDataType(self._schema.json())

    def getDefaultReadLimit(self) -> Any:
        """No limit: `latestOffset` applies the option."""
        return self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def commit(self, end: Any) -> None:
        """Do nothing: no data of a batch is kept."""

    def stop(self) -> None:
        """End a wait, because the query ends."""
        self._marks.stop()

    def toString(self) -> str:
        return f"JDBC[{self._options.place}]"

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        if isinstance(other, JdbcStream):
            return other is self
        return other is not None and int(other.hashCode()) == self.hashCode()

    class Java:
        """The Java interfaces that Py4J implements with this class."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )

    def _newest(self, database: Database) -> Key | None:
        ((text,),) = database.query(f"SELECT MAX({self._key}) FROM {self._options.table}")
        ((rows,),) = database.query(count_between(self._options, f"{self._key} IS NULL"))
        if int(rows or 0):
            raise SourceFailure(
                "JDBC_KEY_NULL",
                f"{self._options.key} is NULL in {plural(int(rows or 0), 'row')} of "
                f"{self._options.place}: the stream would never read them",
                "give them a key and make the column NOT NULL; to leave them out, read "
                f'.option("query", "SELECT * FROM ... WHERE {self._options.key} IS NOT NULL")',
                is_running=True,
            )
        if self._options.is_postgresql and not self._options.is_query:
            # Not for a view, which keeps its rows when it is created again.
            table = "SELECT oid FROM pg_class WHERE oid = to_regclass(?) AND relkind IN ('r', 'p')"
            ((self._table,),) = database.query(f"SELECT ({table})", self._options.table)
        return None if text is None else read_key(self._kind, text)

    def _next(self, last: _Range | None, mark: Key) -> _Range:
        low = None if last is None else last.high
        condition = self._condition(low, mark)
        with self._connected() as database:
            records = database.query(
                nth_key(self._options, self._key, condition, self._options.max_rows)
            )
            high = read_key(self._kind, str(records[0][0])) if records else mark
            count = count_between(self._options, self._condition(low, high))
            ((rows,),) = database.query(count)
        return _Range(low, high, int(rows or 0), self._table)

    def _compare(self, mark: Key, last: _Range) -> None:
        if self._options.accept_key_back:
            return
        if last.table not in (None, self._table):
            raise self._went_back(
                f"the table was dropped and created again after keys up to {last.high.text} were "
                "read: its rows may have smaller ones"
            )
        # Not for times: the newest decreases if its row is deleted, but later changes are newer.
        if last.high.order - mark.order > self._overlap and not self.has_times:
            raise self._went_back(
                f"its greatest key is {mark.text}, but keys up to {last.high.text} were read: the "
                "table was emptied, or restored from a backup"
            )
        if self._overlap or (self._is_compared and mark.order == last.high.order):
            return
        self._is_compared = True
        condition = self._condition(last.low, last.high)
        rows = int(self._value(count_between(self._options, condition)) or 0)
        if rows > last.rows:
            first = "the beginning" if last.low is None else last.low.text
            raise self._went_back(
                f"{plural(rows - last.rows, 'row')} with keys after {first} up to "
                f"{last.high.text} appeared after these keys were read"
            )

    def _went_back(self, what: str) -> SourceFailure:
        return SourceFailure(
            "JDBC_KEY_WENT_BACK",
            f"{self._options.place}: {what}",
            "nothing was skipped yet. --full-refresh reads the table from its start; a greater "
            '`overlap` reads keys again; .option("onKeyBack", "continue") continues with greater '
            "keys only",
            is_running=True,
        )

    def _condition(self, low: Key | None, high: Key) -> str:
        if low is not None:
            return between(self._key, low, high)
        start, is_inclusive = self._first()
        return between(self._key, start, high, inclusive=is_inclusive)

    def _first(self) -> tuple[Key | None, bool]:
        if self._bounds.after is not None:
            return read_key(self._kind, self._bounds.after), False
        start = self._bounds.since
        if start is None and not self._bounds.is_whole:
            start = self._options.starting_key
        return (None, False) if start is None else (read_key(self._kind, start), True)

    def _within(self, mark: Key | None) -> Key | None:
        if mark is None or self._bounds.until is None:
            return mark
        last = read_key(self._kind, self._bounds.until)
        return last if last.order < mark.order else mark

    def newest(self, before: str | None = None) -> str | None:
        """The greatest key of the table, or the greatest below `before`; `None` if none exists."""
        below = "1 = 1" if before is None else f"{self._key} < {read_key(self._kind, before).sql}"
        return self._value(f"SELECT MAX({self._key}) FROM {self._options.table} WHERE {below}")

    def count(self, bounds: KeyRange) -> int:
        """The number of rows whose keys are in a range."""
        begin = bounds.since or bounds.after
        low = None if begin is None else read_key(self._kind, begin)
        high = None if bounds.until is None else read_key(self._kind, bounds.until)
        condition = between(self._key, low, high, inclusive=bounds.since is not None)
        return int(self._value(count_between(self._options, condition)) or 0)

    def _value(self, query: str) -> str | None:
        with explained(self._options), self._connected() as database:
            ((value,),) = database.query(query)
        return value

    def greatest(self, keys: Sequence[str]) -> str | None:
        """The greatest of some keys from checkpoints; `None` if there are none."""
        known = [read_key(self._kind, key) for key in keys]
        return max(known, key=lambda key: key.order).text if known else None

    def _begin(self, last: Key | None) -> tuple[Key | None, bool]:
        """The key where the batch after `last` begins, and whether it belongs to the batch."""
        first, is_inclusive = self._first()
        if last is None:
            return first, is_inclusive
        again = last.before(self._overlap) if self._overlap else last
        # The overlap ends at the start key that the user set, unless it was set after `last` was
        # read. A start at the newest key is no limit: a transaction may later commit smaller ones.
        if first is not None and is_inclusive and again.order < first.order <= last.order:
            return first, True
        return again, False

    def _rows(self, low: Key | None, high: Key) -> DataFrame:
        begin, inclusive = self._begin(low)
        conditions = split_range(
            self._key, begin, high, self._options.partitions, inclusive=inclusive
        )
        with translated():
            batch = self._spark.read.jdbc(
                self._options.url,
                self._options.table,
                predicates=conditions,
                properties=dict(self._options.reader),
            )
        self._check_columns(batch.schema)
        java: Any = batch._jdf.queryExecution().analyzed()
        logical = getattr(self._jvm.org.apache.spark.sql.execution.datasources, "LogicalRelation$")
        stream = dataframe(self._spark, getattr(logical, "MODULE$").apply(java.relation(), True))
        if stream.columns == self._schema.fieldNames():
            return stream
        return stream.select(*(quoted(name) for name in self._schema.fieldNames()))

    def _check_columns(self, now: T.StructType) -> None:
        types = {field.name: field.dataType for field in now.fields}
        for field in self._schema.fields:
            column_type = types.get(field.name)
            if column_type == field.dataType:
                continue
            what = (
                "does not exist any more"
                if column_type is None
                else f"is now of type {column_type.simpleString()}"
            )
            raise SourceFailure(
                "JDBC_COLUMN_CHANGED",
                f"column {field.name!r} of {self._options.place} {what}",
                "restore the column, or restart the update to read the table as it is now; nothing "
                "of the batch was written",
                is_running=True,
            )

    def _offset(self, java: Any) -> _Range:
        body = json.loads(str(java.json()))
        low = body.get("after")
        return _Range(
            None if low is None else read_key(self._kind, str(low)),
            read_key(self._kind, str(body["key"])),
            int(body["rows"]),
            body.get("table"),
        )

    def _java_offset(self, made: _Range) -> Any:
        after = None if made.low is None else made.low.text
        body: dict[str, Any] = {"key": made.high.text, "after": after, "rows": made.rows}
        if made.table is not None:
            body["table"] = made.table
        return self._serialized(json.dumps(body))

    def _serialized(self, text: str) -> Any:
        runtime = self._jvm.org.apache.spark.sql.execution.streaming.runtime
        return runtime.SerializedOffset(text)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Database]:
        """A connection from Spark's own factory, in which each statement is a transaction."""
        dialects = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects
        with translated():
            dialect = dialects.get(self._options.url)
            connection = dialect.createConnectionFactory(self._java_options).apply(-1)
        try:
            yield Database(connection)
        finally:
            with contextlib.suppress(Py4JError):
                connection.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Keep the failure that ends the stream for the flow: Spark gets only its text."""
        try:
            with explained(self._options):
                yield
        except SourceFailure as failure:
            self.failure = failure
            raise
        except ConnectorError as error:
            self.failure = SourceFailure(
                error.condition, error.message, error.hint, is_running=True
            )
            raise
