"""Query functions of SQL definitions: callables without arguments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock._api import reading
from penstock._model.origin import SourceLocation
from penstock._model.sql_text import quoted
from penstock._sql.syntax import ColumnName, Query
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(eq=False, kw_only=True)
class SqlQuery:
    """Runs the query of a flow with the defaults of the last `USE` before it."""

    __name__: str
    query: Query
    catalog: str | None
    schema: str | None
    columns: tuple[ColumnName, ...]
    origin: SourceLocation

    def __call__(self) -> "DataFrame":
        # Padding makes the line numbers in Spark's errors those of the file.
        padding = "\n" * (self.query.line - 1) + " " * self.query.column
        df = reading.query(padding + self.query.text, catalog=self.catalog, schema=self.schema)
        return self._named(df) if self.columns else df

    def _named(self, df: "DataFrame") -> "DataFrame":
        columns = df.columns
        wanted = [column.name for column in self.columns]
        if len(columns) != len(wanted):
            raise DefinitionError(
                "SQL_COLUMN_LIST_MISMATCH",
                f"{self.__name__!r} lists {len(wanted)} columns, but its query has {len(columns)}: "
                + ", ".join(columns),
                origin=self.origin,
                hint="list one name for each column of the query, or no names",
            )
        if columns != wanted:
            df = df.toDF(*wanted)
        comments = {c.name: {"comment": c.comment} for c in self.columns if c.comment is not None}
        if not comments:
            return df
        # `withMetadata` would interpret a dot in a name as a field access.
        return df.select(
            *(df[quoted(name)].alias(name, metadata=comments.get(name)) for name in wanted)
        )


@dataclass(eq=False, kw_only=True)
class ChangeEvents:
    """Reads the dataset of change events of a flow."""

    __name__: str
    source: str
    is_stream: bool
    where: str | None

    def __call__(self) -> "DataFrame":
        df = reading.read_stream(self.source) if self.is_stream else reading.read(self.source)
        return df if self.where is None else df.where(self.where)
