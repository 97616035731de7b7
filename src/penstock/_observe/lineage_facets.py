"""OpenLineage facets of datasets and runs."""

import os
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from penstock._observe.events import Event

if TYPE_CHECKING:
    from openlineage.client.facet_v2 import DatasetFacet, RunFacet

PRODUCER = "urn:penstock:pipelines"


def schema_facets(columns: Sequence[Mapping[str, Any]]) -> "dict[str, DatasetFacet]":
    """The schema facet, from the fields of Spark's schema JSON; empty without columns."""
    from openlineage.client.facet_v2 import schema_dataset

    if not columns:
        return {}
    fields = [_field(column) for column in columns]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)}


def table_facets(namespace: str, name: str) -> "dict[str, DatasetFacet]":
    from openlineage.client.facet_v2 import storage_dataset, symlinks_dataset

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
    from openlineage.client.facet_v2 import schema_dataset

    kind = column["type"]
    inner = kind.get("fields", []) if isinstance(kind, dict) else []
    return schema_dataset.SchemaDatasetFacetFields(
        name=column["name"],
        type=kind if isinstance(kind, str) else str(kind.get("type")),
        description=(column.get("metadata") or {}).get("comment"),
        fields=[_field(item) for item in inner],
    )


def error_facet(event: Event) -> "RunFacet":
    """The error of a failed run; the event must have an error."""
    from openlineage.client.facet_v2 import error_message_run

    assert event.error is not None
    return error_message_run.ErrorMessageRunFacet(
        message=f"[{event.error.condition}] {event.error.message}",
        programmingLanguage="PYTHON",
        producer=PRODUCER,
    )


def parent_run_facet() -> "RunFacet | None":
    """The parent run, from OPENLINEAGE_PARENT_ID (`namespace/job/run id`); `None` if unset."""
    from openlineage.client.facet_v2 import parent_run

    parts = os.environ.get("OPENLINEAGE_PARENT_ID", "").rsplit("/", 2)
    if len(parts) != 3 or not all(parts):
        return None
    try:
        run = parent_run.Run(runId=str(uuid.UUID(parts[2])))
    except ValueError:
        return None
    job = parent_run.Job(namespace=parts[0], name=parts[1])
    return parent_run.ParentRunFacet(run=run, job=job, producer=PRODUCER)


def version_of(package: str) -> str:
    """Version of an installed package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
