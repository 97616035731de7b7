"""Calls query functions, with every way of reading a dataset redirected to the pipeline's own.

`spark.read.table`, `spark.readStream.table`, `spark.table`, `spark.sql` and the readers of the
declarative API all end in one resolver while a query function runs. The redirection is installed
once per process and does nothing unless an `Evaluator` is active in the current context, so other
threads and the user's own code outside of pipelines are untouched.
"""

import contextlib
import functools
import itertools
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from penstock._api.reading import DatasetReader, reading
from penstock._engine.autoloader.opening import OpenedFiles, collecting, open_files, source_key
from penstock._engine.autoloader.states import MemoryStates
from penstock._engine.autoloader.store import SchemaStore
from penstock._engine.boundary import DatasetNotReadyError, user_code
from penstock._engine.sql_names import RelationReference, rewrite_relations
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow
from penstock._model.origin import capture_origin
from penstock.connectors.options import prepare_reader_options
from penstock.errors import DefinitionError, PenstockError, PlanError
from penstock.quality.split import filter_view

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTO_LOADER = "cloudfiles"
_ROW_READERS = ("json", "csv", "parquet", "orc", "text", "xml")
# Options with which a query says by itself where to begin, or how.
_OWN_START = {
    *("startingversion", "startingtimestamp", "readchangefeed", "readchangedata"),
    *("witheventtimeorder", "schematrackinglocation", "schemalocation"),
}
_active: ContextVar["Evaluator | None"] = ContextVar("penstock_evaluator", default=None)
_view_numbers = itertools.count()


class TableSource(Protocol):
    """Where the rows of a stored dataset come from."""

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """All rows. Raises `DatasetNotReadyError` when its schema is not known yet."""

    def stream(self, key: str, reader: DataStreamReader) -> DataFrame:
        """New rows. Raises `DatasetNotReadyError` when its schema is not known yet."""


class SchemaSource:
    """Empty stand-ins with the right schema, for analysis: nothing of the storage is touched."""

    def __init__(self) -> None:
        self.schemas: dict[str, StructType] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-analysis-")

    def close(self) -> None:
        """Remove the empty folder that the stand-ins read."""
        self._folder.cleanup()

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """See `TableSource.batch`."""
        return reader.format("parquet").schema(self._schema(key, reader)).load(self._path)

    def stream(self, key: str, reader: DataStreamReader) -> DataFrame:
        """See `TableSource.stream`."""
        return reader.format("parquet").schema(self._schema(key, reader)).load(self._path)

    @property
    def _path(self) -> str:
        return Path(self._folder.name).as_uri()

    def _schema(self, key: str, reader: DataFrameReader | DataStreamReader) -> StructType:
        if key not in self.schemas:
            raise DatasetNotReadyError(key)
        schema = self.schemas[key]
        options = {name.lower(): value for name, value in reader_options(reader).items()}
        if options.get("readchangefeed", options.get("readchangedata", "")).lower() == "true":
            schema = StructType(list(schema.fields))
            schema = schema.add("_change_type", StringType()).add("_commit_version", LongType())
            schema = schema.add("_commit_timestamp", TimestampType())
        return schema


@dataclass
class StreamStarts:
    """From which version of each table a new flow reads appends.

    A stream that begins with a snapshot of its table computes the state of that table at its first
    start, and again at every start without news; one that reads the log from its beginning sees the
    same rows and computes nothing.

    Attributes:
        chosen: Version by dataset; others begin with a snapshot.
        is_open: Whether versions may still be chosen: the flow has not started yet.
    """

    chosen: dict[str, int]
    is_open: bool


class DeltaSource:
    """The real tables.

    Args:
        paths: Path of each table by dataset.
        append_only_start: Of the table at a path; see `_tables.log_scan`.
    """

    def __init__(
        self, paths: Mapping[str, str], append_only_start: Callable[[str], int | None]
    ) -> None:
        self._paths = paths
        self._append_only_start = append_only_start
        self._starts: ContextVar[StreamStarts | None] = ContextVar("penstock_starts", default=None)

    @contextlib.contextmanager
    def starting(self, starts: StreamStarts) -> Iterator[None]:
        """Use these versions for the streams that are read inside."""
        token = self._starts.set(starts)
        try:
            yield
        finally:
            self._starts.reset(token)

    def batch(self, key: str, reader: DataFrameReader) -> DataFrame:
        """See `TableSource.batch`."""
        return reader.format("delta").load(self._paths[key])

    def stream(self, key: str, reader: DataStreamReader) -> DataFrame:
        """See `TableSource.stream`."""
        start = self._start(key, reader)
        if start is not None:
            reader = reader.option("startingVersion", start)
        return reader.format("delta").load(self._paths[key])

    def _start(self, key: str, reader: DataStreamReader) -> int | None:
        starts = self._starts.get()
        if starts is None or {name.lower() for name in reader_options(reader)} & _OWN_START:
            return None
        if starts.is_open and key not in starts.chosen:
            found = self._append_only_start(self._paths[key])
            if found is not None:
                starts.chosen[key] = found
        return starts.chosen.get(key)


class SourceStates(Protocol):
    """Where sources of files keep what they remember."""

    def store(self, flow: str, key: str, *, analysis: bool) -> SchemaStore:
        """The store of one source of a flow; see `autoloader.states.FileStates`."""


@dataclass
class Evaluation:
    """What one call of a query function read."""

    inputs: set[str] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    files: list[OpenedFiles] = field(default_factory=list)


class Evaluator(DatasetReader):
    """Evaluates query functions against a source of tables.

    Used on several threads at once; each evaluation belongs to one thread.

    Args:
        spark: Classic session of the pipeline.
        index: Declarations by name.
        source: Stand-ins or real tables.
        resolve_secrets: Fills `${secret:...}` in reader options.
        states: What sources of files remember; nothing is kept without it.
    """

    def __init__(
        self,
        spark: SparkSession,
        index: DefinitionIndex,
        source: TableSource,
        resolve_secrets: Callable[[str], str],
        states: SourceStates | None = None,
    ) -> None:
        self._spark = spark
        self.index = index
        self._source = source
        self._resolve_secrets = resolve_secrets
        self._states = states or MemoryStates()
        self._stack: ContextVar[tuple[tuple[str, Evaluation], ...]] = ContextVar(
            "penstock_evaluation", default=()
        )
        self._defaults: ContextVar[tuple[str, str] | None] = ContextVar(
            "penstock_sql_defaults", default=None
        )
        install_redirection()

    def evaluate(self, flow: Flow) -> tuple[DataFrame, Evaluation]:
        """Call a flow's query function.

        Raises:
            DatasetNotReadyError: It reads a dataset whose schema is not known yet.
            DefinitionError: The query is wrong, or the function returns no DataFrame.
            UserCodeError: The function raised.
        """
        evaluation = Evaluation()
        stack = self._stack.get()
        if any(name == flow.name for name, _ in stack):
            names = [name for name, _ in stack]
            raise DatasetCycleError([*names[names.index(flow.name) :], flow.name])
        tokens = _active.set(self), self._stack.set((*stack, (flow.name, evaluation)))
        try:
            with self._collecting(evaluation), reading(self), user_code(flow, self.index.nearest):
                result = flow.function()
        finally:
            self._stack.reset(tokens[1])
            _active.reset(tokens[0])
        if not isinstance(result, DataFrame):
            raise DefinitionError(
                "QUERY_RETURNS_NO_DATAFRAME",
                f"the query function of {flow.name!r} returned {type(result).__name__}, "
                "not a DataFrame",
                origin=flow.origin,
                hint="return the DataFrame at its end" if result is None else None,
            )
        return result, evaluation

    @contextlib.contextmanager
    def _collecting(self, evaluation: Evaluation) -> Iterator[None]:
        """Note the sources of files; those of a view belong to the flow that reads it."""
        if len(self._stack.get()) > 1:
            yield
            return
        with collecting() as evaluation.files:
            yield

    # -- the declarative API's own readers -----------------------------------------------------

    def read(self, name: str) -> DataFrame:
        """`dp.read(name)`: all rows of a dataset."""
        return self._spark.read.table(name)

    def read_stream(self, name: str) -> DataFrame:
        """`dp.read_stream(name)`: the rows of a dataset as a stream."""
        return self._spark.readStream.table(name)

    def query(self, text: str, *, catalog: str | None, schema: str | None) -> DataFrame:
        """The query of a SQL definition, with the defaults that `USE` set before it."""
        token = self._defaults.set((catalog or self.index.catalog, schema or self.index.schema))
        try:
            return self._spark.sql(text)
        finally:
            self._defaults.reset(token)

    # -- redirection ---------------------------------------------------------------------------

    def _find(self, name: str) -> DeclaredDataset | None:
        defaults = self._defaults.get()
        if defaults is None:
            return self.index.find(name)
        return self.index.find(name, catalog=defaults[0], schema=defaults[1])

    @property
    def _current(self) -> Evaluation:
        return self._stack.get()[-1][1]

    def table(self, name: str, reader: DataFrameReader | DataStreamReader) -> DataFrame | None:
        """The rows of a declared dataset, or `None` for a name from outside."""
        dataset = self._find(name)
        if dataset is None:
            self._current.external.append(f"table {name}")
            return None
        key = dataset.name.key
        self._current.inputs.add(key)
        streaming = isinstance(reader, DataStreamReader)
        if dataset.declared.kind is DatasetKind.TEMPORARY_VIEW:
            return self._view(dataset, streaming=streaming)
        with _own_read():
            if isinstance(reader, DataStreamReader):
                return self._source.stream(key, reader)
            return self._source.batch(key, reader)

    def _view(self, dataset: DeclaredDataset, *, streaming: bool) -> DataFrame:
        if not dataset.flows:
            raise DatasetNotReadyError(dataset.name.key)
        df, _ = self.evaluate(dataset.flows[0])
        shown = self.index.display(dataset.name.key)
        if df.isStreaming != streaming:
            there, here = ("stream", "batch") if df.isStreaming else ("batch", "stream")
            raise DefinitionError(
                "INCOMPATIBLE_VIEW_READ",
                f"temporary view {shown!r} is a {there} query and is read as a {here}",
                origin=dataset.declared.origin,
                hint="read it with " + ("spark.readStream" if df.isStreaming else "spark.read"),
            )
        return filter_view(df, dataset.declared.expectations)

    def sql(self, text: str) -> str:
        """SQL text with the pipeline's datasets replaced by temporary views on them."""
        return rewrite_relations(self._spark, text, self._sql_relation)

    def _sql_relation(self, reference: RelationReference) -> str | None:
        if self._find(reference.name) is None:
            self._current.external.append(f"table {reference.name.replace('`', '')}")
            return None
        reader: Any = self._spark.readStream if reference.is_streaming else self._spark.read
        df = self.table(reference.name, reader)
        if df is None:
            raise PlanError("DATASET_NOT_FOUND", f"{reference.name} vanished while it was read")
        name = f"__penstock_{next(_view_numbers)}"
        df.createOrReplaceTempView(name)
        return f"`{name}`"

    def files(self, reader: DataFrameReader | DataStreamReader, path: Any) -> DataFrame:
        """What `format("cloudFiles")` reads."""
        given = reader_options(reader)
        if path is None:
            path = next((value for key, value in given.items() if key.lower() == "path"), "")
        return self.open_files(
            path,
            options=given,
            schema=reader.__dict__.get("_penstock_schema"),
            streaming=isinstance(reader, DataStreamReader),
        )

    def open_files(
        self,
        path: str | list[str],
        *,
        options: Mapping[str, str],
        schema: StructType | str | None,
        streaming: bool,
    ) -> DataFrame:
        """Files as Auto Loader reads them; what the source remembers belongs to the outermost flow.

        Raises:
            PenstockError: See `autoloader.opening.open_files`; with the user's line as its origin.
        """
        path = _absolute(path)
        resolved = {key: self._resolve_secrets(value) for key, value in options.items()}
        self.record(_describe("cloudFiles", path, {}))
        flow = self._stack.get()[0][0]
        analysis = isinstance(self._source, SchemaSource)
        try:
            with _own_read():
                return open_files(
                    self._spark,
                    path=path,
                    options=resolved,
                    schema=schema,
                    streaming=streaming,
                    state=self._states.store(flow, source_key(path, resolved), analysis=analysis),
                    analysis=analysis,
                )
        except PenstockError as error:
            error.origin = error.origin or capture_origin()
            raise

    def record(self, what: str) -> None:
        """Remember a source from outside of the pipeline, for the plan."""
        self._current.external.append(what)

    def prepare_options(self, reader: DataFrameReader | DataStreamReader) -> None:
        """Fill secrets and defaults into a reader's options, and refuse wrong ones."""
        given = reader_options(reader)
        resolved = {key: self._resolve_secrets(value) for key, value in given.items()}
        for key, value in prepare_reader_options(
            _format_of(reader), resolved, streaming=isinstance(reader, DataStreamReader)
        ).items():
            if given.get(key) != value:
                reader._jreader = reader._jreader.option(key, value)


class DatasetCycleError(BaseException):
    """Query functions of views call each other in a circle."""

    def __init__(self, path: list[str]) -> None:
        self.path = path
        super().__init__(" -> ".join(path))


# -- what a reader was told ---------------------------------------------------------------------


def reader_options(reader: Any) -> dict[str, str]:
    """Options given so far to a reader that was made in an evaluation."""
    options: dict[str, str] = reader.__dict__.setdefault("_penstock_options", {})
    return options


def _format_of(reader: Any) -> str:
    return str(reader.__dict__.get("_penstock_format", ""))


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def install_redirection() -> None:
    """Redirect the readers of classic PySpark; once per process, idempotent."""
    # PySpark prints every failed analysis with its whole stack; the error that we raise says it.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    for reader in (DataFrameReader, DataStreamReader):
        _wrap_reader(reader)
    original_sql = SparkSession.sql

    @functools.wraps(original_sql)
    def sql(self: SparkSession, sqlQuery: str, *args: Any, **kwargs: Any) -> DataFrame:
        evaluator = _active.get()
        if evaluator is not None:
            sqlQuery = evaluator.sql(sqlQuery)
        return original_sql(self, sqlQuery, *args, **kwargs)

    @functools.wraps(SparkSession.table)
    def table(self: SparkSession, tableName: str) -> DataFrame:
        return self.read.table(tableName)

    SparkSession.sql = sql  # type: ignore[method-assign]
    SparkSession.table = table  # type: ignore[method-assign]


def _wrap_reader(reader: Any) -> None:
    original = {
        name: getattr(reader, name)
        for name in ("table", "load", "format", "option", "options", "schema", *_ROW_READERS)
        if hasattr(reader, name)
    }

    def wrap(name: str, replacement: Callable[..., Any]) -> None:
        setattr(reader, name, functools.wraps(original[name])(replacement))

    def table(self: Any, tableName: str) -> DataFrame:
        evaluator = _active.get()
        found = evaluator.table(tableName, self) if evaluator is not None else None
        result: DataFrame = found if found is not None else original["table"](self, tableName)
        return result

    def format_(self: Any, source: str) -> Any:
        self.__dict__["_penstock_format"] = source
        return original["format"](self, source)

    def schema_(self: Any, schema: Any) -> Any:
        self.__dict__["_penstock_schema"] = schema
        return original["schema"](self, schema)

    def option(self: Any, key: str, value: Any) -> Any:
        text = _as_text(value)
        if text is not None:
            reader_options(self)[key] = text
        return original["option"](self, key, value)

    def options(self: Any, **given: Any) -> Any:
        reader_options(self).update(
            {key: text for key, value in given.items() if (text := _as_text(value)) is not None}
        )
        return original["options"](self, **given)

    def load(
        self: Any, path: Any = None, format: Any = None, schema: Any = None, **more: Any
    ) -> Any:
        evaluator = _active.get()
        if evaluator is not None and not _is_own_read():
            if format is not None:
                self.__dict__["_penstock_format"] = format
            options(self, **more)
            if _format_of(self).lower() == _AUTO_LOADER:
                if schema is not None:
                    schema_(self, schema)
                return evaluator.files(self, path)
            evaluator.prepare_options(self)
            path = _absolute(path)
            evaluator.record(_describe(_format_of(self), path, reader_options(self)))
        with _own_read():
            return original["load"](self, path, format, schema, **more)

    wrap("table", table)
    wrap("format", format_)
    wrap("schema", schema_)
    wrap("option", option)
    wrap("options", options)
    wrap("load", load)
    for name in _ROW_READERS:
        if name in original:
            wrap(name, _row_reader(name, original[name]))


def _row_reader(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        evaluator = _active.get()
        if evaluator is not None and not _is_own_read():
            self.__dict__["_penstock_format"] = name
            evaluator.prepare_options(self)
            if path is None:
                path = kwargs.pop("path", None)
            path = _absolute(path)
            evaluator.record(_describe(name, path, {}))
        # By position: the parameter is called `path` here and `paths` there.
        given = () if path is None and not args else (path, *args)
        with _own_read():
            return original(self, *given, **kwargs)

    return read


_inner_read: ContextVar[bool] = ContextVar("penstock_inner_read", default=False)


def _is_own_read() -> bool:
    return _inner_read.get()


@contextlib.contextmanager
def _own_read() -> Iterator[None]:
    token = _inner_read.set(True)
    try:
        yield
    finally:
        _inner_read.reset(token)


def _absolute(path: Any) -> Any:
    """Relative paths start at the project's root, wherever the JVM was started."""
    if isinstance(path, list):
        return [_absolute(item) for item in path]
    if not isinstance(path, str) or path.startswith("/") or _HAS_SCHEME.match(path):
        return path
    return str(Path.cwd() / path)


def _describe(source: str, path: Any, options: Mapping[str, str]) -> str:
    where = path
    if where is None:
        for key in ("subscribe", "subscribePattern", "assign", "path", "dbtable", "streamName"):
            where = options.get(key, where)
    name = source or "files"
    return f"{name} {where}" if where is not None else name
