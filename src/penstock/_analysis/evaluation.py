"""Calls query functions with readers that resolve the datasets of the pipeline."""

import contextlib
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis import ansi_fallback, file_metadata, sql_names
from penstock._analysis.boundary import DatasetCycleError, DatasetNotReadyError, user_code
from penstock._analysis.context import Evaluation, ReadContext
from penstock._analysis.missing_sources import format_option, require_files_beside_hints
from penstock._analysis.reader_hooks import (
    Reader,
    install_reader_hooks,
    own_read,
    reader_format,
    reader_options,
    reader_paths,
    reader_schema,
    redirected,
)
from penstock._analysis.sql_names import (
    FunctionCall,
    NameReference,
    RelationReference,
    rewrite_names,
)
from penstock._analysis.table_functions import call_function
from penstock._analysis.table_sources import SchemaSource, TableSource
from penstock._api.reading import DatasetReader, reading
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow
from penstock._model.origin import capture_origin
from penstock._model.paths import real_path
from penstock.errors import DefinitionError, PenstockError
from penstock.quality.split import filter_view
from penstock.sources.base import NOWHERE, OpenedSource, Position, Read, Source
from penstock.sources.files.source import FORMATS
from penstock.sources.registry import source_of

_PATH_FORMATS = frozenset(FORMATS) | {"delta", "binaryfile"}
# Statements of a workspace that have no effect: the settings of the pipeline decide.
_WITHOUT_EFFECT = re.compile(
    r"\s*(?:USE\b|SET\s+CATALOG\b|GRANT\b|REVOKE\b"
    r"|CREATE\s+(?:CATALOG|SCHEMA|DATABASE|(?:EXTERNAL\s+)?VOLUME)\b)",
    re.IGNORECASE,
)


class ExternalReads:
    """Reads of code that runs while source files are loaded: nothing is declared yet.

    `guessing` has the names of the assumed sources, by the file that reads them.
    """

    def __init__(self, spark: SparkSession, context: ReadContext) -> None:
        self.guessing: dict[str, list[str]] = {}
        self._spark = spark
        self._context = context

    def table(self, name: str, reader: Reader) -> DataFrame | None:
        self.record(f"table {name.replace('`', '')}")
        table = self._context.external_tables.find(name)
        try:
            if table is not None:
                return self._context.external_tables.read(table, reader, name)
            if self._context.assumptions is None:
                return None
            with own_read():
                return reader.table(name)
        except (DefinitionError, AnalysisException, Py4JJavaError) as error:
            return self._assume(reader, f"table {name.replace('`', '')}", error)

    def sql(self, text: str) -> str | None:
        if _WITHOUT_EFFECT.match(text):
            return None
        if not file_metadata.named_in(text):
            return rewrite_names(self._spark, text, self._replacement)
        rewritten = rewrite_names(self._spark, text, self._replacement_with_metadata)
        return file_metadata.using_shown(rewritten)

    def load(self, reader: Reader, spark_load: Callable[[], DataFrame]) -> DataFrame:
        source = source_of(reader_format(reader))
        is_stream = isinstance(reader, DataStreamReader)
        options = source.map_options(self._context.resolved(reader_options(reader)), self.map_path)
        if self._context.assumptions is not None:
            self._context.assumptions.servers |= dict.fromkeys(source.endpoints(options))
        options = source.check_options(options, is_stream=is_stream)

        def loaded(wanted: Mapping[str, str]) -> DataFrame:
            known = reader_options(reader)
            for key, value in wanted.items():
                if known.get(key) != value:
                    reader._jreader = reader._jreader.option(key, value)
            return spark_load()

        read = self._described(
            Read(
                spark=self._spark,
                format=reader_format(reader).lower(),
                options=options,
                load=loaded,
                schema=reader_schema(reader),
                paths=tuple(reader_paths(reader)),
                is_stream=is_stream,
            )
        )
        return self._opened(source, read)

    def _described(self, read: Read) -> Read:
        return replace(
            read, is_analysis=True, memory=partial(self._context.memories, "", analysis=True)
        )

    def _opened(self, source: Source, read: Read) -> DataFrame:
        try:
            if self._context.assumptions is not None and read.schema is None:
                require_files_beside_hints(read.options, read.paths)
            with own_read():
                opened = source.open(read)
        except (PenstockError, AnalysisException, Py4JJavaError) as error:
            if isinstance(error, PenstockError):
                error.origin = error.origin or capture_origin()
            if self._context.assumptions is None:
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

    def note(self, opened: OpenedSource) -> None:
        """Record a source that was opened; ignored outside of flows."""

    def _assume(self, reader: Reader, what: str, error: Exception) -> DataFrame:
        if self._context.assumptions is None:
            raise error
        return self._stand_in(
            what,
            error,
            paths=reader_paths(reader),
            streaming=isinstance(reader, DataStreamReader),
            source_format=reader_format(reader),
            schema=reader_schema(reader),
        )

    def _stand_in(self, what: str, error: Exception, **reader: Any) -> DataFrame:
        assert self._context.assumptions is not None
        self.assumed(what)
        with own_read():
            return self._context.assumptions.frame(what, error, **reader)

    def assumed(self, what: str) -> None:
        """Record that a source was assumed."""
        self.guessing.setdefault(capture_origin().file, []).append(what)

    def redirecting(self, function: Callable[..., Any]) -> Callable[..., None]:
        """A function in which tables and paths are resolved as in source files."""
        reads = ExternalReads(self._spark, self._context)

        def call(*arguments: Any) -> None:
            with redirected(reads):
                function(*arguments)

        return call

    def setting(self, key: str) -> str:
        """See `Redirect.setting`.

        Raises:
            DefinitionError: `CONFIGURATION_MISSING`.
        """
        if self._context.assumptions is not None:
            return self._context.assumptions.setting(key)
        near = difflib.get_close_matches(key, self._context.configuration, n=1)
        raise DefinitionError(
            "CONFIGURATION_MISSING",
            f"the setting {key!r} is read, but not set",
            origin=capture_origin(),
            hint=(f"did you mean {near[0]!r}? Else " if near else "")
            + f"add it below `configuration` in the settings, or use `--conf {key}=...`",
        )

    def map_path(self, path: str) -> str:
        return self._context.map_path(path)

    def record(self, what: str) -> None:
        """See `Redirect.record`; ignored while source files are loaded."""

    def table_exists(self, name: str) -> bool | None:
        return True if self._context.external_tables.find(name) is not None else None

    def delta_path(self, name: str) -> str | None:
        table = self._context.external_tables.find(name)
        return table.path if table is not None and table.format == "delta" else None

    def new_table(self, name: str) -> str:
        return self._context.external_tables.location_of(name)

    # -- SQL -----------------------------------------------------------------------------------

    def _replacement(self, reference: NameReference) -> str | None:
        df = self._files_of(reference)
        if df is not None:
            return sql_names.as_view(df)
        return None if isinstance(reference, FunctionCall) else self._relation(reference)

    def _replacement_with_metadata(self, reference: NameReference) -> str | None:
        df = self._files_of(reference)
        return (
            self._replacement(reference)
            if df is None
            else sql_names.as_view(file_metadata.showing(df))
        )

    def _files_of(self, reference: NameReference) -> DataFrame | None:
        """What a table function or ``json.`/path` `` reads; `None` for a name."""
        if isinstance(reference, FunctionCall):
            return call_function(self._spark, reference, self._read_files, self._context.events)
        if len(reference.parts) == 2 and reference.parts[0].lower() in _PATH_FORMATS:
            return self._path_relation(reference)
        return None

    def _relation(self, reference: RelationReference) -> str | None:
        return None if self._is_temporary(reference) else self._through_view(reference)

    def _through_view(self, reference: RelationReference) -> str | None:
        reader: Any = self._spark.readStream if reference.is_streaming else self._spark.read
        if reference.options:
            reader = reader.options(**reference.options)
        df = self.table(reference.name, reader)
        return None if df is None else sql_names.as_view(df)

    def _is_temporary(self, reference: RelationReference) -> bool:
        """Whether user code has created a temporary view of that name."""
        if len(reference.parts) > 1:
            return False
        catalog: Any = self._spark._jsparkSession.sessionState().catalog()
        return bool(catalog.getTempView(reference.parts[0]).isDefined())

    def _path_relation(self, reference: RelationReference) -> DataFrame:
        """``json.`/path` ``: the files of the mapped path; below STREAM a real stream."""
        source, path = reference.parts
        if not reference.is_streaming:
            return self._spark.read.format(source).load(path)
        reader: Any = self._spark.readStream.format(source)
        if source.lower() not in ("delta", "text", "binaryfile"):
            reader = reader.schema(self._spark.read.format(source).load(path).schema)
        df: DataFrame = reader.load(path)
        return df

    def _read_files(
        self, path: str, options: Mapping[str, str], schema: str | None, streaming: bool
    ) -> DataFrame:
        self.record(f"files {path}")
        paths = [real_path(part.strip(), self.map_path) for part in path.split(",")]
        return self._files(paths, options, schema, streaming)

    def _files(
        self, paths: Sequence[str], options: Mapping[str, str], schema: Any, streaming: bool
    ) -> DataFrame:
        source = source_of("cloudfiles")
        options = source.map_options(self._context.resolved(options), self.map_path)
        read = Read(
            spark=self._spark,
            format="cloudfiles",
            options=options,
            load=lambda _: self._spark.createDataFrame([], ""),
            schema=schema,
            paths=tuple(paths),
            is_stream=streaming,
        )
        return self._opened(source, self._described(read))


class Evaluator(ExternalReads, DatasetReader):
    """Evaluates query functions against empty or real tables.

    Used on several threads at once; each evaluation belongs to one thread. `evaluations` has the
    last evaluation of each flow, complete or not.
    """

    def __init__(
        self, spark: SparkSession, index: DefinitionIndex, source: TableSource, context: ReadContext
    ) -> None:
        super().__init__(spark, context)
        self.index = index
        self.evaluations: dict[str, Evaluation] = {}
        self._source = source
        self._without_ansi: set[str] = set()
        self._stack: ContextVar[tuple[tuple[str, Evaluation], ...]] = ContextVar(
            "penstock_evaluation", default=()
        )
        self._defaults: ContextVar[tuple[str, str] | None] = ContextVar(
            "penstock_sql_defaults", default=None
        )
        install_reader_hooks()

    def evaluate(self, flow: Flow, position: Position = NOWHERE) -> tuple[DataFrame, Evaluation]:
        """Call a flow's query function; an empty `position` means by the options of its streams.

        Raises:
            DatasetNotReadyError: It reads a dataset whose schema is not known yet.
            DefinitionError: The query is wrong, or the function returns no DataFrame.
            UserCodeError: The function raised.
        """
        if flow.name in self._without_ansi:
            return self._call_without_ansi(flow, position)
        stack = self._stack.get()
        reader = stack[0][1] if stack else Evaluation()
        try:
            # A view and the flow that reads it may differ in ANSI mode.
            with ansi_fallback.with_ansi(self._spark) as move, reader.without_failed_reads():
                df, evaluation = self._call(flow, position)
                return move(df), evaluation
        except PenstockError as error:
            # Assumed types may be the reason: the analysis corrects them first.
            if self._context.assumptions is not None or not self._may_disable_ansi(flow, error):
                raise
            try:
                evaluated = self._call_without_ansi(flow, position)
            except PenstockError:
                raise error from error.__cause__
            self._without_ansi.add(flow.name)
            return evaluated

    def disable_ansi(self, flow: Flow, error: PenstockError) -> bool:
        """Disable ANSI mode for a flow; return whether evaluating it again may help."""
        has_guessed = self._context.assumptions and self._context.assumptions.sources
        if has_guessed or flow.name in self._without_ansi:
            return False
        if not self._may_disable_ansi(flow, error):
            return False
        self._without_ansi.add(flow.name)
        return True

    def _may_disable_ansi(self, flow: Flow, error: PenstockError) -> bool:
        readers = [self.index.flows.get(name, flow) for name, _ in self._stack.get()]
        settings = [self._context.configuration, *(part.spark_conf for part in (*readers, flow))]
        has_chosen = any(ansi_fallback.ANSI in each for each in settings)
        return not has_chosen and ansi_fallback.is_about_types(error.__cause__)

    def _call_without_ansi(self, flow: Flow, position: Position) -> tuple[DataFrame, Evaluation]:
        with ansi_fallback.without_ansi(self._spark) as move:
            df, evaluation = self._call(flow, position)
            evaluation.needs_ansi_off = True
            return move(df), evaluation

    def _call(self, flow: Flow, position: Position) -> tuple[DataFrame, Evaluation]:
        evaluation = self.evaluations[flow.name] = Evaluation(position=position)
        stack = self._stack.get()
        if any(name == flow.name for name, _ in stack):
            names = [name for name, _ in stack]
            raise DatasetCycleError([*names[names.index(flow.name) :], flow.name])
        token = self._stack.set((*stack, (flow.name, evaluation)))
        try:
            with redirected(self), reading(self), user_code(flow, self.index.nearest):
                result = flow.function()
        finally:
            self._stack.reset(token)
        if not isinstance(result, DataFrame):
            raise DefinitionError(
                "QUERY_RETURNS_NO_DATAFRAME",
                f"the query function of {flow.name!r} returned {type(result).__name__}, "
                "not a DataFrame",
                origin=flow.origin,
                hint="return the DataFrame at its end" if result is None else None,
            )
        return result, evaluation

    # -- the declarative API's own readers -----------------------------------------------------

    def read(self, name: str) -> DataFrame:
        return self._spark.read.table(name)

    def read_stream(self, name: str) -> DataFrame:
        return self._spark.readStream.table(name)

    def query(self, text: str, *, catalog: str | None, schema: str | None) -> DataFrame:
        token = self._defaults.set((catalog or self.index.catalog, schema or self.index.schema))
        try:
            return self._spark.sql(text)
        finally:
            self._defaults.reset(token)

    # -- redirection ---------------------------------------------------------------------------

    def _find(self, name: str) -> DeclaredDataset | None:
        defaults = self._defaults.get()
        plain = self.index.find(name)
        if defaults is None:
            return plain
        dataset = self.index.find(name, catalog=defaults[0], schema=defaults[1])
        if dataset is None and plain is not None:
            # A temporary view has no schema: `USE` does not hide it.
            is_view = plain.declared.kind is DatasetKind.TEMPORARY_VIEW
            own = (plain.name.catalog, plain.name.schema) == (self.index.catalog, self.index.schema)
            return plain if is_view and own else None
        return dataset

    def _find_by_end(self, name: str) -> DeclaredDataset | None:
        """The dataset that an incomplete name means, if there is no table of that name."""
        dataset = self.index.find_by_end(name)
        if dataset is None or self._context.external_tables.find(name) is not None:
            return None
        # A flow does not read its own target.
        if {flow.name for flow in dataset.flows} & {flow for flow, _ in self._stack.get()}:
            return None
        # Spark raises for a missing catalog.
        with contextlib.suppress(PySparkException, Py4JJavaError):
            if self._spark._jsparkSession.catalog().tableExists(name):
                return None
        self._current.taken_for[name.replace("`", "")] = str(dataset.name)
        return dataset

    @property
    def _current(self) -> Evaluation:
        return self._stack.get()[-1][1]

    def table(self, name: str, reader: Reader) -> DataFrame | None:
        dataset = self._find(name) or self._find_by_end(name)
        if dataset is None:
            return super().table(name, reader)
        key = dataset.name.key
        self._current.inputs.add(key)
        streaming = isinstance(reader, DataStreamReader)
        if dataset.declared.kind is DatasetKind.TEMPORARY_VIEW:
            return self._view(dataset, streaming=streaming)
        with own_read():
            if not isinstance(reader, DataStreamReader):
                return self._source.batch(key, reader)
            opened = self._source.stream(key, reader, self._stack.get()[0][1].position)
        self.note(opened)
        return opened.df

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

    def _relation(self, reference: RelationReference) -> str | None:
        if self._find(reference.name) is None:
            return super()._relation(reference)
        if reference.is_time_travel:
            raise DefinitionError(
                "FEATURE_NOT_AVAILABLE",
                f"an older version of {reference.name.replace('`', '')} is read, which is a "
                "dataset of this pipeline",
                hint="read its newest version, or keep the history in a table of its own",
            )
        return self._through_view(reference)

    def record(self, what: str) -> None:
        self._current.external.append(what)

    def assumed(self, what: str) -> None:
        """Record that a source was assumed."""
        self._current.assumed.append(what)

    def table_exists(self, name: str) -> bool | None:
        dataset = self._find(name)
        if dataset is None:
            return super().table_exists(name)
        return self._context.external_tables.find(str(dataset.name)) is not None

    def delta_path(self, name: str) -> str | None:
        dataset = self._find(name)
        return super().delta_path(name if dataset is None else str(dataset.name))

    def _described(self, read: Read) -> Read:
        # The sources of a view belong to the flow that reads it.
        flow, evaluation = self._stack.get()[0]
        is_analysis = isinstance(self._source, SchemaSource)
        return replace(
            read,
            flow=flow,
            is_analysis=is_analysis,
            position=evaluation.position,
            memory=partial(self._context.memories, flow, analysis=is_analysis),
        )

    def note(self, opened: OpenedSource) -> None:
        """Record a source of the flow that is evaluated."""
        self._stack.get()[0][1].sources.append(opened)
