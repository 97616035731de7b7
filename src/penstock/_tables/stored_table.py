"""A Delta table as files, read without Spark: no JVM, no lease, also while an update writes.

delta-rs reads the log, pyarrow the files, newest first and no more of them than asked for. Deletion
vectors and column mapping by name are applied; what cannot be read right is refused in words.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock._tables.row_selection import file_key
from penstock.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

# Others change what the files mean, or are not known here.
_KNOWN_FEATURES = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"),
        *("typeWidening", "typeWidening-preview", "vacuumProtocolCheck"),
    }
)
# Deletion vectors come as one flag per row, of all files that have some.
_MOST_ROWS_WITH_VECTORS = 200_000_000
_BUFFER = 1 << 20
_REST = 10.0


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of a table's newest version.

    Attributes:
        path: Where it lies.
        name: As the log names it.
        rows: Rows in it, deleted ones included; `None` if the log does not say.
        size: Its bytes.
        at: When it was written, in milliseconds since the epoch.
        partition: Values of the partition columns.
    """

    path: Path
    name: str
    rows: int | None
    size: int
    at: int
    partition: Mapping[str, Any]

    @cached_property
    def order(self) -> tuple[int, str]:
        """Newer files have a greater one; a file keeps its own for ever."""
        return self.at, file_key(self.name)[:12]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: As queries know it.
        physical: As the files call it.
        type: As in the table's schema: a name, or a mapping.
    """

    name: str
    physical: str
    type: Any


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A version of a table.

    Attributes:
        version: Its number.
        columns: In order.
        files: Newest first.
        kept: Of files with deletion vectors, by path: which rows are there, a bit for each; those
            beyond its end are.
    """

    version: int
    columns: tuple[Column, ...]
    files: tuple[StoredFile, ...]
    kept: "Mapping[Path, pa.BooleanArray]"

    @cached_property
    def rows(self) -> int | None:
        """Rows of the table; `None` if its log does not say."""
        total = 0
        for file in self.files:
            if file.rows is None:
                return None
            flags = self.kept.get(file.path)
            total += file.rows - (0 if flags is None else flags.false_count)
        return total

    def read(
        self, file: StoredFile, columns: Sequence[Column], *, at_once: int, skip: int = 0
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows of a file that are not deleted, by their positions in it.

        Args:
            file: One of `files`.
            columns: What is read; a column that the file does not have is `None`.
            at_once: How many rows are in memory at a time.
            skip: How many rows of the file are passed over.

        Raises:
            SpecError: `TABLE_NOT_READABLE`: the file is gone or broken.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        flags = self.kept.get(file.path)
        position = 0
        try:
            with pq.ParquetFile(
                file.path,
                buffer_size=_BUFFER,
                pre_buffer=False,
                coerce_int96_timestamp_unit="us",
            ) as source:
                known = set(source.schema_arrow.names)
                stored = [one for one in columns if one.physical in known]
                batches = source.iter_batches(
                    at_once, columns=[one.physical for one in stored], use_threads=False
                )
                for batch in batches:
                    if position + batch.num_rows <= skip:
                        position += batch.num_rows
                        continue
                    there = (
                        () if flags is None else flags.slice(position, batch.num_rows).to_pylist()
                    )
                    for number, values in enumerate(batch.to_pylist()):
                        at = position + number
                        if at < skip or (number < len(there) and not there[number]):
                            continue
                        yield at, _row(values, columns, file.partition)
                    position += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise SpecError(
                "TABLE_NOT_READABLE",
                f"the file {file.name} of the table cannot be read: {type(error).__name__}",
                hint="it may have been rewritten and removed just now: try again",
            ) from error


def _row(
    values: Mapping[str, Any], columns: Sequence[Column], partition: Mapping[str, Any]
) -> dict[str, Any]:
    row = {}
    for one in columns:
        if one.physical in values:
            row[one.name] = _renamed(values[one.physical], one.type)
        else:
            row[one.name] = partition.get(one.physical, partition.get(one.name))
    return row


def _renamed(value: Any, kind: Any) -> Any:
    """A value with the names that its fields have for queries, and times with their zone."""
    if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # INT96 has none
    if value is None or not isinstance(kind, Mapping):
        return value
    match kind.get("type"):
        case "struct" if isinstance(value, Mapping):
            return {
                one["name"]: _renamed(value.get(_physical(one)), one["type"])
                for one in kind["fields"]
            }
        case "array":
            return [_renamed(one, kind["elementType"]) for one in value]
        case "map":
            pairs = value.items() if isinstance(value, Mapping) else value
            return [
                (_renamed(key, kind["keyType"]), _renamed(one, kind["valueType"]))
                for key, one in pairs
            ]
    return value


def _physical(field: Mapping[str, Any]) -> str:
    name = (field.get("metadata") or {}).get("delta.columnMapping.physicalName")
    return str(name or field["name"])


class StoredTable:
    """A table on a local disk. Any thread may call.

    Args:
        path: Its folder.
        monotonic: The clock of its rests.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._table: Any = None
        self._snapshot: Snapshot | None = None
        self._newest: tuple[int, int] | None = None
        self._rests_until = 0.0

    def snapshot(self, *, rests: bool = False) -> Snapshot:
        """Its newest version.

        Args:
            rests: It may be one of some moments ago: who asks again and again gives a large table
                a pause of ten times what its log took to read.

        Raises:
            SpecError: `TABLE_NOT_FOUND`, or `TABLE_NOT_READABLE` with the reason.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        with self._lock:
            began = self._monotonic()
            if rests and self._snapshot is not None and began < self._rests_until:
                return self._snapshot
            try:
                if self._table is not None and self._newest_commit() != self._newest:
                    # Dropped and written anew: delta-rs looks for later versions only.
                    self._table = self._snapshot = None
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
            except TableNotFoundError as error:
                self._table = None
                raise SpecError("TABLE_NOT_FOUND", "the table is not written yet") from error
            except (DeltaError, OSError, ValueError) as error:
                self._table = None
                if not (self.path / "_delta_log").is_dir():
                    raise SpecError("TABLE_NOT_FOUND", "the table is not written yet") from error
                raise _refused(f"delta-rs cannot read it ({type(error).__name__})") from error
            now = self._monotonic()
            self._rests_until = now + _REST * (now - began)
            return known

    def _newest_commit(self) -> tuple[int, int] | None:
        """Tells the file of the version that is known from one that took its place."""
        try:
            found = (self.path / "_delta_log" / f"{self._table.version():020}.json").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

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
        size = actions.num_rows
        listed = {name: actions.column(name).to_pylist() for name in _LISTED}
        partitions: list[Mapping[str, Any]] = [{}] * size
        if "partition" in actions.schema.names:
            partitions = [each or {} for each in actions.column("partition").to_pylist()]
        files = [
            StoredFile(
                path=self._place(listed["path"][number]),
                name=listed["path"][number],
                rows=listed["num_records"][number],
                size=int(listed["size_bytes"][number] or 0),
                at=int(listed["modification_time"][number] or 0),
                partition=partitions[number],
            )
            for number in range(size)
        ]
        return Snapshot(
            version=self._table.version(),
            columns=columns,
            files=tuple(sorted(files, key=lambda file: file.order, reverse=True)),
            kept=self._kept(files),
        )

    def _check_features(self) -> str:
        """How its columns are mapped: `none` or `name`."""
        protocol = self._table.protocol()
        unknown = sorted({*(protocol.reader_features or ())} - _KNOWN_FEATURES)
        if unknown:
            raise _refused(f"it uses {', '.join(unknown)}")
        configuration = self._table.metadata().configuration
        mode = str(configuration.get("delta.columnMapping.mode", "none"))
        if mode not in ("none", "name"):
            raise _refused(f"it uses column mapping by {mode}")
        return mode

    def _place(self, name: str) -> Path:
        """The file of a name in the log: below the table, and nowhere else."""
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
            for number, place in enumerate(batch.column("filepath").to_pylist()):
                path = known.get(unquote(urlsplit(place).path)) or known.get(urlsplit(place).path)
                if path is None:
                    raise _refused("it uses deletion vectors of files that are not known")
                kept[path] = flags[number].values
        return kept


_LISTED = ("path", "num_records", "size_bytes", "modification_time")

REFUSED = "the table cannot be read without Spark: "
"""How messages of `TABLE_NOT_READABLE` begin that give a reason."""


def _refused(reason: str) -> SpecError:
    return SpecError(
        "TABLE_NOT_READABLE",
        f"{REFUSED}{reason}",
        hint="read it with Spark",
    )
