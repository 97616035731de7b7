"""OpenLineage facets of datasets, jobs and runs."""

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)

from penstock._observe.events import Event

PRODUCER = "urn:penstock:pipelines"


def schema_facets(columns: Sequence[Mapping[str, Any]]) -> dict[str, DatasetFacet]:
    """The schema facet, from the fields of Spark's schema JSON; empty without columns."""
    if not columns:
        return {}
    fields = [_field(column) for column in columns]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)}


def table_facets(namespace: str, name: str) -> dict[str, DatasetFacet]:
    identifier = symlinks_dataset.Identifier(namespace=namespace, name=name, type="TABLE")
    return {
        "storage": storage_dataset.StorageDatasetFacet(
            storageLayer="delta", fileFormat="parquet", producer=PRODUCER
        ),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet(
            identifiers=[identifier], producer=PRODUCER
        ),
    }


def _field(column: Mapping[str, Any]) -> Any:
    kind = column["type"]
    inner = kind.get("fields", []) if isinstance(kind, dict) else []
    return schema_dataset.SchemaDatasetFacetFields(
        name=column["name"],
        type=kind if isinstance(kind, str) else str(kind.get("type")),
        description=(column.get("metadata") or {}).get("comment"),
        fields=[_field(item) for item in inner],
    )


def row_count_facets(rows: int | None) -> dict[str, OutputDatasetFacet]:
    if rows is None:
        return {}
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=rows, producer=PRODUCER
    )
    return {"outputStatistics": statistics}


def job_type_facet(kind: str, *, is_streaming: bool) -> JobFacet:
    return job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if is_streaming else "BATCH",
        integration="PENSTOCK",
        jobType=kind,
        producer=PRODUCER,
    )


def error_facet(event: Event) -> RunFacet:
    """The error of a failed run; the event must have an error."""
    assert event.error is not None
    return error_message_run.ErrorMessageRunFacet(
        message=f"[{event.error.condition}] {event.error.message}",
        programmingLanguage="PYTHON",
        producer=PRODUCER,
    )


def parent_run_facet() -> RunFacet | None:
    """The parent run, from OPENLINEAGE_PARENT_ID (`namespace/job/run id`); `None` if unset."""
    parts = os.environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)
    if len(parts) != 3 or not all(parts):
        return None
    try:
        run = parent_run.Run(runId=str(uuid.UUID(parts[2])))
    except ValueError:
        return None
    job = parent_run.Job(namespace=parts[0], name=parts[1])
    return parent_run.ParentRunFacet(run=run, job=job, producer=PRODUCER)
