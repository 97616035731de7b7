"""The differences between databases (types, statements, catalogs), and their common checks.

Rows reach the target in two steps. Spark writes them into a staging table with the few types that
drivers transfer exactly: timestamps as microseconds, dates and local timestamps as ISO strings,
nested values as JSON. One statement then converts them. Conversions that could silently truncate
a value are not used.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import types as T

from penstock._model.similar import nearest
from penstock._tables.write.schema import DIGITS
from penstock.errors import ConnectorError
from penstock.sinks.jdbc.options import JdbcSinkOptions, TableName, WriteRows, quote
from penstock.sources.jdbc.database import Database

PART = "penstock_part"


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of the target."""

    name: str
    type: str  # as the database shows it: `numeric(10,2)`, `integer[]`
    not_null: bool = False
    has_default: bool = False
    generated: bool = False  # cannot be written
    is_enum: bool = False
    collation: str = ""  # set if it determines which strings are equal


@dataclass(frozen=True, kw_only=True)
class SinkColumn:
    """A column of the query, of the staging table and of the target."""

    source: str
    spark_type: T.DataType
    staged: str
    staged_type: str
    target: str
    target_type: str
    collation: str = ""


@dataclass(frozen=True, kw_only=True)
class Unstorable:
    """Values that Spark supports and the database rejects while rows are staged."""

    message: re.Pattern[str]  # error message of the driver
    types: tuple[type[T.DataType], ...]
    is_in: Callable[[Column], Column]
    name: str
    hint: str


def bare_type(shown: str) -> str:
    """A type without its length or precision."""
    return re.sub(r"\(.*?\)", "", shown).strip()


class Dialect(ABC):
    """The statements and types of one database system; has no state."""

    session: ClassVar[tuple[str, ...]]  # statements at the start of sessions of Spark's driver
    defaults: ClassVar[Mapping[str, str]]  # connection parameters
    text_type: ClassVar[str]  # type of staged strings
    part_function: ClassVar[str]  # Spark's function for the column `penstock_part` of staged rows
    unstorable: ClassVar[tuple[Unstorable, ...]]
    fence_text: ClassVar[str]  # type of the string columns of the fence table
    fence_time: ClassVar[str] = "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP"
    table_kind: ClassVar[str]  # required kind of the target, for messages
    table_options: ClassVar[str] = ""
    upsert_reports_duplicates: ClassVar[bool]  # as SQLSTATE 21000 if two rows have the same key

    # Numeric types: name to the number of digits that the type holds exactly.
    integers: ClassVar[Mapping[str, int]]
    floats: ClassVar[Mapping[str, int]]
    decimal: ClassVar[str]
    same_types: ClassVar[Mapping[type[T.DataType], tuple[str, ...]]]

    # -- types ---------------------------------------------------------------------------------

    @abstractmethod
    def column_type(self, spark_type: T.DataType) -> str | None:
        """The type of a new column; `None` for an unsupported type."""

    def key_type(self, spark_type: T.DataType) -> str | None:
        """The type of a new column of the primary key."""
        return self.column_type(spark_type)

    @abstractmethod
    def staged_type(self, spark_type: T.DataType) -> str: ...

    @abstractmethod
    def fits(self, spark_type: T.DataType, column: TableColumn) -> bool:
        """Whether a column can hold every value of a type, or rejects those that it cannot."""

    @abstractmethod
    def value(self, column: SinkColumn) -> str:
        """The SQL expression that converts the staged value to the type of the target."""

    def key_value(self, column: SinkColumn) -> str:
        """The SQL expression of the value as the target compares it."""
        return self.value(column)

    def number_fits(self, spark_type: T.DataType, wanted: str, bare: str) -> bool:
        whole = DIGITS.get(type(spark_type))
        if whole is not None:
            if bare in self.integers:
                return self.integers[bare] >= whole
            exact = self.floats.get(bare, 0) >= whole
            whole_digits, fraction = _digits(wanted)
            return exact or (bare == self.decimal and whole_digits >= whole and fraction >= 0)
        if isinstance(spark_type, T.DecimalType):
            before, after = spark_type.precision - spark_type.scale, spark_type.scale
            if bare == self.decimal:
                whole_digits, fraction = _digits(wanted)
                return whole_digits >= before and fraction >= after
            # The largest numbers of a type are not all nines.
            return after == 0 and self.integers.get(bare, 0) > before
        return bare in self.same_types.get(type(spark_type), ())

    # -- statements ----------------------------------------------------------------------------

    @abstractmethod
    def lock(self, database: Database) -> None:
        """Allow only one flow to create tables until the transaction, or the session, ends."""

    @abstractmethod
    def is_table(self, database: Database, table: TableName) -> bool | None:
        """Whether it is a table with transactions; `None` if it does not exist."""

    @abstractmethod
    def columns(self, database: Database, table: TableName) -> list[TableColumn]: ...

    @abstractmethod
    def keys_problem(
        self,
        database: Database,
        table: TableName,
        keys: Sequence[str],
        columns: Sequence[SinkColumn],
    ) -> str | None:
        """The reason why upserts by these keys are not possible; `None` if they are."""

    @abstractmethod
    def leftovers(self, database: Database, schema: str | None, prefix: str) -> list[TableName]: ...

    @abstractmethod
    def staging_options(self, database: Database) -> dict[str, str]:
        """Connection parameters of Spark's tasks."""

    @abstractmethod
    def make_staging(
        self, database: Database, staging: TableName, columns: Sequence[SinkColumn]
    ) -> None: ...

    @abstractmethod
    def count_staged(
        self, database: Database, staging: TableName
    ) -> tuple[int, list[tuple[int, int]]]:
        """The number of valid rows, and their partitions and attempts; an empty list means all."""

    @abstractmethod
    def move_rows(
        self,
        staging: TableName,
        columns: Sequence[SinkColumn],
        options: JdbcSinkOptions,
        attempts: Sequence[tuple[int, int]],
    ) -> str:
        """The statement that adds the staged rows to the target."""

    def create_table(self, schema: T.StructType, options: JdbcSinkOptions) -> str:
        """The CREATE TABLE statement of the target of a query."""
        keys = {key.lower() for key in options.keys}
        lines = []
        for field in schema.fields:
            is_key = field.name.lower() in keys
            wanted = (self.key_type if is_key else self.column_type)(field.dataType)
            if wanted is None:
                reason = _no_type(field.dataType, options)
                raise _incompatible(options, [f"column {field.name}: {reason}"])
            null = " NOT NULL" if is_key else ""
            lines.append(f"{quote(field.name)} {wanted}{null}")
        if options.mode is WriteRows.UPSERT:
            named = {field.name.lower(): field.name for field in schema.fields}
            columns = ", ".join(quote(named.get(key.lower(), key)) for key in options.keys)
            lines.append(f"PRIMARY KEY ({columns})")
        body = ",\n  ".join(lines)
        return f"CREATE TABLE {options.table} (\n  {body}\n){self.table_options}"

    def create_fence(self, fence: TableName) -> str:
        text = self.fence_text
        return (
            f"CREATE TABLE {fence} (pipeline {text}, flow {text}, target {text}, "
            f"epoch {text} NOT NULL, last_batch bigint NOT NULL, last_rows bigint NOT NULL, "
            f"writer {text} NOT NULL, updated_at {self.fence_time}, "
            f"PRIMARY KEY (pipeline, flow, target)){self.table_options}"
        )

    # -- an existing table ---------------------------------------------------------------------

    def fit_columns(
        self, schema: T.StructType, table: Sequence[TableColumn], options: JdbcSinkOptions
    ) -> tuple[SinkColumn, ...]:
        """Match the columns of a query with those of the target; the error lists all problems."""
        exact = {column.name: column for column in table}
        folded: dict[str, list[TableColumn]] = {}
        for column in table:
            folded.setdefault(column.name.lower(), []).append(column)
        columns: list[SinkColumn] = []
        problems: list[str] = []
        taken: set[str] = set()
        for at, field in enumerate(schema.fields):
            alike = folded.get(field.name.lower(), [])
            target = exact.get(field.name) or (alike[0] if len(alike) == 1 else None)
            if target is None:
                near = nearest(field.name, exact)
                also = f" (did you mean {near}?)" if near else ""
                problems.append(f"the table has no column {field.name}{also}")
                continue
            if target.name in taken:
                problems.append(f"two columns of the query are named {target.name}")
                continue
            taken.add(target.name)
            reason = self.misfit(field.dataType, target, options)
            if reason is not None:
                problems.append(f"column {field.name}: {reason}")
                continue
            columns.append(
                SinkColumn(
                    source=field.name,
                    spark_type=field.dataType,
                    staged=f"c{at}",
                    staged_type=self.staged_type(field.dataType),
                    target=target.name,
                    target_type=target.type,
                    collation=target.collation,
                )
            )
        problems += [
            f"the table's column {column.name} is NOT NULL without a default, "
            "and the query lacks it"
            for column in table
            if column.name not in taken and column.not_null and not column.has_default
        ]
        names = {field.name.lower() for field in schema.fields}
        named = [*options.keys, *([options.sequence_by] if options.sequence_by else [])]
        problems += [
            f"the query has no column {name}" for name in named if name.lower() not in names
        ]
        if problems:
            raise _incompatible(options, problems)
        return tuple(columns)

    def misfit(
        self, spark_type: T.DataType, column: TableColumn, options: JdbcSinkOptions
    ) -> str | None:
        """The reason why a column cannot store all values of a type; `None` if it can."""
        if column.generated:
            return "the table computes it by itself"
        if self.column_type(spark_type) is None:
            return _no_type(spark_type, options)
        if self.fits(spark_type, column):
            return None
        return f"{spark_type.simpleString()} does not fit into {column.type}"


def _digits(decimal: str) -> tuple[int, int]:
    """The numbers of digits of a decimal type before and after the decimal point."""
    match = re.search(r"\((\d+),(-?\d+)\)", decimal)
    if match is None:
        return 131072, 16383
    precision, scale = int(match[1]), int(match[2])
    return precision - scale, scale


def _no_type(kind: T.DataType, options: JdbcSinkOptions) -> str:
    return f"{options.system.name} has no type for {kind.simpleString()}; cast it"


def _incompatible(options: JdbcSinkOptions, problems: Sequence[str]) -> ConnectorError:
    return ConnectorError(
        "SINK_SCHEMA_INCOMPATIBLE",
        f"the query does not fit into table {options.table}: {'; '.join(problems)}",
        hint="select and cast in the query, or alter the table; nothing was read or written",
    )
