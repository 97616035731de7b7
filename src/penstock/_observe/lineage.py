"""Converts the events of an update to OpenLineage events: runs, jobs and datasets with facets."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from openlineage.client import event_v2
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    data_quality_metrics_input_dataset,
    dataset_version_dataset,
    documentation_job,
    parent_run,
    processing_engine_run,
    test_run,
)

from penstock._model.lineage import ColumnInput, FlowLineage, LineageSource, place_of
from penstock._model.spark_version import installed_version
from penstock._observe.codec import time_text
from penstock._observe.events import (
    ColumnLineage,
    CreateUpdate,
    DatasetDefinition,
    Event,
    FlowDefinition,
    FlowMetrics,
    FlowProgress,
    FlowStatus,
    Rule,
    SinkDefinition,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.lineage_facets import (
    PRODUCER,
    error_facet,
    job_type_facet,
    parent_run_facet,
    row_count_facets,
    schema_facets,
    table_facets,
)

_ENDS = {
    FlowStatus.COMPLETED: "COMPLETE",
    FlowStatus.IDLE: "COMPLETE",
    FlowStatus.FAILED: "FAIL",
    FlowStatus.STOPPED: "ABORT",
    FlowStatus.SKIPPED: "ABORT",
}
_UPDATE_ENDS = {
    UpdateState.COMPLETED: "COMPLETE",
    UpdateState.FAILED: "FAIL",
    UpdateState.CANCELED: "ABORT",
}


@dataclass
class _Dataset:
    name: str
    place: LineageSource
    schema: list[dict[str, Any]] = field(default_factory=list)
    rules: dict[str, Rule] = field(default_factory=dict)
    is_table: bool = True


@dataclass
class _Flow:
    name: str
    definition: FlowDefinition
    lineage: FlowLineage | None = None
    number: int = 0
    is_running: bool = False
    sent_at: datetime | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    quarantined: int = 0
    version: int | None = None
    counts: dict[str, list[int]] = field(default_factory=dict)

    def begin(self, at: datetime) -> None:
        self.number += 1
        self.is_running, self.sent_at = True, at
        self.rows_in = self.rows_out = self.version = None
        self.quarantined = 0
        self.counts.clear()


class LineageFold:
    """Folds the events of one update into the OpenLineage events to send. Not thread-safe.

    `running_seconds` is the minimum interval between two RUNNING events of a flow.
    """

    def __init__(self, namespace: str, *, running_seconds: float) -> None:
        self._namespace = namespace
        self._running_seconds = running_seconds
        self._datasets: dict[str, _Dataset] = {}
        self._flows: dict[str, _Flow] = {}
        self._pipeline = ""
        self._update_id = ""
        self._is_continuous = False
        self._has_begun = False
        self._declared = False

    def __call__(self, event: Event) -> list[event_v2.BaseEvent]:
        """Fold one event; returns the OpenLineage events to send, in order."""
        self._pipeline = event.origin.pipeline_name or self._pipeline
        self._update_id = event.origin.update_id or self._update_id
        return list(self._fold(event))

    def _fold(self, event: Event) -> Iterator[event_v2.BaseEvent]:
        flow = self._flows.get(event.origin.flow_name)
        match event.body:
            case CreateUpdate() as body:
                self._is_continuous = body.is_continuous
            case DatasetDefinition() as body:
                self._define(event.origin.dataset_name, body)
            case SinkDefinition() as body:
                name = event.origin.sink_name
                place = body.place or self._place(name)
                self._datasets[name] = _Dataset(name=name, place=place, is_table=False)
            case FlowDefinition() as body:
                name = event.origin.flow_name
                self._flows[name] = _Flow(name, body)
            case ColumnLineage() as body if flow is not None:
                flow.lineage = body.lineage
            case UpdateProgress() as body:
                yield from self._update(event, body.state)
            case FlowProgress() as body if flow is not None:
                yield from self._declare(event)
                yield from self._flow(event, flow, body)

    # -- definitions ---------------------------------------------------------------------------

    def _define(self, name: str, body: DatasetDefinition) -> None:
        path = body.path
        self._datasets[name] = _Dataset(
            name=name,
            place=place_of(path) if path else self._place(name),
            schema=json.loads(body.schema_json or "{}").get("fields", []),
            rules={rule.name: rule for rule in body.expectations},
            is_table="VIEW" not in body.dataset_type or bool(path),
        )

    def _declare(self, event: Event) -> Iterator[event_v2.BaseEvent]:
        """Emit job and dataset events once, so that flows that never ran have lineage too."""
        if self._declared:
            return
        self._declared = True
        at = time_text(event.timestamp)
        for dataset in self._datasets.values():
            if dataset.is_table and dataset.schema:
                place = dataset.place
                static = event_v2.StaticDataset(
                    place.namespace, place.name, facets=self._facets(dataset)
                )
                yield event_v2.DatasetEvent(dataset=static, eventTime=at, producer=PRODUCER)
        for flow in self._flows.values():
            if flow.definition.flow_type == "VIEW":
                continue
            yield event_v2.JobEvent(
                job=self._job(flow),
                inputs=self._inputs(flow),
                outputs=self._outputs(flow),
                eventTime=at,
                producer=PRODUCER,
            )

    # -- progress ------------------------------------------------------------------------------

    def _update(self, event: Event, state: UpdateState) -> Iterator[event_v2.BaseEvent]:
        run: dict[str, RunFacet] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=installed_version("pyspark") or "unknown", name="spark", producer=PRODUCER
            )
        }
        parent = parent_run_facet()
        if parent is not None:
            run["parent"] = parent
        job = event_v2.Job(
            namespace=self._namespace,
            name=self._pipeline,
            facets={"jobType": job_type_facet("PIPELINE", is_streaming=self._is_continuous)},
        )
        kind = _UPDATE_ENDS.get(state, "RUNNING" if state is UpdateState.RUNNING else "")
        if not self._has_begun:
            self._has_begun = True
            yield _run_event("START", event, self._update_id, run, job)
        if kind:
            if event.error is not None:
                run["errorMessage"] = error_facet(event)
            yield _run_event(kind, event, self._update_id, run, job)

    def _flow(self, event: Event, flow: _Flow, body: FlowProgress) -> Iterator[event_v2.BaseEvent]:
        status, has_counts = body.status, body.metrics is not None
        if not flow.is_running and (
            has_counts or status in (FlowStatus.STARTING, FlowStatus.FAILED)
        ):
            # Counts without a run: a repeated refresh of a view, or a batch of an earlier update.
            flow.begin(event.timestamp)
            yield self._flow_event("START", event, flow)
        if has_counts:
            self._count(flow, body)
        if status in _ENDS and flow.is_running:
            yield self._flow_event(_ENDS[status], event, flow)
            flow.is_running = False
        elif has_counts and self._is_due(flow, event.timestamp):
            flow.sent_at = event.timestamp
            yield self._flow_event("RUNNING", event, flow)

    def _count(self, flow: _Flow, body: FlowProgress) -> None:
        metrics = body.metrics or FlowMetrics()
        if metrics.num_input_rows is not None:
            flow.rows_in = (flow.rows_in or 0) + metrics.num_input_rows
        for written in (metrics.num_output_rows, metrics.num_upserted_rows):
            if written is not None:
                flow.rows_out = (flow.rows_out or 0) + written
        flow.quarantined += metrics.quarantined_records or 0
        flow.version = flow.version if body.table_version is None else body.table_version
        for counts in body.expectations:
            counts.add_to(flow.counts, counts.name)

    def _is_due(self, flow: _Flow, now: datetime) -> bool:
        reported = flow.sent_at
        return reported is None or abs((now - reported).total_seconds()) >= self._running_seconds

    # -- OpenLineage's objects -----------------------------------------------------------------

    def _flow_event(self, kind: str, event: Event, flow: _Flow) -> event_v2.RunEvent:
        run: dict[str, RunFacet] = {
            "parent": parent_run.ParentRunFacet(
                run=parent_run.Run(runId=self._update_id),
                job=parent_run.Job(namespace=self._namespace, name=self._pipeline),
                producer=PRODUCER,
            )
        }
        if event.error is not None and kind != "START":
            run["errorMessage"] = error_facet(event)
        if flow.counts:
            run["test"] = test_run.TestRunFacet(
                tests=[
                    test_run.TestExecution(
                        type="expectation",
                        status="fail" if failed else "pass",
                        **self._assertion(flow, rule),
                    )
                    for rule, (_, failed) in flow.counts.items()
                ],
                producer=PRODUCER,
            )
        run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{self._update_id}/{flow.name}/{flow.number}")
        sent = _run_event(kind, event, str(run_id), run, self._job(flow))
        sent.inputs, sent.outputs = self._inputs(flow), self._outputs(flow)
        return sent

    def _job(self, flow: _Flow) -> event_v2.Job:
        streams = flow.definition.flow_type not in ("MATERIALIZED_VIEW", "REPLACE_WHERE")
        facets: dict[str, JobFacet] = {"jobType": job_type_facet("FLOW", is_streaming=streams)}
        if flow.definition.comment:
            facets["documentation"] = documentation_job.DocumentationJobFacet(
                description=flow.definition.comment, producer=PRODUCER
            )
        return event_v2.Job(
            namespace=self._namespace, name=f"{self._pipeline}.{flow.name}", facets=facets
        )

    def _sources(self, flow: _Flow) -> list[LineageSource]:
        return [
            self._place(source.dataset) if source.dataset else source
            for source in (flow.lineage.sources if flow.lineage is not None else ())
        ]

    def _place(self, dataset: str) -> LineageSource:
        if dataset in self._datasets:
            return self._datasets[dataset].place
        return LineageSource(namespace=self._namespace, name=f"{self._pipeline}.{dataset}")

    def _inputs(self, flow: _Flow) -> list[event_v2.InputDataset]:
        by_location = {dataset.place: dataset for dataset in self._datasets.values()}
        # Views are resolved to their sources, which are in the lineage of the flow.
        tables = [
            self._datasets[key].place
            for key in flow.definition.input_datasets
            if key in self._datasets and self._datasets[key].is_table
        ]
        places = list(dict.fromkeys([*tables, *self._sources(flow)]))
        facets: dict[str, InputDatasetFacet] = {}
        if len(places) == 1 and flow.rows_in is not None:
            measured = data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet(
                columnMetrics={}, rowCount=flow.rows_in, producer=PRODUCER
            )
            facets["dataQualityMetrics"] = measured
        return [
            event_v2.InputDataset(
                place.namespace,
                place.name,
                facets=self._facets(by_location[place]) if place in by_location else {},
                inputFacets=dict(facets),
            )
            for place in places
        ]

    def _outputs(self, flow: _Flow) -> list[event_v2.OutputDataset]:
        target = self._datasets.get(flow.definition.target)
        if target is None:
            return []

        facets: dict[str, Any] = self._facets(target)
        if flow.lineage is not None:
            facets["columnLineage"] = self._column_lineage(flow, flow.lineage, target)
        if flow.version is not None:
            facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
                datasetVersion=str(flow.version), producer=PRODUCER
            )
        if flow.counts:
            # Counts of the rows to be written to the output, not of the rows read.
            facets["dataQualityAssertions"] = (
                data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
                    assertions=[
                        data_quality_assertions_dataset.Assertion(
                            assertion="expectation",
                            success=not failed,
                            **self._assertion(flow, rule),
                        )
                        for rule, (_, failed) in flow.counts.items()
                    ],
                    producer=PRODUCER,
                )
            )
        place = target.place
        outputs = [
            event_v2.OutputDataset(
                place.namespace,
                place.name,
                facets=facets,
                outputFacets=row_count_facets(flow.rows_out),
            )
        ]
        if flow.quarantined:
            quarantine, rows = f"{place.name}_quarantine", row_count_facets(flow.quarantined)
            outputs.append(event_v2.OutputDataset(place.namespace, quarantine, outputFacets=rows))
        return outputs

    def _assertion(self, flow: _Flow, rule: str) -> dict[str, Any]:
        passed, failed = flow.counts[rule]
        target = self._datasets.get(flow.definition.target)
        declared = target.rules.get(rule) if target is not None else None
        return {
            "name": rule,
            "severity": "error" if declared is not None and declared.action == "fail" else "warn",
            "expected": "0 failed rows",
            "actual": f"{failed} failed rows",
            "content": declared.condition if declared is not None else None,
            "contentType": "sql",
            "params": {"passed_records": passed, "failed_records": failed},
        }

    def _column_lineage(self, flow: _Flow, lineage: FlowLineage, target: _Dataset) -> DatasetFacet:
        sources = self._sources(flow)

        def field_of(column: ColumnInput, kind: str) -> column_lineage_dataset.InputField:
            return column_lineage_dataset.InputField(
                namespace=sources[column.source].namespace,
                name=sources[column.source].name,
                field=column.column,
                transformations=[
                    column_lineage_dataset.Transformation(type=kind, subtype=column.transformation)
                ],
            )

        wanted = {column["name"] for column in target.schema}
        return column_lineage_dataset.ColumnLineageDatasetFacet(
            fields={
                name: column_lineage_dataset.Fields(
                    inputFields=[field_of(influence, "DIRECT") for influence in inputs]
                )
                for name, inputs in lineage.columns.items()
                if inputs and (name in wanted or not wanted)
            },
            dataset=[field_of(influence, "INDIRECT") for influence in lineage.influences],
            producer=PRODUCER,
        )

    def _facets(self, dataset: _Dataset) -> dict[str, DatasetFacet]:
        if not dataset.is_table:
            return schema_facets(dataset.schema)
        return {**schema_facets(dataset.schema), **table_facets(self._namespace, dataset.name)}


def _run_event(
    kind: str, event: Event, run_id: str, run_facets: dict[str, RunFacet], job: event_v2.Job
) -> event_v2.RunEvent:
    return event_v2.RunEvent(
        eventType=event_v2.RunState[kind],
        eventTime=time_text(event.timestamp),
        run=event_v2.Run(runId=run_id, facets=dict(run_facets)),
        job=job,
        producer=PRODUCER,
    )
