"""Reads of tables and files that are not datasets of the pipeline."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis import file_metadata, sql_names
from penstock._analysis.context import ReadContext
from penstock._analysis.hooks import own_read
from penstock._analysis.missing_sources import format_option, require_files_beside_hints
from penstock._analysis.reader_hooks import Reader, reader_state, redirected
from penstock._analysis.sql_names import (
    FunctionCall,
    NameReference,
    RelationReference,
    rewrite_names,
)
from penstock._analysis.table_functions import call_function
from penstock._model.name import split_name
from penstock._model.origin import capture_origin
from penstock._model.paths import real_path
from penstock._model.similar import nearest
from penstock._model.sql_text import delta_table, quoted
from penstock._spark.plans import analyzed
from penstock._tables.jvm import dataframe
from penstock.errors import DefinitionError, PenstockError
from penstock.sources.base import OpenedSource, Read, Source
from penstock.sources.files.source import FORMATS
from penstock.sources.registry import source_of

_PATH_FORMATS = frozenset(FORMATS) | {"delta", "binaryfile"}
# Separator of the paths of `read_files`; a glob pattern may contain commas in braces.
_SEPARATOR = re.compile(r",(?![^{}]*\})")
# Statements of a workspace that have no effect: the settings of the pipeline decide.
_WITHOUT_EFFECT = re.compile(
    r"\s*(?:USE\b|SET\s+CATALOG\b|GRANT\b|REVOKE\b"
    r"|CREATE\s+(?:CATALOG|SCHEMA|DATABASE|(?:EXTERNAL\s+)?VOLUME)\b)",
    re.IGNORECASE,
)


class ExternalReads:
    """Handles reads while source files are loaded, when no datasets are declared yet.

    The hooks call it on the thread that runs the user's code. `guessing` are the names of the
    assumed sources, by the file that reads them.
    """

    def __init__(self, spark: SparkSession, context: ReadContext) -> None:
        self.guessing: dict[str, list[str]] = {}
        self._spark = spark
        self.context = context

    def table(self, name: str, reader: Reader) -> DataFrame | None:
        """The rows of a table, or `None` to use Spark's catalog."""
        table, parts = self.context.external_tables.find(name), split_name(name)
        is_path = table is None and _names_path(parts) and "/" in parts[1]
        if is_path and isinstance(reader, DataStreamReader):
            return self._path_relation(parts[0], parts[1], reader)  # not supported by Spark
        what = f"table {name.replace('`', '')}"
        self.record(what)
        try:
            if table is not None:
                return self.context.external_tables.read(table, reader, name, self.load)
            if self.context.assumptions is None:
                return None
            with own_read():
                return reader.table(name)
        except (DefinitionError, AnalysisException, Py4JJavaError) as error:
            if self.context.assumptions is None:
                raise
            streaming, schema = isinstance(reader, DataStreamReader), reader_state(reader).schema
            return self._stand_in(what, error, streaming=streaming, schema=schema)

    def of_session(self, spark: SparkSession) -> "ExternalReads":
        """The reads for a session; views belong to a session, and each micro-batch has its own."""
        own = self._spark._jsparkSession
        return self if own.equals(spark._jsparkSession) else ExternalReads(spark, self.context)

    @property
    def qualifies(self) -> bool:
        """Whether the columns of a table have its name as a qualifier, as in Spark's catalog."""
        return True

    def qualified(self, df: DataFrame, name: str) -> DataFrame:
        """The rows of a table, with columns that can be referenced as `name.column`."""
        if not self.qualifies:
            return df
        *qualifier, last = split_name(name)
        jvm: Any = self._spark._jvm
        parts = jvm.scala.jdk.javaapi.CollectionConverters.asScala(qualifier).toSeq()
        catalyst = jvm.org.apache.spark.sql.catalyst
        alias = catalyst.AliasIdentifier(last, parts)
        plan = catalyst.plans.logical.SubqueryAlias(alias, analyzed(df))
        return dataframe(df.sparkSession, plan)

    def sql(self, text: str) -> str | None:
        """The statement to run instead; `None` for a statement without effect."""
        if _WITHOUT_EFFECT.match(text):
            return None
        names_metadata, shows = file_metadata.named_in(text), False

        def replacement(reference: NameReference) -> str | None:
            nonlocal shows
            if isinstance(reference, FunctionCall):
                events = self.context.events
                df = call_function(self._spark, reference, self._read_files, events)
            elif _names_path(reference.parts) and not (
                reference.is_time_travel or reference.is_changed
            ):
                stream: Any = self._spark.readStream
                reader = stream if reference.is_streaming else self._spark.read
                source, path = reference.parts
                df = self._path_relation(source, path, reader)
            else:
                return self._relation(reference)
            if df is None:
                return None
            shows = names_metadata
            return sql_names.as_view(file_metadata.showing(df) if shows else df)

        rewritten = rewrite_names(self._spark, text, replacement, aliased=self.qualifies)
        # If no files are read, `_metadata` is a column of a table.
        return file_metadata.using_shown(rewritten) if shows else rewritten

    def load(self, reader: Reader, spark_load: Callable[[], DataFrame]) -> DataFrame:
        """The rows of `reader.load()`; `spark_load` loads with the current options of the reader.

        Format, options, schema and paths are in `reader_state(reader)`.
        """
        state = reader_state(reader)
        source = source_of(state.format)
        is_stream = isinstance(reader, DataStreamReader)
        options = source.map_options(self.context.resolved(state.options), self.context.map_path)
        if self.context.assumptions is not None:
            self.context.assumptions.servers |= dict.fromkeys(source.endpoints(options))
        options = source.check_options(options, is_stream=is_stream)

        def loaded(wanted: Mapping[str, str]) -> DataFrame:
            for key, value in wanted.items():
                if state.options.get(key) != value:
                    reader._jreader = reader._jreader.option(key, value)
            return spark_load()

        read = self._described(
            Read(
                spark=self._spark,
                format=state.format.lower(),
                options=options,
                load=loaded,
                schema=state.schema,
                paths=state.paths,
                is_stream=is_stream,
            )
        )
        return self._opened(source, read)

    def _described(self, read: Read) -> Read:
        return replace(
            read, is_analysis=True, memory=partial(self.context.memories, "", analysis=True)
        )

    def _opened(self, source: Source, read: Read) -> DataFrame:
        try:
            if self.context.assumptions is not None and read.schema is None:
                require_files_beside_hints(read.options, read.paths)
            with own_read():
                opened = source.open(read)
        except (PenstockError, AnalysisException, Py4JJavaError) as error:
            if self.context.assumptions is None or self._is_wrong_option(error, read):
                raise
            return self._stand_in(
                source.describe(read),
                error,
                paths=read.paths,
                streaming=read.is_stream,
                source_format=format_option(read.options) or read.format,
                schema=read.schema,
                options=read.options,
            )
        self.note(opened)
        return opened.df

    def _is_wrong_option(self, error: Exception, read: Read) -> bool:
        """Whether an option of Auto Loader is wrong, whatever is missing here."""
        assert self.context.assumptions is not None
        has_format = bool(format_option(read.options))
        is_assumed = not set(self.context.assumptions.settings.values()).isdisjoint(
            read.options.values()
        )
        # Without files, their names do not show the format either.
        is_sure = {"AUTOLOADER_OPTION_UNKNOWN": True, "AUTOLOADER_OPTION_INVALID": has_format}
        return is_sure.get(getattr(error, "condition", ""), False) and not is_assumed

    def note(self, opened: OpenedSource) -> None:
        """Record a source that was opened; ignored outside of flows."""

    def _stand_in(self, what: str, error: Exception, **reader: Any) -> DataFrame:
        assert self.context.assumptions is not None
        with own_read():
            df = self.context.assumptions.frame(what, error, **reader)
        self.assumed(what)
        return df

    def assumed(self, what: str) -> None:
        """Record that a source was assumed."""
        self.guessing.setdefault(capture_origin().file, []).append(what)

    def redirecting(self, function: Callable[..., Any]) -> Callable[..., None]:
        """A function in which tables and paths are resolved as in source files."""
        reads = ExternalReads(self._spark, self.context)

        def call(*arguments: Any) -> None:
            with redirected(reads):
                function(*arguments)

        return call

    def setting(self, key: str) -> str:
        """Return the assumed value of a setting that is not set.

        Raises:
            DefinitionError: `CONFIGURATION_MISSING`.
        """
        if self.context.assumptions is not None:
            return self.context.assumptions.setting(key)
        near = nearest(key, self.context.configuration)
        raise DefinitionError(
            "CONFIGURATION_MISSING",
            f"the setting {key!r} is read, but not set",
            origin=capture_origin(),
            hint=(f"did you mean {near!r}? Else " if near else "")
            + f"add it below `configuration` in the settings, or use `--conf {key}=...`",
        )

    def check_start(self) -> None:
        """Called before user code starts a streaming query; refused in query functions."""

    def record(self, what: str) -> None:
        """Record an external source, for the plan; ignored while source files are loaded."""

    def table_exists(self, name: str) -> bool | None:
        """Whether a table exists; `None` to use Spark's catalog."""
        tables = self.context.external_tables
        return None if (table := tables.find(name)) is None else tables.is_there(table)

    def delta_path(self, name: str) -> str | None:
        """The path of the Delta table of that name; `None` to use Spark's catalog."""
        table = self.context.external_tables.find(name)
        return table.path if table is not None and table.format == "delta" else None

    def real_path(self, path: str) -> str:
        """The mapped, absolute path for a path in user code."""
        return real_path(path, self.context.map_path)

    # -- SQL -----------------------------------------------------------------------------------

    def _relation(self, reference: RelationReference) -> str | None:
        """The replacement of a name; `None` for a temporary view that user code has created."""
        if len(reference.parts) == 1:
            catalog: Any = self._spark._jsparkSession.sessionState().catalog()
            if catalog.getTempView(reference.parts[0]).isDefined():
                return None
        return self._by_path(reference) or self._through_view(reference)

    def _by_path(self, reference: RelationReference) -> str | None:
        """The Delta table as a path, for time travel and changes, which views do not support."""
        if not (reference.is_time_travel or reference.is_changed):
            return None
        if _names_path(reference.parts):
            source, path = reference.parts
            replacement = quoted(source, self.real_path(path))
        else:
            located = self.delta_path(reference.name)
            if located is None:
                return None
            replacement = delta_table(located)
        self.record(f"table {'.'.join(reference.parts)}")
        return replacement

    def _through_view(self, reference: RelationReference) -> str | None:
        reader: Any = self._spark.readStream if reference.is_streaming else self._spark.read
        if reference.options:
            reader = reader.options(**reference.options)
        df = self.table(reference.name, reader)
        return None if df is None else sql_names.as_view(df)

    def _path_relation(self, source: str, path: str, reader: Any) -> DataFrame:
        """``json.`/path` ``: the files of the mapped path, as a table or a stream."""
        reader = reader.format(source)
        needs_schema = isinstance(reader, DataStreamReader) and reader_state(reader).schema is None
        if needs_schema and source.lower() not in ("delta", "text", "binaryfile"):
            reader = reader.schema(self._spark.read.format(source).load(path).schema)
        df: DataFrame = reader.load(path)
        return df

    def _read_files(
        self, path: str, options: Mapping[str, str], schema: str | None, streaming: bool
    ) -> DataFrame:
        self.record(f"files {path}")
        source = source_of("cloudfiles")
        options = source.map_options(self.context.resolved(options), self.context.map_path)
        read = Read(
            spark=self._spark,
            format="cloudfiles",
            options=options,
            load=lambda _: self._spark.createDataFrame([], ""),
            schema=schema,
            paths=tuple(self.real_path(part.strip()) for part in _SEPARATOR.split(path)),
            is_stream=streaming,
        )
        return self._opened(source, self._described(read))


def _names_path(parts: Sequence[str]) -> bool:
    """Whether a name is ``format.`/path` ``."""
    return len(parts) == 2 and parts[0].lower() in _PATH_FORMATS
