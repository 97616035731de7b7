import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock._local.demo.folders import DemoFolders

Row = dict[str, Any]
BRONZE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("ingest_time", pa.timestamp("us", "UTC")),
        ("date", pa.string()),
    ]
)
SILVER = pa.schema(
    [
        ("order_id", pa.string()),
        ("customer_id", pa.string()),
        ("product", pa.string()),
        ("quantity", pa.int32()),
        ("unit_price", pa.decimal128(10, 2)),
        ("amount", pa.decimal128(12, 2)),
        ("currency", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("_corrupt_record", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
QUARANTINE = pa.schema(
    [
        *SILVER,
        ("_failed_rules", pa.list_(pa.string())),
        ("_row", pa.string()),
        ("_source", pa.string()),
    ]
)
SCHEMAS = {"orders_bronze": BRONZE, "orders": SILVER, "orders_quarantine": QUARANTINE}


class DemoTablesOnDisk:
    """Tables as the pipeline writes them. Each call of `add` commits a version."""

    def __init__(self, folders: DemoFolders) -> None:
        self.folders = folders

    def folder(self, table: str) -> Path:
        return self.folders.table(table)

    def add(self, table: str, rows: Sequence[Row]) -> None:
        values = pa.Table.from_pylist(list(rows), schema=SCHEMAS[table])
        write_deltalake(self.folder(table), values, mode="append")

    def commit_silver(self, consumed: int, *, batch: int = 0) -> None:
        self.commit("orders", {"reservoirVersion": consumed, "index": -1}, batch=batch)

    def commit(self, flow: str, offset: Row, *, batch: int = 0) -> None:
        state = self.folders.storage / "state" / "flows" / f"{flow}.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps({"epoch": "e1"}))
        for log in ("offsets", "commits"):
            file = self.folders.storage / "checkpoints" / flow / "e1" / log / str(batch)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"v1\n{{}}\n{json.dumps(offset)}\n")


def bronze_row(partition: int, offset: int, value: bytes) -> Row:
    timestamp = datetime(2026, 5, 1, tzinfo=UTC)
    return {
        "key": None,
        "value": value,
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "ingest_time": timestamp,
        "date": "2026-05-01",
    }


@pytest.fixture
def tables(tmp_path: Path) -> DemoTablesOnDisk:
    return DemoTablesOnDisk(DemoFolders(tmp_path))


@pytest.fixture
def bronze() -> Callable[[int, int, bytes], Row]:
    return bronze_row
