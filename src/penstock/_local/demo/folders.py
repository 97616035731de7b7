"""The folders of the demo, and the progress of its flows from their checkpoints."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock._local.demo.kafka_log import Ranges
from penstock._local.demo.tables import opened
from penstock._model.name import DatasetName
from penstock._model.pipeline import PipelineSettings
from penstock._tables.layout import StorageLayout

PIPELINE = "orders-demo"
TOPIC = "orders"
PARTITIONS = 3

_SOURCE = Path(__file__).with_name("project") / "pipeline.py"
_SPEC = """\
# Written by `penstock demo`, for the other commands: `penstock preview revenue_5m`, say.
name: {name}
storage: .
configuration:
  demo.bootstrap.servers: {bootstrap_servers}
  demo.topic: {topic}
libraries:
  - file:
      path: pipeline.py
"""
_CATALOG = "spark_catalog"
_SCHEMA = "default"


@dataclass(frozen=True)
class DemoFolders:
    storage: Path  # absolute; folder of the project, storage root and parent of the broker

    @property
    def broker(self) -> Path:
        return self.storage / "broker"

    @property
    def cluster(self) -> Path:
        return self.storage / "cluster"

    @property
    def lease(self) -> Path:
        """Lock file of a running demo, from before the first order until after the account."""
        return self.storage / "state" / "demo.lock"

    def table(self, name: str) -> Path:
        return Path(self._layout.table_path(_resolved(name)))

    def quarantine(self, name: str) -> Path:
        return Path(self._layout.quarantine_path(_resolved(name)))

    def write_project(self, bootstrap_servers: str) -> PipelineSettings:
        """Create the project unless it exists; an existing source file is not changed."""
        source = self.storage / _SOURCE.name
        if not source.exists():
            shutil.copyfile(_SOURCE, source)
        spec = _SPEC.format(name=PIPELINE, bootstrap_servers=bootstrap_servers, topic=TOPIC)
        (self.storage / "pipeline.yaml").write_text(spec, encoding="utf-8")
        return PipelineSettings(
            name=PIPELINE,
            storage=self.storage.as_uri(),
            root=str(self.storage),
            catalog=_CATALOG,
            schema=_SCHEMA,
            configuration={
                "demo.bootstrap.servers": bootstrap_servers,
                "demo.topic": TOPIC,
                "pipelines.trigger.interval": "1 second",
            },
            source_patterns=(_SOURCE.name,),
        )

    def consumed_version(self, flow: str) -> int:
        """Versions of its source table below this one are in the flow's committed batches."""
        offset = self._committed_offset(flow)
        if offset is None or offset.get("isStartingVersion"):
            return 0
        return int(offset["reservoirVersion"])

    def progress(self) -> object:
        """A value that changes with every commit of a flow."""
        flows = ("orders_bronze", "orders", "revenue_5m")
        return [self._committed_offset(flow) for flow in flows]

    def is_caught_up(self, ranges: Ranges) -> bool:
        """Whether all flows have committed everything in Kafka. Reads small files only."""
        bronze = self._committed_offset("orders_bronze")
        if bronze is None:
            return all(begin == end for begin, end in ranges.values())
        ends = {str(partition): end for partition, (_, end) in ranges.items()}
        if bronze.get(TOPIC) != ends:
            return False
        return all(
            self._has_consumed(flow, source)
            for flow, source in (("orders", "orders_bronze"), ("revenue_5m", "orders"))
        ) and self._view_is_fresh("customer_totals", "orders")

    def _has_consumed(self, flow: str, source: str) -> bool:
        """Whether no file of a table was added after what a flow has read."""
        table, consumed = opened(self.table(source)), self.consumed_version(flow)
        if table is None or table.version() < consumed:
            return True
        read = opened(self.table(source), consumed - 1) if consumed else None
        return set(table.file_uris()) <= set(read.file_uris() if read else ())

    def _view_is_fresh(self, view: str, source: str) -> bool:
        table = opened(self.table(source))
        if table is None:
            return True
        name = quote(_resolved(view).key, safe=" ")
        state = _read_json(self.storage / "state" / "views" / f"{name}.json")
        return state is not None and str(table.version()) in map(str, state["sources"].values())

    def _committed_offset(self, flow: str) -> dict[str, Any] | None:
        state = _read_json(self.storage / "state" / "flows" / f"{quote(flow, safe=' ')}.json")
        if state is None:
            return None
        checkpoint = Path(self._layout.checkpoint_path(flow, state["epoch"]))
        committed = _batches(checkpoint / "commits")
        if not committed:
            return None
        text = (checkpoint / "offsets" / str(max(committed))).read_text(encoding="utf-8")
        offset: dict[str, Any] = json.loads(text.split("\n")[2])
        return offset

    @cached_property
    def _layout(self) -> StorageLayout:
        return StorageLayout(str(self.storage))


def _resolved(name: str) -> DatasetName:
    return DatasetName(_CATALOG, _SCHEMA, name)


def _batches(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content
