"""A receiver of OpenLineage events on this machine, and checks of every event."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import attr
from openlineage.client import facet_v2

FACETS = {
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "columnLineage": facet_v2.column_lineage_dataset.ColumnLineageDatasetFacet,
    "storage": facet_v2.storage_dataset.StorageDatasetFacet,
    "symlinks": facet_v2.symlinks_dataset.SymlinksDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "dataQualityAssertions": (
        facet_v2.data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet
    ),
    "dataQualityMetrics": (
        facet_v2.data_quality_metrics_input_dataset.DataQualityMetricsInputDatasetFacet
    ),
    "outputStatistics": (
        facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    ),
    "parent": facet_v2.parent_run.ParentRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "test": facet_v2.test_run.TestRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "documentation": facet_v2.documentation_job.DocumentationJobFacet,
}


class Receiver:
    """Stores posted events. `status` is its response; it responds when `released` is set."""

    def __init__(self) -> None:
        self.status = 201
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.released.wait(30)
                receiver.headers.append(dict(self.headers))
                if receiver.status < 300:
                    receiver.bodies.append(body)
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in list(self.bodies)]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def check(event: dict[str, Any]) -> None:
    """Check that an event matches OpenLineage's schema, and its facets those of the client."""
    assert event["eventTime"].endswith("Z")
    assert urlsplit(event["producer"]).scheme
    assert event["schemaURL"].startswith("https://openlineage.io/spec/2-")
    facets = {}
    if "run" in event:
        UUID(event["run"]["runId"])
        assert event["eventType"] in ("START", "RUNNING", "COMPLETE", "FAIL", "ABORT")
        facets.update(event["run"].get("facets", {}))
    if "job" in event:
        assert event["job"]["namespace"] and event["job"]["name"]
        facets.update(event["job"].get("facets", {}))
    datasets = [*event.get("inputs", ()), *event.get("outputs", ())]
    if "dataset" in event:
        datasets.append(event["dataset"])
    check_facets(facets)
    for dataset in datasets:
        assert dataset["namespace"] and dataset["name"]
        for key in ("facets", "inputFacets", "outputFacets"):
            check_facets(dataset.get(key, {}))


def check_facets(facets: dict[str, Any]) -> None:
    for name, facet in facets.items():
        if name == "tags":  # added by the client itself
            continue
        known = FACETS[name]
        assert urlsplit(facet["_producer"]).scheme
        assert facet["_schemaURL"] == known._get_schema(), name
        fields = {field.name for field in attr.fields(known)}
        assert set(facet) <= fields, name
        required = {f.name for f in attr.fields(known) if f.default is attr.NOTHING}
        assert required <= set(facet), name


def shapes(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kind and subject of each event."""
    result = []
    for event in events:
        if "run" in event:
            result.append((event["eventType"], event["job"]["name"]))
        elif "dataset" in event:
            result.append(("DATASET", event["dataset"]["name"]))
        else:
            result.append(("JOB", event["job"]["name"]))
    return result
