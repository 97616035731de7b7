"""Delta tables outside of the pipeline as sinks: exactly once."""

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from penstock._model.flow import Flow, OutputMode
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.write.fenced import last_number
from penstock._tables.write.table_spec import read_version
from penstock.errors import FlowError
from penstock.sinks.base import (
    OpenedSink,
    StreamSink,
    Write,
    check_checkpoint,
    option,
    require_location,
)
from penstock.sinks.spark import SparkSink

_TABLE = "tableName"
_MISMATCH = re.compile(
    r"(?s)DELTA_METADATA_MISMATCH.*?Table schema:(.*?)Data schema:(.*?)(?:\n\n|$)"
)


class DeltaSink(SparkSink):
    """A Delta table, written by Delta's sink: commits have the ids of the query and the batch."""

    formats = ("delta",)
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {
        OutputMode.UPDATE: "Delta's sink adds rows or replaces all of them"
    }
    instead = (
        'write a table of the pipeline: @dp.table(output_mode="update") merges by the grouping '
        "columns"
    )

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        require_location("delta", options, "path", _TABLE)
        return dict(options)

    def open(self, write: Write) -> OpenedSink:
        options = dict(write.options)
        if table := option(options, _TABLE):
            own = (_TABLE.lower(), "path")
            options = {name: value for name, value in options.items() if name.lower() not in own}
            options["path"] = write.table_path(table)
        self._check_batches(write, option(options, "path"))
        return StreamSink(write.format, options)

    def explain(self, text: str, flow: Flow, batch_id: int | None) -> FlowError | None:
        schemas = _MISMATCH.search(text)
        if schemas is None:
            return None
        table, query = (", ".join(re.findall(r"-- (\S+: \w+)", each)) for each in schemas.groups())
        return FlowError(
            "SINK_SCHEMA_INCOMPATIBLE",
            f"flow {flow.name!r}: the query does not fit into the Delta table of sink "
            f"{flow.target!r}: the table has {table}; it would need {query}",
            flow=flow.name,
            batch_id=batch_id,
            origin=flow.origin,
            hint='select and cast in the query; {"mergeSchema": "true"} on the sink adds columns',
        )

    def _check_batches(self, write: Write, path: str) -> None:
        metadata = StorageFiles(write.spark).read(f"{write.checkpoint}/metadata")
        if metadata and read_version(write.spark, path) is not None:
            last = last_number(DeltaJvm(write.spark), path, json.loads(metadata)["id"])
            check_checkpoint(write, last, path)
