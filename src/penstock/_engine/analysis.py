"""Analysis: every query function is called once its upstreams' schemas are known."""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._engine import plans
from penstock._engine.boundary import DatasetNotReadyError
from penstock._engine.evaluation import (
    DatasetCycleError,
    Evaluation,
    Evaluator,
    SchemaSource,
    SourceStates,
)
from penstock._graph.build import build_graph, cycle_error
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import DeclaredDataset, DefinitionIndex
from penstock._model.dataset import DatasetKind
from penstock._model.flow import Flow, FlowAnalysis, OutputMode
from penstock._tables.prepare import parse_schema
from penstock.errors import DefinitionError, PenstockError
from penstock.quality.rules import check_expectations


class _UpstreamFailedError(Exception):
    """A flow below could not be analysed; its own error is reported already."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        super().__init__(flow)


def analyse(
    spark: SparkSession,
    index: DefinitionIndex,
    *,
    resolve_secrets: Callable[[str], str] = lambda text: text,
    states: SourceStates | None = None,
) -> DataflowGraph:
    """Analyse every flow of a pipeline and build its graph.

    Nothing is written or started, and no dataset is read: they are stood in for by empty ones with
    their schema.

    Raises:
        DefinitionErrors: Everything that is wrong with the pipeline, at once.
    """
    source = SchemaSource()
    try:
        analysis = _Analysis(spark, index, source, resolve_secrets, states)
        for key in index.datasets:
            analysis.dataset(key)
        for name, flow in index.flows.items():
            if index.flow_targets[name] in index.sinks:
                analysis.flow(flow, properties={})
        return build_graph(index, analysis.found, analysis.errors)
    finally:
        source.close()


class _Analysis:
    def __init__(
        self,
        spark: SparkSession,
        index: DefinitionIndex,
        source: SchemaSource,
        resolve_secrets: Callable[[str], str],
        states: SourceStates | None,
    ) -> None:
        self.index = index
        self.found: dict[str, FlowAnalysis] = {}
        self.errors: dict[str, PenstockError] = {}
        self._source = source
        self._spark = spark
        self._evaluator = Evaluator(spark, index, source, resolve_secrets, states)
        self._path: list[str] = []

    def dataset(self, key: str) -> None:
        """Analyse all flows of a dataset, upstream datasets first. Never raises."""
        dataset = self.index.datasets[key]
        properties = dataset.declared.table_properties
        for flow in dataset.flows:
            self.flow(flow, properties=properties, dataset=dataset)

    def flow(
        self,
        flow: Flow,
        *,
        properties: Mapping[str, str],
        dataset: DeclaredDataset | None = None,
    ) -> None:
        """Analyse one flow. Never raises: errors are collected."""
        if flow.name in self.found or flow.name in self.errors:
            return
        self._path.append(flow.name)
        try:
            df, evaluation = self._evaluate(flow)
            self.found[flow.name] = self._describe(df, evaluation, flow, properties, dataset)
            if dataset is not None and dataset.name.key not in self._source.schemas:
                self._source.schemas[dataset.name.key] = self._declared_schema(dataset, df)
        except _UpstreamFailedError as failed:
            self.errors[flow.name] = self.errors[failed.flow]
        except DatasetCycleError as error:
            self.errors[flow.name] = cycle_error(str(error), flow.origin)
        except PenstockError as error:
            self.errors[flow.name] = error
        finally:
            self._path.pop()

    def _evaluate(self, flow: Flow) -> tuple[DataFrame, Evaluation]:
        # Each round makes one more upstream ready, so the number of rounds is bounded.
        for _ in range(len(self.index.datasets) + 1):
            try:
                return self._evaluator.evaluate(flow)
            except DatasetNotReadyError as signal:
                self._make_ready(signal.key, flow)
        raise DefinitionError(
            "QUERY_NOT_STABLE",
            f"the query function of {flow.name!r} reads something else on every call",
            origin=flow.origin,
        )

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
        if key not in self._source.schemas:  # a table that nothing writes to: reported by the index
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
        if df.isStreaming and not is_view:
            mode = plans.choose_output_mode(df, flow)
            if mode is OutputMode.UPDATE:
                keys = plans.merge_keys(df, flow, properties)
                mode = OutputMode.UPDATE if keys else OutputMode.APPEND
            state = plans.stateful_operators(df)
        if dataset is not None and dataset.declared.expectations:
            check_expectations(df, dataset.declared.expectations)
        return FlowAnalysis(
            inputs=frozenset(evaluation.inputs),
            external_inputs=tuple(dict.fromkeys(evaluation.external)),
            is_streaming=df.isStreaming,
            schema_json=df.schema.json(),
            output_mode=mode,
            merge_keys=keys,
            stateful_operators=state,
        )

    def _declared_schema(self, dataset: DeclaredDataset, df: DataFrame) -> StructType:
        declared = dataset.declared.schema
        if declared is None:
            return df.schema
        return parse_schema(self._spark, declared, origin=dataset.declared.origin)
