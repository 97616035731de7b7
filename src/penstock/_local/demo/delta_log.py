"""Reads a Delta table without Spark: replays its log and opens the active files.

Only append and overwrite tables with classic checkpoints on a local disk; others are refused. It
shares no code with the writers of the tables, so that the account is independent of them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


@dataclass(frozen=True, kw_only=True)
class DataFile:
    path: Path
    partition_values: Mapping[str, str | None]  # None = NULL
    version: int  # that added it, or of the checkpoint if its commit was deleted


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    version: int
    table_id: str
    columns: tuple[str, ...]  # including partition columns
    files: tuple[DataFile, ...]  # active ones, oldest first


def read_snapshot(table: Path) -> Snapshot | None:
    """The newest version of a table; `None` without a table, a `ValueError` if it is unreadable."""
    log = table / "_delta_log"
    names = sorted(entry.name for entry in log.iterdir()) if log.is_dir() else []
    commits = {int(match[1]): log / match[0] for match in map(_COMMIT.fullmatch, names) if match}
    active: dict[str, DataFile] = {}
    metadata: dict[str, Any] = {}
    version = -1
    if 0 not in commits:
        version, parts = _newest_checkpoint(log, names)
        for action in _checkpoint_actions(parts):
            _apply(action, version, table, active, metadata)
    while version + 1 in commits:
        version += 1
        for line in commits[version].read_text(encoding="utf-8").splitlines():
            _apply(json.loads(line), version, table, active, metadata)
    if any(number > version for number in commits):
        raise ValueError(f"the log of {table} has a gap after version {version}")
    if not metadata:
        return None
    return Snapshot(
        version=version,
        table_id=metadata["id"],
        columns=tuple(field["name"] for field in json.loads(metadata["schemaString"])["fields"]),
        files=tuple(sorted(active.values(), key=lambda file: file.version)),
    )


def read_rows(files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    """The rows of some files; partition columns are strings, timestamps UTC microseconds.

    A column that a file does not have is NULL there.
    """
    return pa.concat_tables(
        [_read_file(file, columns) for file in files] or [pa.table({name: [] for name in columns})],
        promote_options="permissive",
    )


def _read_file(file: DataFile, columns: Sequence[str]) -> pa.Table:
    source = pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us")
    stored = [name for name in columns if name in source.schema_arrow.names]
    rows = source.read(columns=stored)
    count = source.metadata.num_rows
    arrays: dict[str, Any] = {}
    for name in columns:
        if name in file.partition_values:
            arrays[name] = pa.array([file.partition_values[name]] * count, pa.string())
        elif name in stored:
            column = rows.column(name)
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("us", "UTC"))
            arrays[name] = column
        else:
            arrays[name] = pa.nulls(count)
    return pa.table(arrays)


def _apply(
    action: Mapping[str, Any],
    version: int,
    table: Path,
    active: dict[str, DataFile],
    metadata: dict[str, Any],
) -> None:
    if added := action.get("add"):
        if added.get("deletionVector"):
            raise ValueError(f"{table} has deletion vectors")
        active[added["path"]] = DataFile(
            path=table / unquote(added["path"]),
            partition_values=dict(added["partitionValues"]),
            version=version,
        )
    elif removed := action.get("remove"):
        active.pop(removed["path"], None)
    elif changed := action.get("metaData"):
        configuration = dict(changed.get("configuration") or {})
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            raise ValueError(f"{table} has column mapping")
        metadata.update(changed)


def _newest_checkpoint(log: Path, names: Sequence[str]) -> tuple[int, list[Path]]:
    complete: dict[int, list[Path]] = {}
    for match in map(_CHECKPOINT.fullmatch, names):
        if match:
            parts = [name for name in names if name.startswith(f"{match[1]}.checkpoint")]
            if match[3] is None or len(parts) == int(match[3]):
                complete[int(match[1])] = [log / name for name in parts]
    if not complete:
        return -1, []
    newest = max(complete)
    return newest, complete[newest]


def _checkpoint_actions(parts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for part in parts:
        source = pq.ParquetFile(part)
        # Its `remove` actions are only tombstones for VACUUM.
        yield from source.read(columns=["add", "metaData"]).to_pylist()
