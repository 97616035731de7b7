"""Hooks of PySpark's readers: `ExternalReads` handles all reads of a pipeline's user code.

Readers, `spark.sql`, `spark.table`, `selectExpr`, the catalog and `DeltaTable` are wrapped once per
process. The wrappers do nothing unless an `ExternalReads` is active in the current context, so
other threads and code outside of pipelines are not affected.
"""

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.sql_formatter import SQLStringFormatter
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.utils import to_str

from penstock._analysis import file_metadata
from penstock._analysis.delta_hooks import wrap_delta_tables
from penstock._analysis.hooks import Reads, redirects, replaces, through
from penstock._analysis.json_paths import with_json_paths
from penstock._analysis.local_rows import with_floats
from penstock._analysis.sql_names import substituted
from penstock._analysis.writer_hooks import PATH_OPTION, ROW_FORMATS, wrap_writer
from penstock._model.origin import capture_origin
from penstock._spark.generated_names import GENERATED_VIEW
from penstock._sql.query_text import spell_names
from penstock.errors import DefinitionError
from penstock.sources.jdbc.options import spark_options

Reader = DataFrameReader | DataStreamReader
_OLD_NAMES = (
    *("approxCountDistinct", "bitwiseNOT", "countDistinct", "sumDistinct"),
    *("shiftLeft", "shiftRight", "shiftRightUnsigned", "toDegrees", "toRadians"),
)
# Objects that such a statement creates may store the text of its query, and parse it again.
_CREATES = re.compile(r"\s*(?:CREATE|CACHE)\b", re.IGNORECASE)


@contextlib.contextmanager
def redirected(reads: Reads) -> Iterator[None]:
    """Make the hooks of this context use `reads`."""
    install_reader_hooks()
    with through(reads):
        yield


# -- configuration of a reader ---------------------------------------------------------------------


@dataclass
class ReaderState:
    """Configuration of a reader by user code.

    Attributes:
        format: Format; empty if it is not set.
        options: Options as strings.
        schema: Schema; `None` if it is not set.
        paths: Paths to load from, mapped and absolute.
    """

    format: str = ""
    options: dict[str, str] = field(default_factory=dict)
    schema: Any = None
    paths: tuple[str, ...] = ()

    @property
    def folded_options(self) -> dict[str, str]:
        """The options with names in lower case."""
        return {name.lower(): value for name, value in self.options.items()}


def reader_state(reader: Any) -> ReaderState:
    """The current configuration of a reader that user code has created."""
    so_far: ReaderState = reader.__dict__.setdefault("_penstock_given", ReaderState())
    return so_far


def describe_source(source: str, path: Any, options: Mapping[str, str]) -> str:
    """Describe a source as readable text: format and location."""
    where = path
    if where is None:
        for key in ("subscribe", "subscribePattern", "assign", "path", "dbtable", "streamName"):
            where = options.get(key, where)
    name = source or "files"
    return f"{name} {where}" if where is not None else name


# -- wrappers -----------------------------------------------------------------------------------


def export_old_functions() -> None:
    """Make `from pyspark.sql.functions import *` import every function, as in Spark 3."""
    functions.__all__ = sorted({*functions.__all__, *_OLD_NAMES})


@functools.cache
def install_reader_hooks() -> None:
    """Wrap the readers of classic PySpark; once per process, idempotent."""
    # PySpark logs every failed analysis with its stack trace; the raised error has the message.
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)
    for reader in (DataFrameReader, DataStreamReader):
        _wrap_reader(reader)
    wrap_writer()
    _wrap_session()
    _wrap_catalog()
    wrap_delta_tables()


def _wrap_session() -> None:
    @redirects(DataFrameReader, "jdbc")
    def jdbc(reads: Reads, original: Any, /, self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = inspect.signature(original).bind(self, *args, **kwargs).arguments
        del wanted["self"]
        properties = wanted.pop("properties", None) or {}
        if wanted.get("predicates") is not None:  # a list cannot be an option
            reads.record(f"jdbc {wanted['table']}")
            properties = {**properties, "url": wanted.pop("url")}
            properties = spark_options(reads.context.resolved(properties))
            return original(self, properties.pop("url"), **wanted, properties=properties)
        names = {"table": "dbtable", "column": "partitionColumn"}
        known = {names.get(key, key): value for key, value in wanted.items() if value is not None}
        return self.format("jdbc").options(**{**properties, **known}).load()

    @redirects(RuntimeConfig, "get")
    def get(
        reads: Reads, original: Any, /, self: Any, key: str, *default: Any, **options: Any
    ) -> Any:
        if default or options:
            return original(self, key, *default, **options)
        with contextlib.suppress(PySparkException, Py4JJavaError):
            return original(self, key)
        return reads.setting(key)

    @redirects(SparkSession, "createDataFrame")
    def create(
        _: Any, original: Any, /, self: Any, data: Any, schema: Any = None, *args: Any, **kw: Any
    ) -> Any:
        return original(self, with_floats(data, schema), schema, *args, **kw)

    @redirects(SparkSession, "sql")
    def sql(
        reads: Reads, original: Any, /, self: Any, sqlQuery: str, args: Any = None, **kwargs: Any
    ) -> Any:
        formatter = SQLStringFormatter(self)
        try:
            # DataFrames in braces become temporary views first: the parser does not support braces.
            text = formatter.format(sqlQuery, **kwargs) if kwargs else sqlQuery
            # The parser leaves computed names to the analyzer, which does not know the datasets.
            text = spell_names(substituted(self, text), _texts(args))
            own_reads = reads.of_session(self)
            rewritten = own_reads.sql(text)
            if rewritten is None:
                return self.createDataFrame([], "result STRING")
            df = with_json_paths(lambda spell: original(self, spell(rewritten), args), self)
            if own_reads is not reads and not _CREATES.match(text):
                # The session lives as long as the stream, and would keep the views of each batch.
                for name in GENERATED_VIEW.findall(rewritten):
                    self.catalog.dropTempView(name)
            return file_metadata.without_shown(df, text)
        finally:
            formatter.clear()

    @redirects(SparkSession, "table")
    def table(_: Any, __: Any, /, self: SparkSession, tableName: str) -> DataFrame:
        return self.read.table(tableName)

    @redirects(ClassicDataFrame, "filter")
    def filter_(reads: Reads, original: Any, /, self: Any, condition: Any) -> Any:
        has_subquery = isinstance(condition, str) and "select" in condition.lower()
        # In the session of a micro-batch, its views would stay.
        if has_subquery and reads.of_session(self.sparkSession) is reads:
            start = "SELECT 1 WHERE "
            condition = (reads.sql(start + condition) or "").removeprefix(start)
        return original(self, condition)

    @redirects(ClassicDataFrame, "selectExpr")
    def select_expr(_: Any, original: Any, /, self: Any, *expr: Any) -> Any:
        texts = expr[0] if len(expr) == 1 and isinstance(expr[0], list) else expr
        return with_json_paths(
            lambda spell: original(
                self, *(spell(f"SELECT {text}").removeprefix("SELECT ") for text in texts)
            ),
            self.sparkSession,
        )


def _texts(arguments: Any) -> dict[str, str]:
    named = arguments if isinstance(arguments, Mapping) else {}
    return {name: value for name, value in named.items() if isinstance(value, str)}


def _wrap_catalog() -> None:
    @redirects(Catalog, "tableExists")
    def exists(
        reads: Reads, original: Any, /, self: Any, tableName: str, dbName: str | None = None
    ) -> Any:
        is_there = reads.table_exists(f"{dbName}.{tableName}" if dbName else tableName)
        return original(self, tableName, dbName) if is_there is None else is_there

    # The settings of the pipeline decide its catalog and schema.
    def ignored(*_: Any, **__: Any) -> None: ...

    for name in ("setCurrentCatalog", "setCurrentDatabase"):
        redirects(Catalog, name)(ignored)


def _wrap_reader(reader: Any) -> None:
    @redirects(reader, "table")
    def table(reads: Reads, original: Any, /, self: Any, tableName: str) -> Any:
        df = reads.table(tableName, self)
        return original(self, tableName) if df is None else reads.qualified(df, tableName)

    @replaces(reader, "format")
    def format_(original: Any, /, self: Any, source: str) -> Any:
        reader_state(self).format = source
        return original(self, source)

    @replaces(reader, "schema")
    def schema_(original: Any, /, self: Any, schema: Any) -> Any:
        reader_state(self).schema = schema
        return original(self, schema)

    @replaces(reader, "option")
    def option(original: Any, /, self: Any, key: str, value: Any) -> Any:
        text = to_str(value)
        if text is not None:
            reader_state(self).options[key] = text
        return original(self, key, value)

    @replaces(reader, "options")
    def options(original: Any, /, self: Any, **values: Any) -> Any:
        reader_state(self).options.update(
            {key: text for key, value in values.items() if (text := to_str(value)) is not None}
        )
        return original(self, **values)

    @redirects(reader, "load")
    def load(
        reads: Reads,
        original: Any,
        /,
        self: Any,
        path: Any = None,
        format: Any = None,
        schema: Any = None,
        **more: Any,
    ) -> Any:
        if format is not None:
            format_(self, format)
        if schema is not None:
            schema_(self, schema)
        options(self, **more)
        path = _mapped(self, path, reads)
        what = describe_source(reader_state(self).format, path, reader_state(self).options)
        rows = reads.load(self, lambda: original(self, path))
        reads.record(what)
        return rows

    if hasattr(reader, "changes"):  # since Spark 4.2

        @redirects(reader, "changes")
        def changes(reads: Reads, original: Any, /, self: Any, tableName: str) -> Any:
            if reads.table_exists(tableName) is not None:
                raise DefinitionError(
                    "FEATURE_NOT_AVAILABLE",
                    f"`changes` of {tableName!r} is not available: Delta has no changelog for it",
                    origin=capture_origin(),
                    hint='use `.option("readChangeFeed", "true").table(...)`',
                )
            return original(self, tableName)

    for name in ROW_FORMATS:
        if hasattr(reader, name):
            parameters = inspect.signature(getattr(reader, name)).parameters
            keyword = "paths" if "paths" in parameters else "path"
            redirects(reader, name)(_row_reader(name, keyword))


def _mapped(reader: Any, path: Any, reads: Reads) -> Any:
    """Map the paths of a reader, from an argument or options; returns the mapped argument."""
    for key, value in list(reader_state(reader).options.items()):
        option = key.lower()
        if option == "basepath" or (option == PATH_OPTION and path is None):
            mapped = reads.real_path(value)
            reader.option(key, mapped)
            if option == PATH_OPTION:
                reader_state(reader).paths = (mapped,)
    if path is None:
        return None
    is_list = isinstance(path, list | tuple)
    if not is_list and not isinstance(path, str | Path):
        return path
    entries = path if is_list else [path]
    paths = [reads.real_path(str(entry)) for entry in entries]
    reader_state(reader).paths = tuple(paths)
    return paths if is_list else paths[0]


def _row_reader(name: str, keyword: str) -> Callable[..., Any]:
    def read(reads: Reads, original: Any, /, self: Any, *args: Any, **kwargs: Any) -> Any:
        reader_state(self).format = name
        if args:
            # `parquet(*paths)` takes any number of paths, the others one path first.
            count = len(args) if name == "parquet" else 1
            mapped = (_mapped(self, value, reads) for value in args[:count])
            args = (*mapped, *args[count:])
            shown = args[0]
        else:
            shown = _mapped(self, kwargs.get(keyword), reads)
            if shown is not None:
                kwargs[keyword] = shown
        if kwargs.get("schema") is not None:
            reader_state(self).schema = kwargs["schema"]
        what = describe_source(name, shown if isinstance(shown, str) else None, {})
        reads.record(what)
        return reads.load(self, lambda: original(self, *args, **kwargs))

    return read
