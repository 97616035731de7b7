"""Drafts of pipelines: declarations and analyses without Spark."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock._graph.build import build_graph
from penstock._graph.dataflow import DataflowGraph
from penstock._graph.index import DefinitionIndex
from penstock._graph.indexing import build_index
from penstock._model.cdc import CdcSpec, SnapshotSpec
from penstock._model.dataset import Dataset, DatasetKind, Sink
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.flow import Flow, FlowAnalysis, OutputMode
from penstock._model.origin import SourceLocation
from penstock._model.pipeline import EventLogSettings, PipelineDefinition, PipelineSettings
from penstock.errors import PenstockError
from penstock.sinks.registry import sink_of


@dataclass
class Draft:
    """Declarations, each on a new line, and the results of their analysis."""

    datasets: list[Dataset] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    analyses: dict[str, FlowAnalysis] = field(default_factory=dict)
    errors: dict[str, PenstockError] = field(default_factory=dict)
    catalog: str = "spark_catalog"
    schema: str = "default"
    events: EventLogSettings = field(default_factory=EventLogSettings)
    file: str = "pipeline.py"
    line: int = 0

    def here(self) -> SourceLocation:
        self.line += 10
        return SourceLocation(self.file, self.line)

    def table(
        self,
        name: str,
        *reads: str,
        kind: DatasetKind | None = None,
        streaming: bool = True,
        mode: OutputMode | None = None,
        external: tuple[str, ...] = (),
        columns: str = "id long",
        spark_conf: dict[str, str] | None = None,
        rules: tuple[tuple[str, str, OnViolation], ...] = (),
        origin: SourceLocation | None = None,
        analysed: bool = True,
        **properties: Any,
    ) -> Dataset:
        """Add a dataset with a query, like a dataset decorator."""
        origin = origin or self.here()
        dataset = Dataset(
            name=name,
            kind=kind,
            origin=origin,
            spark_conf=spark_conf or {},
            expectations=tuple(
                Expectation(name=rule, condition=condition, on_violation=action, origin=origin)
                for rule, condition, action in rules
            ),
            **properties,
        )
        self.datasets.append(dataset)
        self.flows.append(
            Flow(
                name=name,
                target=name,
                function=_no_query,
                origin=origin,
                spark_conf=dataset.spark_conf,
                implicit=True,
            )
        )
        if analysed:
            self.analyse(name, *reads, streaming=streaming, mode=mode, external=external,
                         columns=columns)  # fmt: skip
        return dataset

    def materialized_view(self, name: str, *reads: str, **properties: Any) -> Dataset:
        return self.table(
            name, *reads, kind=DatasetKind.MATERIALIZED_VIEW, streaming=False, **properties
        )

    def view(self, name: str, *reads: str, streaming: bool = True, **properties: Any) -> Dataset:
        return self.table(
            name, *reads, kind=DatasetKind.TEMPORARY_VIEW, streaming=streaming, **properties
        )

    def empty_table(self, name: str, **properties: Any) -> Dataset:
        """Add a streaming table without a query, like `create_streaming_table`."""
        dataset = Dataset(
            name=name, kind=DatasetKind.STREAMING_TABLE, origin=self.here(), **properties
        )
        self.datasets.append(dataset)
        return dataset

    def sink(self, name: str, format: str = "kafka", **options: str) -> Sink:
        facts = sink_of(format).facts(options)
        sink = Sink(name=name, format=format, options=options, origin=self.here(), facts=facts)
        self.sinks.append(sink)
        return sink

    def append_flow(
        self,
        name: str,
        target: str,
        *reads: str,
        once: bool = False,
        streaming: bool | None = None,
        mode: OutputMode | None = None,
        external: tuple[str, ...] = (),
        spark_conf: dict[str, str] | None = None,
        replace_where: str | None = None,
    ) -> Flow:
        flow = Flow(
            name=name,
            target=target,
            function=_no_query,
            origin=self.here(),
            once=once,
            spark_conf=spark_conf or {},
            replace_where=replace_where,
        )
        self.flows.append(flow)
        is_streaming = not once if streaming is None else streaming
        self.analyse(name, *reads, streaming=is_streaming, mode=mode, external=external)
        return flow

    def cdc_flow(
        self,
        name: str,
        target: str,
        *reads: str,
        once: bool = False,
        streaming: bool = True,
        columns: str = "id long",
        sequence_type: str = "bigint",
        **spec: Any,
    ) -> Flow:
        """Add a flow like `create_auto_cdc_flow`."""
        spec = {"source": "s", "keys": ("id",), "sequence_by": "seq", **spec}
        flow = Flow(
            name=name,
            target=target,
            function=_no_query,
            origin=self.here(),
            once=once,
            cdc=CdcSpec(**spec),
        )
        self.flows.append(flow)
        self.analyse(name, *reads, streaming=streaming, columns=columns)
        self.analyses[name] = replace(self.analyses[name], sequence_type=sequence_type)
        return flow

    def snapshot_flow(self, name: str, target: str, *reads: str, **spec: Any) -> Flow:
        """Add a flow like `create_auto_cdc_from_snapshot_flow`."""
        spec = {"source": "s", "keys": ("id",), **spec}
        flow = Flow(
            name=name,
            target=target,
            function=_no_query,
            origin=self.here(),
            snapshot=SnapshotSpec(**spec),
        )
        self.flows.append(flow)
        self.analyse(name, *reads, streaming=False)
        return flow

    def analyse(
        self,
        flow: str,
        *reads: str,
        streaming: bool = True,
        mode: OutputMode | None = None,
        external: tuple[str, ...] = (),
        columns: str = "id long",
    ) -> None:
        fields = [column.split(" ", 1) for column in columns.split(", ")]
        schema = {
            "type": "struct",
            "fields": [
                {"name": name, "type": _json_type(kind), "nullable": True, "metadata": {}}
                for name, kind in fields
            ],
        }
        if mode is None and streaming:
            mode = OutputMode.APPEND
        self.analyses[flow] = FlowAnalysis(
            inputs=frozenset(f"{self.catalog}.{self.schema}.{name}".lower() for name in reads),
            external_inputs=external,
            is_streaming=streaming,
            schema_json=json.dumps(schema),
            output_mode=mode,
        )

    def fails(self, flow: str, error: PenstockError) -> None:
        """Let the analysis of a flow fail with this error."""
        self.analyses.pop(flow, None)
        self.errors[flow] = error

    def index(self) -> DefinitionIndex:
        definition = PipelineDefinition(
            datasets=tuple(self.datasets), sinks=tuple(self.sinks), flows=tuple(self.flows)
        )
        settings = PipelineSettings(
            name="paper",
            storage="file:///nowhere",
            root="/nowhere",
            catalog=self.catalog,
            schema=self.schema,
            events=self.events,
        )
        return build_index(definition, settings)

    def graph(self, selected: Collection[str] | None = None) -> DataflowGraph:
        index = self.index()
        schemas = {
            key: self.analyses[flow.name].schema_json
            for key, dataset in index.datasets.items()
            for flow in dataset.flows
            if flow.name in self.analyses
        }
        return build_graph(index, self.analyses, schemas, self.errors, selected)


def _no_query() -> None:
    raise AssertionError("no query function is called on paper")


def _json_type(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


@pytest.fixture
def draft() -> Draft:
    return Draft()


@pytest.fixture
def another_draft() -> Callable[..., Draft]:
    """A factory of drafts, for tests with several pipelines."""
    return Draft
