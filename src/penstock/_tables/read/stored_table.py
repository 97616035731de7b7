"""Reads a local Delta table without Spark: no JVM, no lease, also while an update writes.

delta-rs reads the log, and pyarrow the files, newest first and only as many as needed. Deletion
vectors and column mapping by name are applied; tables with unsupported features are refused.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock._tables.files import commit_file
from penstock._tables.read.commit_descriptions import Commits
from penstock._tables.read.row_selection import file_key
from penstock.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

REFUSED = "the table cannot be read without Spark: "
"""Prefix of messages of `TABLE_NOT_READABLE` that name a reason."""

# Other features change the content of the files, or are not supported here.
_KNOWN_FEATURES = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"),
        *("typeWidening", "typeWidening-preview", "vacuumProtocolCheck"),
    }
)
# delta-rs returns deletion vectors as one flag per row, for all files that have one.
_MOST_ROWS_WITH_VECTORS = 200_000_000
_BUFFER = 1 << 20
_REST = 10.0
_TIMES = ("date", "timestamp", "timestamp_ntz")
_MICROS_OF_DAY = 86_400_000_000
_DAYS_OF_400_YEARS = 146_097
_LISTED = ("path", "num_records", "size_bytes", "modification_time")


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    path: Path
    name: str  # the path in the log
    rows: int | None  # including deleted ones; None if unknown
    size: int
    at: int  # when it was written, in milliseconds since the epoch
    partition: Mapping[str, Any]

    @cached_property
    def order(self) -> tuple[int, str]:
        """Sort key: greater for newer files, and constant for a file."""
        return self.at, file_key(self.name)[:12]


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    physical: str
    type: Any


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A version of a table.

    For files with deletion vectors, `kept` has a flag per row; false means deleted. Rows beyond the
    last flag are not deleted.
    """

    version: int
    columns: tuple[Column, ...]
    files: tuple[StoredFile, ...]  # newest first
    kept: "Mapping[Path, pa.BooleanArray]"

    @cached_property
    def rows(self) -> int | None:
        rows = [file.rows for file in self.files if file.rows is not None]
        if len(rows) < len(self.files):
            return None
        return sum(rows) - sum(int(flags.false_count) for flags in self.kept.values())

    def scan(
        self,
        columns: Sequence[Column],
        *,
        at_once: int,
        start: tuple[tuple[int, str], int] | None = None,
    ) -> Iterator[tuple[StoredFile, int, dict[str, Any]]]:
        """Rows of all files, newest file first, with their file and position.

        At most `at_once` rows are in memory; `start` is the `order` of a file and a position in it.
        """
        for file in self.files:
            skip = 0
            if start is not None:
                if file.order > start[0]:
                    continue
                skip = start[1] if file.order == start[0] else 0
            for position, row in self.read(file, columns, at_once=at_once, skip=skip):
                yield file, position, row

    def read(
        self, file: StoredFile, columns: Sequence[Column], *, at_once: int, skip: int = 0
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows of one file that are not deleted, with their positions from `skip` on."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        flags = self.kept.get(file.path)
        position = 0
        try:
            with pq.ParquetFile(
                file.path, buffer_size=_BUFFER, pre_buffer=False, coerce_int96_timestamp_unit="us"
            ) as source:
                stored = set(source.schema_arrow.names)
                names = [column.physical for column in columns if column.physical in stored]
                for batch in source.iter_batches(at_once, columns=names, use_threads=False):
                    if position + batch.num_rows <= skip:
                        position += batch.num_rows
                        continue
                    kept = (
                        () if flags is None else flags.slice(position, batch.num_rows).to_pylist()
                    )
                    for number, values in enumerate(_values(batch)):
                        at = position + number
                        if at < skip or (number < len(kept) and not kept[number]):
                            continue
                        yield at, _row(values, columns, file.partition)
                    position += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise SpecError(
                "TABLE_NOT_READABLE",
                f"the file {file.name} of the table cannot be read: {type(error).__name__}",
                hint="it may have been rewritten and deleted concurrently: try again",
            ) from error


def _row(
    values: Mapping[str, Any], columns: Sequence[Column], partition: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        column.name: _renamed(values[column.physical], column.type)
        if column.physical in values
        else partition.get(column.physical, partition.get(column.name))
        for column in columns
    }


def _values(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch; all times are numbers if Python cannot represent one of them."""
    import pyarrow as pa

    def numeric(kind: Any) -> Any:
        if pa.types.is_date(kind):
            return pa.int32()
        if pa.types.is_timestamp(kind):
            return pa.int64()
        if pa.types.is_map(kind):
            return pa.map_(numeric(kind.key_type), numeric(kind.item_type))
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(numeric(kind.value_type)))
        if pa.types.is_struct(kind):
            return pa.struct([field.with_type(numeric(field.type)) for field in kind])
        return kind

    try:
        return list(batch.to_pylist())
    except OverflowError:
        fields = [field.with_type(numeric(field.type)) for field in batch.schema]
        return list(batch.cast(pa.schema(fields)).to_pylist())


def _time_text(value: int, kind: str) -> str:
    """Format days or microseconds since 1970 in ISO 8601; supports all years."""
    days, micros = (value, 0) if kind == "date" else divmod(value, _MICROS_OF_DAY)
    cycles, rest = divmod(days, _DAYS_OF_400_YEARS)  # after which the calendar repeats itself
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=rest, microseconds=micros)
    year = at.year + 400 * cycles
    text = at.date().isoformat() if kind == "date" else at.replace(tzinfo=None).isoformat(" ")
    zone = "+00:00" if kind == "timestamp" else ""
    return (f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}") + text[4:] + zone


def _renamed(value: Any, kind: Any) -> Any:
    if isinstance(value, int) and kind in _TIMES:
        return _time_text(value, kind)
    if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # INT96 has no zone
    if value is None or not isinstance(kind, Mapping):
        return value
    match kind.get("type"):
        case "struct" if isinstance(value, Mapping):
            return {
                field["name"]: _renamed(value.get(_physical(field)), field["type"])
                for field in kind["fields"]
            }
        case "array":
            return [_renamed(element, kind["elementType"]) for element in value]
        case "map":
            pairs = value.items() if isinstance(value, Mapping) else value
            return [
                (_renamed(key, kind["keyType"]), _renamed(item, kind["valueType"]))
                for key, item in pairs
            ]
    return value


def _physical(field: Mapping[str, Any]) -> str:
    name = (field.get("metadata") or {}).get("delta.columnMapping.physicalName")
    return str(name or field["name"])


class StoredTable:
    """A table on a local disk. Thread-safe."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._table: Any = None
        self._snapshot: Snapshot | None = None
        self._newest: tuple[int, int] | None = None
        self._rests_until = 0.0
        self.commits = Commits(path)

    def snapshot(self, *, rests: bool = False) -> Snapshot:
        """The newest version.

        With `rests`, repeated calls may return an older one for ten times as long as a read of the
        log took.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        with self._lock:
            started = self._monotonic()
            if rests and self._snapshot is not None and started < self._rests_until:
                return self._snapshot
            try:
                if self._table is not None and self._newest_commit() != self._newest:
                    # The table was recreated: delta-rs would read only later versions.
                    self._table = self._snapshot = None
                    self.commits = Commits(self.path)
                if self._table is None:
                    self._table = DeltaTable(str(self.path))
                else:
                    self._table.update_incremental()
                known = self._snapshot
                if known is None or known.version != self._table.version():
                    self._snapshot = None
                    self._snapshot = known = self._read()
                    self._newest = self._newest_commit()
            except SpecError:
                self._table = None
                raise
            except (DeltaError, OSError, ValueError) as error:
                self._table = None
                is_missing = isinstance(error, TableNotFoundError)
                if is_missing or not (self.path / "_delta_log").is_dir():
                    raise SpecError("TABLE_NOT_FOUND", "the table is not written yet") from error
                raise _refused(f"delta-rs cannot read it ({type(error).__name__})") from error
            now = self._monotonic()
            self._rests_until = now + _REST * (now - started)
            return known

    def _newest_commit(self) -> tuple[int, int] | None:
        """Identity of the file of the known version, which changes if the file is replaced."""
        try:
            stat = (self.path / "_delta_log" / commit_file(self._table.version())).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _read(self) -> Snapshot:
        mode = self._check_features()
        columns = tuple(
            Column(
                name=field["name"],
                physical=_physical(field) if mode == "name" else field["name"],
                type=field["type"],
            )
            for field in json.loads(self._table.schema().to_json())["fields"]
        )
        actions = self._table.get_add_actions()
        listed = zip(*(actions.column(name).to_pylist() for name in _LISTED), strict=True)
        partitions: list[Mapping[str, Any] | None] = [None] * actions.num_rows
        if "partition" in actions.schema.names:
            partitions = actions.column("partition").to_pylist()
        files = [
            StoredFile(
                path=self._file_path(name),
                name=name,
                rows=rows,
                size=int(size or 0),
                at=int(at or 0),
                partition=partition or {},
            )
            for (name, rows, size, at), partition in zip(listed, partitions, strict=True)
        ]
        return Snapshot(
            version=self._table.version(),
            columns=columns,
            files=tuple(sorted(files, key=lambda file: file.order, reverse=True)),
            kept=self._kept(files),
        )

    def _check_features(self) -> str:
        protocol = self._table.protocol()
        unknown = sorted({*(protocol.reader_features or ())} - _KNOWN_FEATURES)
        if unknown:
            raise _refused(f"it uses {', '.join(unknown)}")
        configuration = self._table.metadata().configuration
        mode = str(configuration.get("delta.columnMapping.mode", "none"))
        if mode not in ("none", "name"):
            raise _refused(f"it uses column mapping by {mode}")
        return mode

    def _file_path(self, name: str) -> Path:
        parts = unquote(name).split("/")
        if urlsplit(name).scheme or name.startswith("/") or ".." in parts:
            raise _refused("it uses files outside of its folder")
        return self.path.joinpath(*parts)

    def _kept(self, files: Sequence[StoredFile]) -> "dict[Path, pa.BooleanArray]":
        import pyarrow as pa

        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return {}
        if sum(file.rows or 0 for file in files) > _MOST_ROWS_WITH_VECTORS:
            raise _refused("it uses deletion vectors, and has too many rows for that")
        known = {str(file.path): file.path for file in files}
        kept: dict[Path, pa.BooleanArray] = {}
        for batch in pa.RecordBatchReader.from_stream(self._table.deletion_vectors()):
            flags = batch.column("selection_vector")
            for number, uri in enumerate(batch.column("filepath").to_pylist()):
                path = known.get(unquote(urlsplit(uri).path)) or known.get(urlsplit(uri).path)
                if path is None:
                    raise _refused("it uses deletion vectors of unknown files")
                kept[path] = flags[number].values
        return kept


def _refused(reason: str) -> SpecError:
    return SpecError("TABLE_NOT_READABLE", f"{REFUSED}{reason}", hint="read it with Spark")
