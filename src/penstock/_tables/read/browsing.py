"""Rows of a pipeline's tables for the dashboard, with secrets masked.

Time and size of each result are limited; a long search is continued with another call. Masked
strings are searched, so that a secret cannot be guessed.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from penstock._model.expectation import FAILED_RULES, ROW, SOURCE
from penstock._model.name import DatasetName, segment_name
from penstock._observe.masking import masked_values, shown
from penstock._tables.files import local_path
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout
from penstock._tables.read.cells import MAX_CELL, MAX_READ, cells_of, type_text
from penstock._tables.read.commit_descriptions import newest_versions
from penstock._tables.read.row_selection import row_id
from penstock._tables.read.stored_table import Column, Snapshot, StoredFile, StoredTable
from penstock.errors import SpecError

_MAX_COLUMNS = 200
_MAX_PAYLOAD = 16_000
_MAX_BODY = 512_000
_PREVIEW_AT_ONCE = 16
_SEARCH_AT_ONCE = 256
_COUNT_AT_ONCE = 16_384
_SEARCH_SECONDS = 1.0
_COUNT_SECONDS = 1.0
_MAX_COUNTED_FILES = 50_000
_SMALL_FILE = 16 << 20
_GOOD_FILE = 128 << 20
_MANY_FILES = 100
_MAX_TABLES = 64
_READERS = 2
_CURSOR = re.compile(r"(\d{1,15})-([0-9a-f]{12})-(\d{1,12})")


class TableBrowser:
    """Reads the tables below a local storage root. Thread-safe; results are JSON values.

    Methods get the resolved name of a dataset, and its path in the event log if it is known.
    """

    def __init__(
        self,
        root: str,
        *,
        trusts_paths: bool = False,  # read paths in the event log; not in untrusted logs
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = StorageLayout(root)
        self._root = local_path(self._layout.root)
        self._trusts_paths = trusts_paths
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._readers = threading.BoundedSemaphore(_READERS)
        self._tables = lru_cache(_MAX_TABLES)(partial(StoredTable, monotonic=monotonic))
        self._counted: dict[Path, tuple[int, Counter[str]]] = {}

    def preview(self, dataset: str, path: str | None, *, limit: int) -> dict[str, Any]:
        """Some rows of a table, starting with its newest files; values as strings or null.

        `total` is null if unknown; `more_columns` is the number of omitted columns.
        """
        with self._readers:
            snapshot = self._table(self._path(dataset, path)).snapshot()
            columns = snapshot.columns[:_MAX_COLUMNS]
            rows: list[list[str | None]] = []
            size = 0
            for _, _, values in snapshot.scan(columns, at_once=_PREVIEW_AT_ONCE):
                row = cells_of(values)
                size += sum(len(cell) for cell in row if cell is not None)
                if rows and size > _MAX_BODY:
                    break
                rows.append(row)
                if len(rows) == limit:
                    break
            return {
                "version": snapshot.version,
                "total": snapshot.rows,
                "columns": [{"name": c.name, "type": type_text(c.type)} for c in columns],
                "more_columns": len(snapshot.columns) - len(columns),
                "rows": rows,
            }

    def table(self, dataset: str, path: str | None) -> dict[str, Any]:
        """Files and versions of a table, newest first, from its log; see `newest_versions`.

        `small_files` is the number of files below 16 MiB; `advice` is null unless many of them make
        reads slow.
        """
        folder = self._path(dataset, path)
        with self._readers:
            table = self._table(folder)
            snapshot = table.snapshot(rests=True)
            small = sum(file.size < _SMALL_FILE for file in snapshot.files)
            size = sum(file.size for file in snapshot.files)
            return {
                "version": snapshot.version,
                "files": len(snapshot.files),
                "bytes": size,
                "small_files": small,
                "advice": _advice(small, size),
                "versions": newest_versions(table.path, snapshot.version),
            }

    def quarantines(self, paths: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Every table that has a quarantine, by name; with a `problem` if it is not readable.

        `rules` are the counts per rule of `counted` rows, `rows` is null if unknown, `newest` is in
        milliseconds.
        """
        folders = {name: self._path(name, path) for name, path in paths.items()}
        for name in self._stored():
            folders.setdefault(name, self._path(name, None))
        until = self._monotonic() + _COUNT_SECONDS
        summaries = []
        for name, table in sorted(folders.items()):
            folder = _quarantine_of(table)
            if folder is None or not (folder / "_delta_log").is_dir():
                continue
            try:
                with self._readers:
                    summaries.append({"dataset": name, **self._summary(folder, until)})
            except SpecError as error:
                if error.condition == "QUARANTINE_NOT_FOUND":
                    continue
                problem = {"message": shown(error.message), "hint": shown(error.hint or "")}
                summaries.append({"dataset": name, "problem": problem})
        return summaries

    def quarantine(
        self,
        dataset: str,
        path: str | None,
        *,
        search: str = "",
        rule: str = "",
        before: str = "",
        limit: int,
    ) -> dict[str, Any]:
        """Rows in quarantine, newest batch first.

        `search` filters by values, source and rules, ignoring case; `before` is `next` of an
        earlier result. Rows have an `id` (see `RowSelection`), `row` (a JSON string) and the commit
        that wrote them, whose `version` is null if it was deleted or is not Penstock's. `searched`
        is the number of rows read, `next` is null at the end. Raises `ValueError` for an invalid
        `before`.
        """
        start = _cursor(before)
        folder = _quarantine_of(self._path(dataset, path))
        with self._readers:
            table = self._table(folder)
            snapshot = table.snapshot()
            columns = _reason_columns(snapshot)
            until = self._monotonic() + _SEARCH_SECONDS
            text = search.casefold()
            rows: list[dict[str, Any]] = []
            files: list[StoredFile] = []
            searched = size = 0
            following: str | None = None
            scan = snapshot.scan(columns, at_once=_SEARCH_AT_ONCE, start=start)
            for file, position, values in scan:
                is_late = searched > 0 and self._monotonic() > until
                if len(rows) >= limit or size > _MAX_BODY or is_late:
                    at, digest = file.order
                    following = f"{at}-{digest}-{position}"
                    break
                searched += 1
                broken = [str(name) for name in values.get(FAILED_RULES) or ()]
                if rule and rule not in map(_shown_rule, broken):
                    continue
                item = _item(broken, values)
                texts = (item["row"], item["source"] or "", *item["rules"])
                if text and not any(text in each.casefold() for each in texts):
                    continue
                item["id"] = row_id(file.name, position)
                item["is_cut"] = len(item["row"]) > _MAX_PAYLOAD
                item["row"] = item["row"][:_MAX_PAYLOAD]
                size += len(item["row"])
                rows.append(item)
                files.append(file)
            names = {file.name for file in files}
            commits = table.commits.of(names, snapshot.version) if files else {}
            for item, file in zip(rows, files, strict=True):
                commit = commits.get(file.name, {"at": file.at, "flow": ""})
                item |= {key: commit.get(key) for key in ("at", "flow", "batch_id", "version")}
            return {"total": snapshot.rows, "searched": searched, "next": following, "rows": rows}

    # -- paths of tables -------------------------------------------------------------------------

    def _path(self, dataset: str, path: str | None) -> Path | None:
        parts = dataset.split(".")
        default = None
        if self._root is not None and len(parts) == 3:
            default = local_path(self._layout.table_path(DatasetName(*parts)))
        if path is None or (default is not None and (default / "_delta_log").is_dir()):
            return default
        logged = local_path(path)
        if logged is None or self._trusts_paths:
            return logged
        is_below = self._root is not None and logged.resolve().is_relative_to(self._root.resolve())
        return logged if is_below else default

    def _stored(self) -> Iterator[str]:
        if self._root is None:
            return
        for log in self._root.glob(f"tables/*/*/*{QUARANTINE_SUFFIX}/_delta_log"):
            parts = [segment_name(part) for part in log.parent.parts[-3:]]
            parts[-1] = parts[-1].removesuffix(QUARANTINE_SUFFIX)
            if not any("." in part for part in parts):
                yield ".".join(parts)

    def _table(self, folder: Path | None) -> StoredTable:
        if folder is None:
            raise _not_local()
        return self._tables(folder)

    # -- counts ---------------------------------------------------------------------------------

    def _summary(self, folder: Path, until: float) -> dict[str, Any]:
        snapshot = self._table(folder).snapshot(rests=True)
        rules: Counter[str] = Counter()
        counted = 0
        for file in snapshot.files:
            known = self._counted.get(file.path)
            if known is None or file.path in snapshot.kept:
                if self._monotonic() > until:
                    continue
                known = _count(snapshot, file)
                with self._lock:
                    self._counted[file.path] = known
                    if len(self._counted) > _MAX_COUNTED_FILES:
                        del self._counted[next(iter(self._counted))]
            counted += known[0]
            rules.update(known[1])
        return {
            "rows": snapshot.rows,
            "counted": counted,
            "rules": {_shown_rule(name): rows for name, rows in rules.most_common()},
            "newest": snapshot.files[0].at if snapshot.files else None,
        }


def _advice(small: int, size: int) -> str | None:
    if small < _MANY_FILES or small < 4 * (1 + size // _GOOD_FILE):
        return None
    return (
        f"{small:,} files are below 16 MiB: each query opens them all. OPTIMIZE compacts them; "
        "a longer trigger interval writes fewer files"
    )


# -- rows ------------------------------------------------------------------------------------------


def _count(snapshot: Snapshot, file: StoredFile) -> tuple[int, Counter[str]]:
    rules: Counter[str] = Counter()
    rows = 0
    columns = [column for column in snapshot.columns if column.name == FAILED_RULES]
    for _, values in snapshot.read(file, columns, at_once=_COUNT_AT_ONCE):
        rows += 1
        rules.update(values.get(FAILED_RULES) or ())
    return rows, rules


def _reason_columns(snapshot: Snapshot) -> list[Column]:
    columns = [c for c in snapshot.columns if c.name in (FAILED_RULES, ROW, SOURCE)]
    if {FAILED_RULES, ROW} - {column.name for column in columns}:
        raise SpecError(
            "QUARANTINE_NOT_FOUND",
            "the table of this name has no columns of a quarantine: the pipeline declares it",
        )
    return columns


def _item(broken: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    row, source = values.get(ROW), values.get(SOURCE)
    texts = {
        "row": str(row if row is not None else "")[:MAX_READ],
        "source": str(source)[:MAX_CELL] if source is not None else None,
    }
    # Masked one by one: the name of a rule may look like a secret.
    return {"rules": [_shown_rule(name) for name in broken], **masked_values(texts)}


@lru_cache(maxsize=4096)
def _shown_rule(name: str) -> str:
    return shown(name)


def _cursor(text: str) -> tuple[tuple[int, str], int] | None:
    if not text:
        return None
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise ValueError("not a position in a quarantine")
    return (int(match[1]), match[2]), int(match[3])


def _quarantine_of(table: Path | None) -> Path | None:
    return None if table is None else table.with_name(table.name + QUARANTINE_SUFFIX)


def _not_local() -> SpecError:
    return SpecError(
        "TABLE_NOT_READABLE",
        "the table is not on this machine, or not below the storage of this dashboard",
        hint="`penstock preview` reads tables elsewhere",
    )
