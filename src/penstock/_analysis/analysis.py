"""Analysis: calls every query function once the schemas of its upstreams are known."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock._analysis.ansi_fallback import text_numbers
from penstock._analysis.assumptions import AssumedSource, reachable
from penstock._analysis.boundary import DatasetCycleError, DatasetNotReadyError
from penstock._analysis.cdc import (
    CdcAwareSource,
    NoSnapshotError,
    SnapshotQuery,
    check_declared,
    event_shape,
    snapshot_shape,
)
from penstock._analysis.column_lineage import column_lineage
from penstock._analysis.context import Evaluation, ReadContext
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.late_rows import check_late_rows
from penstock._analysis.missing_sources import NOTHING_THERE, files_name
from penstock._analysis.output_modes import choose_output_mode
from penstock._analysis.replacing import window_of
from penstock._analysis.sinks import checked_options, column_types, note_endpoints, with_sink_facts
from penstock._analysis.state_growth import growing_state
from penstock._analysis.table_columns import check_columns, check_identity
from penstock._formats.options import Evolution
from penstock._graph.build import build_graph, cycle_error
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._graph.replacing import replaces_rows
from penstock._model.cdc import CdcSpec
from penstock._model.dataset import DatasetKind
from penstock._model.exception_text import first_line
from penstock._model.flow import Flow, FlowAnalysis, OutputMode
from penstock._model.table_properties import effective_properties
from penstock._spark import plans
from penstock._tables.write.assignment import assigned, check_assignable
from penstock._tables.write.schema import merged, with_types
from penstock._tables.write.table_spec import check_properties, parse_schema
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError
from penstock.quality.rules import check_expectations, condition_column, quoted


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The analysis of a pipeline on a machine that may lack its data.

    Some of the `analyses` have assumed columns. `errors` are certain; `unsure` are errors of flows
    that read a missing source, which may be correct with its data; `failed` flows are in one of
    both. `graph` is `None` unless every flow could be analysed.
    """

    analyses: Mapping[str, FlowAnalysis]
    errors: tuple[PenstockError, ...]
    failed: Mapping[str, PenstockError]
    unsure: Mapping[str, PenstockError]
    missing: tuple[AssumedSource, ...]
    graph: DataflowGraph | None


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
) -> DataflowGraph:
    """Analyse every flow of a pipeline and build its graph, or raise all its errors.

    Nothing is written or started: datasets are empty relations with their schema. `selected` are
    keys of datasets and names of sinks that must be valid; `None` = all. With `keeps_refused`,
    flows that cannot run as streams stay in the graph, with the reason: they fail alone.
    """
    source = CdcAwareSource(index)
    try:
        analysis = _Analysis(spark, index, source, context, evaluator, keeps_refused=keeps_refused)
        analysis.everything()
        return build_graph(
            with_sink_facts(index), analysis.analyses, analysis.all_errors(), selected
        )
    finally:
        source.close()


def survey(
    spark: SparkSession,
    index: DefinitionIndex,
    context: ReadContext,
    evaluator: Callable[..., Evaluator] = Evaluator,
) -> Survey:
    """Analyse every flow of a pipeline, with assumptions about missing sources. Never raises."""
    source = CdcAwareSource(index)
    try:
        analysis = _Analysis(spark, index, source, context, evaluator)
        # A column that is added to a source makes earlier analyses stale.
        while any(name not in {*analysis.analyses, *analysis.errors} for name in index.flows):
            analysis.everything()
        unsure = {
            name: error
            for name, error in analysis.errors.items()
            if error.condition != "FEATURE_NOT_AVAILABLE" and analysis.missing_below(name)
        }
        graph: DataflowGraph | None = None
        errors: tuple[PenstockError, ...] = ()
        try:
            graph = build_graph(with_sink_facts(index), analysis.analyses, analysis.all_errors())
        except DefinitionErrors as wrong:
            errors = tuple(error for error in wrong.errors if error not in unsure.values())
        except DefinitionError as wrong:
            errors = (wrong,)
        note_endpoints(index, context)
        assumptions = context.assumptions
        return Survey(
            analyses=analysis.analyses,
            errors=errors,
            failed=analysis.errors,
            unsure=unsure,
            missing=tuple(assumptions.sources.values()) if assumptions is not None else (),
            graph=graph,
        )
    finally:
        source.close()


class _Analysis:
    def __init__(
        self,
        spark: SparkSession,
        index: DefinitionIndex,
        source: CdcAwareSource,
        context: ReadContext,
        evaluator: Callable[..., Evaluator] = Evaluator,
        *,
        keeps_refused: bool = False,
    ) -> None:
        self.index = index
        self._keeps_refused = keeps_refused
        self.analyses: dict[str, FlowAnalysis] = {}
        self.errors: dict[str, PenstockError] = {}
        self.table_errors: dict[str, PenstockError] = {}
        self._source = source
        self._spark = spark
        self._assumptions = context.assumptions
        self._resolve_secrets = context.resolve_secrets
        self._evaluator = evaluator(spark, index, source, context)
        self._path: list[str] = []
        self._versions: dict[str, object] = {}

    def all_errors(self) -> dict[str, PenstockError]:
        """Errors of flows, by name, and of tables, by key."""
        return {**self.table_errors, **self.errors}

    def everything(self) -> None:
        """Analyse all flows of all datasets and sinks that are not analysed yet. Never raises."""
        for key in self.index.datasets:
            self.dataset(key)
        for name, flow in self.index.flows.items():
            if self.index.flow_targets[name] in self.index.sinks:
                self.flow(flow, properties={})

    def dataset(self, key: str) -> None:
        """Analyse all flows of a dataset, upstream datasets first. Never raises."""
        dataset = self.index.datasets[key]
        properties = dataset.declared.table_properties
        self._check_properties(key, dataset)
        for flow in dataset.flows:
            self.flow(flow, properties=properties, dataset=dataset)

    def _check_properties(self, key: str, dataset: DeclaredDataset) -> None:
        declared = dataset.declared
        try:
            for name, value in effective_properties(declared.table_properties).items():
                shown = self.index.display(key)
                check_properties(self._spark, {name: value}, name=shown, origin=declared.origin)
        except PenstockError as error:
            self.table_errors[key] = error

    def flow(
        self, flow: Flow, *, properties: Mapping[str, str], dataset: DeclaredDataset | None = None
    ) -> None:
        """Analyse one flow. Never raises: errors are collected."""
        if flow.name in self.analyses or flow.name in self.errors:
            return
        self._path.append(flow.name)
        strict: PenstockError | None = None
        try:
            while True:
                try:
                    self._analyse(flow, properties, dataset)
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

    def _analyse(
        self, flow: Flow, properties: Mapping[str, str], dataset: DeclaredDataset | None
    ) -> None:
        self._source.take_streamed()
        df, evaluation = self._evaluate(flow)
        changing = self._source.take_streamed()
        if dataset is None or dataset.declared.kind is not DatasetKind.TEMPORARY_VIEW:
            df = with_types(df, self._written_types(flow, dataset))
        analysis, schema = self._describe(df, evaluation, flow, properties, dataset), df.schema
        if self._assumptions is not None and is_cdc(flow):
            self._try_columns(df, flow)
        if dataset is not None and is_cdc(flow):
            analysis, schema = self._as_cdc(analysis, df, flow, dataset)
        if dataset is None and self._assumptions is None:
            self._check_sink(flow, df, analysis)
        self.analyses[flow.name] = replace(analysis, changing_inputs=changing)
        if dataset is not None:
            schema = self._declared_schema(dataset, schema)
            check_identity(schema, flow, analysis.output_mode, dataset.declared)
            known = self._source.schemas.get(dataset.name.key)
            self._source.schemas[dataset.name.key] = (
                schema if known is None else merged([known, schema])
            )

    def _check_sink(self, flow: Flow, df: DataFrame, analysis: FlowAnalysis) -> None:
        if analysis.output_mode is not None:
            checked_options(
                self.index.sinks[self.index.flow_targets[flow.name]],
                column_types(df),
                analysis.output_mode,
                resolve_secrets=self._resolve_secrets,
                map_path=self._evaluator.map_path,
            )

    # -- missing sources -----------------------------------------------------------------------

    def missing_below(self, flow: str) -> list[str]:
        """Names of the missing sources that a flow reads, directly or not; nearest first."""
        return list(reachable(flow, self._read_by))

    def _read_by(self, flow: str) -> tuple[list[str], list[str]]:
        evaluation = self._evaluator.evaluations.get(flow)
        if evaluation is None:
            return [], []
        upstream = [
            up.name for key in sorted(evaluation.inputs) for up in self.index.datasets[key].flows
        ]
        return evaluation.assumed, upstream

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

    def _try_columns(self, df: DataFrame, flow: Flow) -> None:
        """Resolve the columns of an auto CDC flow, so that missing ones can be assumed."""
        spec = flow.cdc or flow.snapshot
        assert spec is not None
        names = [*spec.keys]
        columns: list[Any] = []
        if isinstance(spec, CdcSpec):
            names += [*(spec.columns or ()), *(spec.except_columns or ())]
            columns = [spec.sequence_by, spec.apply_as_deletes, spec.apply_as_truncates]
        named = [F.col(quoted(name)) for name in names]
        named += [
            F.expr(value) if isinstance(value, str) else value
            for value in columns
            if value is not None
        ]
        for column in named:
            try:
                df.select(column)
            except AnalysisException as error:
                raise DefinitionError(
                    "CDC_COLUMN_NOT_FOUND", first_line(error), origin=flow.origin
                ) from error

    def _check_rules(self, df: DataFrame, dataset: DeclaredDataset) -> None:
        rules = dataset.declared.expectations
        if self._assumptions is not None:
            # `check_expectations` resolves the columns of rules about whole tables.
            for rule in (each for each in rules if not each.unique and each.rows is None):
                try:
                    df.select(condition_column(self._spark, rule))
                except AnalysisException as error:
                    # The missing column may be assumed: it is in the cause of the error.
                    try:
                        check_expectations(df, rules)
                    except DefinitionError as wrong:
                        raise wrong from error
        check_expectations(df, rules)

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
        )

    def _first_snapshot(self, flow: Flow) -> tuple[DataFrame, Evaluation]:
        """The first snapshot, for its columns; its function is called as at a first start."""
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
        names = [up.name for up in upstream.flows]
        for name in names:
            if name in self._path:
                path = [*self._path[self._path.index(name) :], name]
                raise cycle_error(" -> ".join(reversed(path)), flow.origin)
        self.dataset(key)
        for name in names:
            if name in self.errors:
                raise _UpstreamFailedError(name)
        if key not in self._source.schemas:  # a table without flow: reported by the index
            raise DefinitionError(
                "DATASET_WITHOUT_FLOW",
                f"nothing writes to streaming table {self.index.display(key)!r}",
                origin=upstream.declared.origin,
                hint=f'add a flow: @append_flow(target="{upstream.declared.name}")',
            )

    def _describe(
        self,
        df: DataFrame,
        evaluation: Evaluation,
        flow: Flow,
        properties: Mapping[str, str],
        dataset: DeclaredDataset | None,
    ) -> FlowAnalysis:
        is_view = dataset is not None and dataset.declared.kind is DatasetKind.TEMPORARY_VIEW
        mode: OutputMode | None = None
        keys: tuple[str, ...] = ()
        state: tuple[str, ...] = ()
        growing: tuple[str, ...] = ()
        refusal: PenstockError | None = None
        if df.isStreaming and not is_view:
            try:
                mode = choose_output_mode(
                    df,
                    flow,
                    dataset=None if dataset is None else dataset.declared,
                    sink=None if dataset is not None else self.index.sinks.get(flow.target),
                )
            except DefinitionError as error:
                if not self._keeps_refused:
                    raise
                refusal = error
        if mode is not None:
            growing = growing_state(df, mode)
            if mode is OutputMode.UPDATE:
                if dataset is not None:
                    keys = plans.merge_keys(df, flow, properties)
                # A sink merges by keys of its own, or takes each change as a row.
                if not keys and (dataset is not None or not plans.keeps_state(df)):
                    mode = OutputMode.APPEND
            state = plans.stateful_operators(df)
        if dataset is not None and refusal is None:
            check_late_rows(df, flow, mode, dataset.declared.late_rows)
            check_columns(df, flow, mode, dataset.declared)
        declared = self._written_types(flow, dataset)
        if dataset is not None and declared is not None and not self.missing_below(flow.name):
            name = self.index.display(dataset.name.key)
            check_assignable(self._spark, df.schema, declared, name=name, origin=flow.origin)
        if dataset is not None and dataset.declared.expectations:
            self._check_rules(df if declared is None else assigned(df, declared), dataset)
        if replaces_rows(flow) and not df.isStreaming:
            window_of(df, flow)
        return FlowAnalysis(
            inputs=frozenset(evaluation.inputs) | self._depends_on(flow),
            external_inputs=tuple(dict.fromkeys(evaluation.external)),
            is_streaming=df.isStreaming,
            schema_json=df.schema.json(),
            output_mode=mode,
            merge_keys=keys,
            stateful_operators=state,
            growing_state=growing,
            lineage=column_lineage(df, self._source.dataset_at),
            taken_for=tuple(evaluation.taken_for.items()),
            missing_folders=self._missing_folders(evaluation),
            unmatched_filters=tuple(
                unmatched
                for opened in evaluation.files
                if (unmatched := opened.roots.unmatched()) is not None
            ),
            needs_ansi_off=evaluation.needs_ansi_off,
            text_numbers=text_numbers(df),
            refusal=refusal,
            widens_types=any(
                source.options.evolution is Evolution.WIDEN for source in evaluation.files
            ),
        )

    def _missing_folders(self, evaluation: Evaluation) -> tuple[str, ...]:
        missing = {path: opened for opened in evaluation.files for path in opened.roots.missing()}
        for path, opened in missing.items():
            if self._assumptions is not None:
                name = files_name([path], opened.options.format)
                self._assumptions.note(name, NOTHING_THERE, opened.schema)
        return tuple(missing)

    def _depends_on(self, flow: Flow) -> frozenset[str]:
        keys = set()
        for name in flow.depends_on:
            dataset = self.index.find(name)
            if dataset is None:
                near = self.index.nearest(name)
                raise DefinitionError(
                    "DATASET_NOT_FOUND",
                    f"flow {flow.name!r} depends on {name!r}, which is not declared",
                    origin=flow.origin,
                    hint=f"did you mean {near!r}?" if near else None,
                )
            keys.add(dataset.name.key)
        return frozenset(keys)

    def _as_cdc(
        self, analysis: FlowAnalysis, df: DataFrame, flow: Flow, dataset: DeclaredDataset
    ) -> tuple[FlowAnalysis, StructType]:
        if flow.cdc is not None:
            shape = event_shape(df, flow, dataset.flows)
            wanted, scd_type = shape.target_schema(), shape.shape.scd_type
            analysis = replace(analysis, sequence_type=shape.sequence.simpleString())
        else:
            snapshot = snapshot_shape(df, flow, self._versions[flow.name])
            wanted, scd_type = snapshot.target_schema(), snapshot.scd_type
        if dataset.declared.schema is not None:
            declared = self._declared_schema(dataset, wanted)
            check_declared(declared, scd_type, wanted, dataset.declared.origin)
        return replace(analysis, schema_json=wanted.json()), wanted

    def _written_types(self, flow: Flow, dataset: DeclaredDataset | None) -> StructType | None:
        """The declared columns that rows are converted to; not for auto CDC."""
        if dataset is None or dataset.declared.schema is None or is_cdc(flow):
            return None
        return self._declared_schema(dataset, StructType())

    def _declared_schema(self, dataset: DeclaredDataset, schema: StructType) -> StructType:
        declared = dataset.declared.schema
        if declared is None:
            return schema
        return parse_schema(self._spark, declared, origin=dataset.declared.origin)
