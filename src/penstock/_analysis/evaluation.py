"""Calls query functions with readers that resolve the datasets of the pipeline."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis import ansi_fallback
from penstock._analysis.boundary import DatasetCycleError, DatasetNotReadyError, user_code
from penstock._analysis.context import Evaluation, ReadContext
from penstock._analysis.external_reads import ExternalReads
from penstock._analysis.hooks import own_read
from penstock._analysis.missing_sources import error_details
from penstock._analysis.reader_hooks import (
    Reader,
    install_reader_hooks,
    reader_state,
    redirected,
)
from penstock._analysis.sql_names import RelationReference
from penstock._analysis.table_sources import DeltaSource, SchemaSource
from penstock._api.reading import DatasetReader, reading
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._model.dataset import DatasetKind
from penstock._model.exception_text import first_line
from penstock._model.flow import Flow
from penstock._model.origin import capture_origin
from penstock._tables.session_conf import session_conf
from penstock.errors import DefinitionError, PenstockError
from penstock.quality.split import filter_view
from penstock.sources.base import NOWHERE, OpenedSource, Position, Read
from penstock.sources.registry import source_of

# Conditions of Spark's errors for `table.column` where no table has that name.
_UNRESOLVED = {
    *("UNRESOLVED_COLUMN", "CANNOT_RESOLVE_STAR_EXPAND"),
    *("INVALID_EXTRACT_BASE_FIELD_TYPE", "FIELD_NOT_FOUND"),
}
_Call = Callable[[], tuple[DataFrame, Evaluation]]
_VIEW_CHECK = "pipelines.incompatibleViewCheck.enabled"
_QUALIFIER = re.compile(r"(\w+)`?\s*\.")


class Evaluator(ExternalReads, DatasetReader):
    """Evaluates query functions against empty or real tables.

    Used by several threads concurrently; each evaluation belongs to one thread. `evaluations`
    contains the last evaluation of each flow, even if it failed.
    """

    def __init__(
        self,
        spark: SparkSession,
        index: DefinitionIndex,
        source: SchemaSource | DeltaSource,
        context: ReadContext,
    ) -> None:
        super().__init__(spark, context)
        self.index = index
        self.evaluations: dict[str, Evaluation] = {}
        self._source = source
        self._without_ansi: set[str] = set()
        self._qualifying: set[str] = set()
        self._stack: ContextVar[tuple[tuple[str, Evaluation], ...]] = ContextVar(
            "penstock_evaluation", default=()
        )
        self._defaults: ContextVar[tuple[str, str] | None] = ContextVar(
            "penstock_sql_defaults", default=None
        )
        install_reader_hooks()

    def evaluate(
        self, flow: Flow, position: Position = NOWHERE, *, is_triggered: bool = True
    ) -> tuple[DataFrame, Evaluation]:
        """Call a flow's query function; if `position` is empty, options set where streams start.

        For `is_triggered`, see `Read`.

        Raises:
            DatasetNotReadyError: It reads a dataset whose schema is not known yet.
            DefinitionError: The query is wrong, or the function returns no DataFrame.
            UserCodeError: The function raised.
        """
        if self._stack.get():  # a view, which has the confs of the flow that reads it
            return self._evaluate_qualified(flow, position, is_triggered)
        with self._confs(flow):
            return self._evaluate_qualified(flow, position, is_triggered)

    @contextlib.contextmanager
    def _confs(self, flow: Flow) -> Iterator[None]:
        dataset = self._target(flow)
        conf = flow.session_confs({} if dataset is None else dataset.declared.spark_conf)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(session_conf(self._spark, conf))
            except PySparkException as error:
                is_fixed = "CANNOT_MODIFY" in (error.getCondition() or "")
                raise DefinitionError(
                    "SETTING_INVALID",
                    f"`spark_conf` of {flow.name!r} cannot be applied: {first_line(error)}",
                    origin=flow.origin,
                    hint="Spark reads it only at its start: set it in `configuration` of the "
                    "pipeline"
                    if is_fixed
                    else None,
                ) from error
            yield

    def _evaluate_qualified(
        self, flow: Flow, position: Position, is_triggered: bool
    ) -> tuple[DataFrame, Evaluation]:
        call = partial(self._call, flow, position, is_triggered)
        qualifies = flow.name in self._qualifying
        try:
            return self._evaluate(flow, call)
        except PenstockError:
            # Only after an error: qualifiers would change the stored text of all other queries.
            if qualifies or flow.name not in self._qualifying:
                raise
        try:
            return self._evaluate(flow, call)
        except BaseException:
            self._qualifying.discard(flow.name)
            raise

    def _evaluate(self, flow: Flow, call: _Call) -> tuple[DataFrame, Evaluation]:
        if flow.name in self._without_ansi:
            return self._call_without_ansi(call)
        stack = self._stack.get()
        sources = stack[0][1].sources if stack else []
        count = len(sources)
        try:
            # A view and the flow that reads it may differ in ANSI mode.
            with ansi_fallback.with_ansi(self._spark) as move:
                df, evaluation = call()
                return move(df), evaluation
        except PenstockError as error:
            del sources[count:]  # sources of a view that is evaluated again
            # Assumed types may be the cause: the analysis corrects them first.
            if self.context.assumptions is not None or not self._may_disable_ansi(flow, error):
                raise
            try:
                evaluated = self._call_without_ansi(call)
            except PenstockError:
                raise error from error.__cause__
            self._without_ansi.add(flow.name)
            return evaluated

    def disable_ansi(self, flow: Flow, error: PenstockError) -> bool:
        """Disable ANSI mode for a flow; return whether evaluating it again may help."""
        has_guessed = self.context.assumptions and self.context.assumptions.sources
        if has_guessed or flow.name in self._without_ansi:
            return False
        if not self._may_disable_ansi(flow, error):
            return False
        self._without_ansi.add(flow.name)
        return True

    def _may_disable_ansi(self, flow: Flow, error: PenstockError) -> bool:
        readers = [self.index.flows.get(name, flow) for name, _ in self._stack.get()]
        settings = [self.context.configuration, *(part.spark_conf for part in (*readers, flow))]
        has_chosen = any(ansi_fallback.ANSI in each for each in settings)
        return not has_chosen and ansi_fallback.is_about_types(error.__cause__)

    def _call_without_ansi(self, call: _Call) -> tuple[DataFrame, Evaluation]:
        with ansi_fallback.without_ansi(self._spark) as move:
            df, evaluation = call()
            evaluation.needs_ansi_off = True
            return move(df), evaluation

    def _call(
        self, flow: Flow, position: Position, is_triggered: bool
    ) -> tuple[DataFrame, Evaluation]:
        evaluation = Evaluation(
            position=position,
            is_triggered=is_triggered,
            qualifies=flow.name in self._qualifying or self._rules_qualify(flow),
        )
        self.evaluations[flow.name] = evaluation
        stack = self._stack.get()
        if any(name == flow.name for name, _ in stack):
            names = [name for name, _ in stack]
            raise DatasetCycleError(" -> ".join([*names[names.index(flow.name) :], flow.name]))
        token = self._stack.set((*stack, (flow.name, evaluation)))
        try:
            with redirected(self), reading(self), user_code(flow, self.index.nearest):
                result = flow.function()
                if isinstance(result, DataFrame):
                    result.schema  # noqa: B018 - functions such as `from_avro` load their schema
        except PenstockError as error:
            if _names_table(error.__cause__, evaluation):
                self._qualifying.add(flow.name)
            raise
        finally:
            self._stack.reset(token)
        if not isinstance(result, DataFrame):
            kind = type(result)
            hint = "return the DataFrame at its end" if result is None else None
            if inspect.iscoroutine(result):
                result.close()
                hint = "remove `async`"
            elif hasattr(result, "to_spark"):  # pandas on Spark
                hint = "convert it with `to_spark()`"
            elif isinstance(result, str):
                hint = f"read it: `spark.read.table({result!r})`, or `spark.readStream.table`"
            elif kind.__name__ == "GroupedData":
                hint = "aggregate its groups, such as with `.count()` or `.agg(...)`"
            elif kind.__module__.startswith("pandas."):
                hint = "convert it with `spark.createDataFrame`"
            name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
            raise DefinitionError(
                "QUERY_RETURNS_NO_DATAFRAME",
                f"the query function of {flow.name!r} returned {name}, not a Spark DataFrame",
                origin=flow.origin,
                hint=hint,
            )
        return result, evaluation

    def _target(self, flow: Flow) -> DeclaredDataset | None:
        return self.index.datasets.get(self.index.flow_targets.get(flow.name, ""))

    def _rules_qualify(self, flow: Flow) -> bool:
        """Whether an expectation names a dataset before a column, such as `customers.id`."""
        dataset = self._target(flow)
        rules = () if dataset is None else dataset.declared.expectations
        texts = [rule.condition for rule in rules if isinstance(rule.condition, str)]
        return any(
            self.index.find(name) is not None for text in texts for name in _QUALIFIER.findall(text)
        )

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
        """The dataset that an incomplete name refers to, if there is no table of that name."""
        dataset = self.index.find_by_end(name, {flow for flow, _ in self._stack.get()})
        if dataset is None or self.context.external_tables.find(name) is not None:
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
        source_of("delta").check_options(reader_state(reader).options, is_stream=streaming)
        with own_read():
            if not isinstance(reader, DataStreamReader):
                return self._source.batch(key, reader)
            opened = self._source.stream(key, reader, self._stack.get()[0][1].position)
        self.note(opened)
        return opened.df

    def _view(self, dataset: DeclaredDataset, *, streaming: bool) -> DataFrame:
        if not dataset.flows:
            raise DatasetNotReadyError(dataset.name.key)
        sources = self._stack.get()[0][1].sources
        count = len(sources)
        df, _ = self.evaluate(dataset.flows[0])
        shown = self.index.display(dataset.name.key)
        if df.isStreaming != streaming and self._spark.conf.get(_VIEW_CHECK, "true") != "false":
            there, here = ("stream", "batch") if df.isStreaming else ("batch", "stream")
            del sources[count:]  # one-time flows read the view again, as a stream
            reader = "spark.readStream (STREAM in SQL)" if df.isStreaming else "spark.read"
            raise DefinitionError(
                "INCOMPATIBLE_VIEW_READ",
                f"temporary view {shown!r} is a {there} query and is read as a {here}",
                origin=dataset.declared.origin,
                hint=f"read it with {reader}; if {_VIEW_CHECK} is false, it is a {there} for both",
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

    @property
    def qualifies(self) -> bool:
        return self._current.qualifies

    def qualified(self, df: DataFrame, name: str) -> DataFrame:
        dataset = self._find(name)
        return super().qualified(df, name if dataset is None else str(dataset.name))

    def check_start(self) -> None:
        raise DefinitionError(
            "QUERY_STARTED_IN_FUNCTION",
            "a query function starts a streaming query, which would run in checks and dry runs too",
            origin=capture_origin(),
            hint="return the DataFrame; to write it to another system, declare a sink with "
            "`create_sink` and a flow into it with `@append_flow`",
        )

    def record(self, what: str) -> None:
        self._current.external.append(what)

    def assumed(self, what: str) -> None:
        self._current.assumed.append(what)

    def table_exists(self, name: str) -> bool | None:
        dataset = self._find(name)
        if dataset is None:
            return super().table_exists(name)
        table = self.context.external_tables.find(str(dataset.name))
        return table is not None and self.context.external_tables.is_there(table)

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
            is_triggered=evaluation.is_triggered,
            memory=partial(self.context.memories, flow, analysis=is_analysis),
        )

    def note(self, opened: OpenedSource) -> None:
        self._stack.get()[0][1].sources.append(opened)


def _names_table(error: BaseException | None, evaluation: Evaluation) -> bool:
    """Whether Spark may not have found a column because a table name qualifies it."""
    condition, parameters = error_details(error)
    if condition.partition(".")[0] not in _UNRESOLVED:
        return False
    tables = {name.rpartition(".")[2] for name in (*evaluation.inputs, *evaluation.external)}
    name = parameters.get("objectName", parameters.get("targetString"))
    parts = () if name is None else name.lower().replace("`", "").split(".")
    return name is None or not {table.lower() for table in tables}.isdisjoint(parts)
