"""Query functions of SQL definitions: callables without arguments."""

from typing import TYPE_CHECKING

from penstock._api import reading
from penstock._model.origin import SourceLocation
from penstock._sql.syntax import ColumnName, Query
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SqlQuery:
    """Runs the query of a flow with the defaults of the last `USE` before it."""

    def __init__(
        self,
        *,
        name: str,
        query: Query,
        catalog: str | None,
        schema: str | None,
        columns: tuple[ColumnName, ...],
        origin: SourceLocation,
    ) -> None:
        self.__name__ = name
        self.text = query.text
        self._padding = "\n" * (query.line - 1) + " " * query.column
        self._catalog = catalog
        self._schema = schema
        self._columns = columns
        self._origin = origin

    def __call__(self) -> "DataFrame":
        # Padding, so that line numbers in errors of Spark are those of the file.
        df = reading.query(self._padding + self.text, catalog=self._catalog, schema=self._schema)
        return self._named(df) if self._columns else df

    def _named(self, df: "DataFrame") -> "DataFrame":
        columns = df.columns
        wanted = [column.name for column in self._columns]
        if len(columns) != len(wanted):
            raise DefinitionError(
                "SQL_COLUMN_LIST_MISMATCH",
                f"{self.__name__!r} lists {len(wanted)} columns, but its query has {len(columns)}: "
                + ", ".join(columns),
                origin=self._origin,
                hint="list one name for each column of the query, or no names",
            )
        if columns != wanted:
            df = df.toDF(*wanted)
        for column in self._columns:
            if column.comment is not None:
                df = df.withMetadata(column.name, {"comment": column.comment})
        return df


class ChangeEvents:
    """Reads the dataset of change events of a flow."""

    def __init__(self, *, name: str, source: str, is_stream: bool, where: str | None) -> None:
        self.__name__ = name
        self._where = where
        self._source = source
        self._is_stream = is_stream

    def __call__(self) -> "DataFrame":
        df = reading.read_stream(self._source) if self._is_stream else reading.read(self._source)
        return df if self._where is None else df.where(self._where)
