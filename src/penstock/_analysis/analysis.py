"""Analysis: calls each query function when the schemas of its inputs are known."""

import contextlib
from collections.abc import Callable, Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._analysis.ansi_fallback import text_numbers
from penstock._analysis.boundary import DatasetCycleError, DatasetNotReadyError
from penstock._analysis.cdc import (
    CdcAwareSource,
    NoSnapshotError,
    SnapshotQuery,
    as_cdc,
    unresolved,
)
from penstock._analysis.column_lineage import column_lineage
from penstock._analysis.context import Evaluation, ReadContext
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.late_rows import check_late_rows
from penstock._analysis.missing_sources import NOTHING_THERE
from penstock._analysis.output_modes import choose_output_mode
from penstock._analysis.replacing import window_of
from penstock._analysis.sinks import check_place, checked_options, with_sink_facts
from penstock._analysis.state_growth import growing_state
from penstock._analysis.table_columns import (
    check_columns,
    check_identity,
    declared_schema,
)
from penstock._formats.options import Evolution
from penstock._graph.build import build_graph, cycle_error
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._graph.indexing import dataset_without_flow
from penstock._graph.replacing import replaces_rows
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow, FlowAnalysis, OutputMode
from penstock._model.table_properties import effective_properties
from penstock._spark import plans
from penstock._tables.write.assignment import assigned, check_assignable, filled
from penstock._tables.write.schema import with_types
from penstock._tables.write.table_spec import TableSpec, check_properties, check_spec
from penstock._tables.write.widening import common_schema, merged
from penstock.errors import DefinitionError, PenstockError
from penstock.quality.rules import check_expectations


class _UpstreamFailedError(Exception):
    """An upstream flow could not be analysed; its error is already recorded."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(flow)


def analyse(
    spark: SparkSession,
    index: DefinitionIndex,
    context: ReadContext,
    evaluator: Callable[..., Evaluator] = Evaluator,
    *,
    selected: Collection[str] | None = None,
    keeps_refused: bool = False,
    checks_tables: bool = True,
) -> DataflowGraph:
    """Analyse every flow of a pipeline and build its graph, or raise all its errors.

    Nothing is written or started: datasets are empty relations with their schema. `selected` are
    keys of datasets and names of sinks that must be valid; `None` means all. With `keeps_refused`,
    flows that cannot run as streams stay in the graph, with the reason, and fail separately.
    Without `checks_tables`, this also applies to tables that cannot be created.
    """
    with contextlib.closing(CdcAwareSource(index)) as source:
        analysis = Analysis(spark, source, evaluator(spark, index, source, context))
        analysis.keeps_refused, analysis.checks_tables = keeps_refused, checks_tables
        analysis.everything()
        return analysis.graph(selected)


class Analysis:
    """The flows of a pipeline, and their errors by name; `table_errors` are by key.

    For `keeps_refused` and `checks_tables`, see `analyse`.
    """

    def __init__(self, spark: SparkSession, source: CdcAwareSource, evaluator: Evaluator) -> None:
        self.index = evaluator.index
        self.keeps_refused = False
        self.checks_tables = True
        self.analyses: dict[str, FlowAnalysis] = {}
        self.errors: dict[str, PenstockError] = {}
        self.table_errors: dict[str, PenstockError] = {}
        self._source = source
        self._spark = spark
        self._assumptions = evaluator.context.assumptions
        self._evaluator = evaluator
        self._path: list[str] = []
        self._versions: dict[str, object] = {}

    def graph(self, selected: Collection[str] | None = None) -> DataflowGraph:
        """See `build_graph`."""
        errors = {**self.table_errors, **self.errors}
        schemas = {key: schema.json() for key, schema in self._source.schemas.items()}
        return build_graph(with_sink_facts(self.index), self.analyses, schemas, errors, selected)

    def everything(self) -> None:
        """Analyse all flows that are not analysed yet. Never raises."""
        for key, dataset in self.index.datasets.items():
            for flow in dataset.flows:
                self.flow(flow, dataset)
            self._check_table(key, dataset)
        for name, flow in self.index.flows.items():
            if self.index.flow_targets[name] in self.index.sinks:
                self.flow(flow)

    def _check_table(self, key: str, dataset: DeclaredDataset) -> None:
        declared, shown = dataset.declared, self.index.display(key)
        properties = effective_properties(declared.table_properties)
        names = [flow.name for flow in dataset.flows]
        is_known = all(name in self.analyses and not self.missing_below(name) for name in names)
        try:
            check_properties(self._spark, properties, name=shown, origin=declared.origin)
            is_table = declared.kind is not DatasetKind.TEMPORARY_VIEW
            if self.checks_tables and is_table and names and is_known:
                spec = TableSpec(
                    schema=self._source.schemas[key],
                    partition_cols=declared.partition_cols,
                    cluster_by=declared.cluster_by,
                    properties=properties,
                    origin=declared.origin,
                )
                check_spec(shown, spec)
                if declared.schema is None:
                    common_schema(shown, {name: self.analyses[name].schema_json for name in names})
        except PenstockError as error:
            error.origin = error.origin or declared.origin
            self.table_errors[key] = error

    def flow(self, flow: Flow, dataset: DeclaredDataset | None = None) -> None:
        """Analyse one flow. Never raises: errors are collected."""
        if flow.name in self.analyses or flow.name in self.errors:
            return
        self._path.append(flow.name)
        strict: PenstockError | None = None
        try:
            while True:
                try:
                    self._analyse(flow, dataset)
                    return
                except PenstockError as error:
                    if error.origin is None:
                        error.origin = flow.origin
                    if self._learns(flow.name, error):
                        continue
                    if strict is not None or not self._evaluator.disable_ansi(flow, error):
                        self.errors[flow.name] = strict or error
                        return
                    strict = error
        except _UpstreamFailedError as failed:
            self.errors[flow.name] = self.errors[failed.flow]
        except DatasetCycleError as error:
            self.errors[flow.name] = cycle_error(str(error), flow.origin)
        finally:
            self._path.pop()

    def _analyse(self, flow: Flow, dataset: DeclaredDataset | None) -> None:
        self._source.take_streamed()
        df, evaluation = self._evaluate(flow)
        declared = None if dataset is None else declared_schema(self._spark, dataset.declared)
        # `as_cdc` converts change events and snapshots.
        typed = None if is_cdc(flow) else declared
        if dataset is None or dataset.declared.kind is not DatasetKind.TEMPORARY_VIEW:
            df = with_types(df, typed)
        analysis, schema = self._describe(df, evaluation, flow, dataset, typed), df.schema
        if dataset is not None and is_cdc(flow):
            version = self._versions.get(flow.name)
            try:
                analysis, schema = as_cdc(analysis, df, flow, dataset, declared, version)
            except DefinitionError as error:
                if self._assumptions is None:
                    raise
                raise error from unresolved(df, flow)
        # The columns of a flow that reads a missing source have no types.
        is_known = self._assumptions is None or not self.missing_below(flow.name)
        if dataset is None and analysis.output_mode is not None and is_known:
            sink = self.index.sinks[self.index.flow_targets[flow.name]]
            mode, context = analysis.output_mode, self._evaluator.context
            check_place(sink, checked_options(sink, df, mode, context), df, evaluation.sources)
        self.analyses[flow.name] = analysis
        if dataset is not None:
            schema = schema if declared is None else declared
            check_identity(schema, flow, analysis.output_mode, dataset.declared)
            known = self._source.schemas.get(dataset.name.key)
            if known is not None and declared is None:
                # Columns that a flow does not have are NULL in its rows.
                schema = merged([known, schema]).toNullable()
            self._source.schemas[dataset.name.key] = schema

    # -- missing sources -----------------------------------------------------------------------

    def missing_below(self, flow: str) -> list[str]:
        """Names of the missing sources that a flow reads, directly or indirectly; nearest first."""
        waiting, seen = [flow], {flow}
        missing: dict[str, None] = {}
        for name in waiting:  # the loop appends to it
            evaluation = self._evaluator.evaluations.get(name)
            if evaluation is None:
                continue
            missing |= dict.fromkeys(evaluation.assumed)
            for key in sorted(evaluation.inputs):
                new = [up.name for up in self.index.datasets[key].flows if up.name not in seen]
                waiting += new
                seen |= {*new}
        return list(missing)

    def _learns(self, flow: str, error: PenstockError) -> bool:
        """Whether a missing source was changed, so that a retry may succeed."""
        if self._assumptions is None or error.__cause__ is None:
            return False
        changed = self._assumptions.learn(flow, error.__cause__, self.missing_below(flow))
        if changed is None:
            return False
        stale = {name for name in self.analyses if changed in self.missing_below(name)}
        for key, dataset in self.index.datasets.items():
            flows = {up.name for up in dataset.flows}
            if flows & stale:
                # The schema of a table comes from all its flows.
                stale |= flows
                self._source.schemas.pop(key, None)
        for name in stale:
            self.analyses.pop(name, None)
        return True

    # -- one flow ------------------------------------------------------------------------------

    def _evaluate(self, flow: Flow) -> tuple[DataFrame, Evaluation]:
        # Each round makes one more upstream ready, so the number of rounds is bounded.
        for _ in range(len(self.index.datasets) + 1):
            try:
                if flow.snapshot is not None:
                    return self._first_snapshot(flow)
                return self._evaluator.evaluate(flow)
            except DatasetNotReadyError as signal:
                self._make_ready(signal.key, flow)
        raise DefinitionError(
            "QUERY_NOT_STABLE",
            f"the query function of {flow.name!r} reads different datasets on each call",
            origin=flow.origin,
            hint="decide at module level what is read, not at random or by time",
        )

    def _first_snapshot(self, flow: Flow) -> tuple[DataFrame, Evaluation]:
        """The first snapshot, for its columns; the function is called as for a new table."""
        query = SnapshotQuery(flow)
        try:
            evaluated = self._evaluator.evaluate(query.flow)
        except NoSnapshotError:
            raise DefinitionError(
                "SNAPSHOT_SCHEMA_UNKNOWN",
                f"the function of snapshot flow {flow.name!r} returns no first snapshot, so the "
                "columns of its table are unknown",
                origin=flow.origin,
                hint="called with None, the function must return the oldest snapshot",
            ) from None
        self._versions[flow.name] = query.version
        return evaluated

    def _make_ready(self, key: str, flow: Flow) -> None:
        upstream = self.index.datasets[key]
        for up in upstream.flows:
            if up.name in self._path:
                path = [*self._path[self._path.index(up.name) :], up.name]
                raise cycle_error(" -> ".join(reversed(path)), flow.origin)
        for up in upstream.flows:
            self.flow(up, upstream)
            if up.name in self.errors:
                raise _UpstreamFailedError(up.name)
        if key not in self._source.schemas:  # a table without a flow, which the index reports
            raise dataset_without_flow(self.index.display(key), upstream.declared)

    def _describe(
        self,
        df: DataFrame,
        evaluation: Evaluation,
        flow: Flow,
        dataset: DeclaredDataset | None,
        declared: StructType | None,
    ) -> FlowAnalysis:
        is_view = dataset is not None and dataset.declared.kind is DatasetKind.TEMPORARY_VIEW
        mode: OutputMode | None = None
        keys: tuple[str, ...] = ()
        refusal: PenstockError | None = None
        if df.isStreaming and not is_view:
            try:
                mode = choose_output_mode(
                    df,
                    flow,
                    dataset=None if dataset is None else dataset.declared,
                    sink=self.index.sinks.get(self.index.flow_targets.get(flow.name, "")),
                )
            except DefinitionError as error:
                if not self.keeps_refused:
                    raise
                refusal = error
        if mode is OutputMode.UPDATE:
            if dataset is not None:
                keys = plans.merge_keys(df, flow, dataset.declared.table_properties)
            # A sink merges by its own keys, or receives each change as a row.
            if not keys and (dataset is not None or not plans.keeps_state(df)):
                mode = OutputMode.APPEND
        if dataset is not None and refusal is None:
            check_late_rows(df, flow, mode, dataset.declared.late_rows)
            check_columns(df, flow, mode, dataset.declared)
        if dataset is not None and declared is not None and not self.missing_below(flow.name):
            name = self.index.display(dataset.name.key)
            check_assignable(self._spark, df.schema, declared, name=name, origin=flow.origin)
        operators = () if mode is None else plans.stateful_operators(df)
        if dataset is not None and dataset.declared.expectations:
            rows = df
            if declared is not None:
                rows = assigned(df, declared)
                is_upsert = mode is OutputMode.UPDATE and len(dataset.flows) == 1
                if is_upsert or dataset.declared.kind is DatasetKind.MATERIALIZED_VIEW:
                    rows = filled(rows, declared)
            check_expectations(
                rows,
                dataset.declared.expectations,
                dataset.declared.kind,
                # Otherwise some rules are applied to the rows of a batch.
                finds_hidden=not is_cdc(flow) and not plans.has_state(operators),
            )
        if replaces_rows(flow) and not df.isStreaming:
            window_of(df, flow)
        streams = self._source.take_streamed()
        plain = tuple(key for key, is_plain in streams.items() if is_plain)
        return FlowAnalysis(
            inputs=frozenset(evaluation.inputs) | self.index.depends_on(flow),
            external_inputs=tuple(dict.fromkeys(evaluation.external)),
            is_streaming=df.isStreaming,
            schema_json=df.schema.json(),
            output_mode=mode,
            merge_keys=keys,
            stateful_operators=operators,
            growing_state=growing_state(df, mode) if plans.has_state(operators) else (),
            lineage=column_lineage(df, self._source.dataset_at),
            taken_for=tuple(evaluation.taken_for.items()),
            missing_folders=self._missing_folders(evaluation),
            unmatched_filters=tuple(
                unmatched
                for opened in evaluation.files
                if (unmatched := opened.roots.unmatched()) is not None
            ),
            needs_ansi_off=evaluation.needs_ansi_off,
            # The types of a missing source are assumed.
            text_numbers=() if self.missing_below(flow.name) else text_numbers(df),
            refusal=refusal,
            widens_types=any(
                source.options.evolution is Evolution.WIDEN for source in evaluation.files
            ),
            query=plans.declared_query(df),
            runs_python=plans.runs_python(df),
            streams=tuple(streams),
            plain_streams=plain,
            changing_inputs=tuple(
                key for key in plain if any(map(is_cdc, self.index.datasets[key].flows))
            ),
        )

    def _missing_folders(self, evaluation: Evaluation) -> tuple[str, ...]:
        missing = {path: opened for opened in evaluation.files for path in opened.roots.missing()}
        for path, opened in missing.items():
            if self._assumptions is not None:
                name = f"{opened.options.format.lower() or 'files'} {path}"
                self._assumptions.note(name, NOTHING_THERE, opened.schema)
        return tuple(missing)
