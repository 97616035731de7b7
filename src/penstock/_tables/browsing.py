"""Rows of a pipeline's tables for people who look: some of them, with secrets masked.

Whatever is asked for, the work of one answer and its size are bounded; a long search is continued
by asking again. Texts are searched as they are shown, so that nobody finds a secret by guessing.
"""

import json
import math
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock._model.name import DatasetName
from penstock._observe.masking import masked_values, shown
from penstock._tables.browsing_versions import description, newest_versions, read_commit
from penstock._tables.files import local_path
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, segment_name
from penstock._tables.row_selection import row_id
from penstock._tables.stored_table import Column, Snapshot, StoredFile, StoredTable
from penstock.errors import SpecError

FAILED_RULES, ROW, SOURCE = "_failed_rules", "_row", "_source"

_MAX_COLUMNS = 200
_MAX_CELL = 400
_MAX_PAYLOAD = 16_000
_MAX_READ = 64_000
_MAX_BODY = 512_000
_MAX_DEPTH = 12
_MAX_ITEMS = 500
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
_MAX_COMMITS = 500
_READERS = 2
# Greater ones are not exact in a browser.
_EXACT = 1 << 53
_CURSOR = re.compile(r"(\d{1,15})-([0-9a-f]{12})-(\d{1,12})")


@dataclass(frozen=True)
class _Commit:
    """The commit that brought a file."""

    version: int
    at: int
    flow: str
    batch_id: int | None


class TableBrowser:
    """Looks into the tables below a storage root on this machine. Any thread may call.

    All answers are plain values for JSON.

    Args:
        root: The storage root, a URI or path.
        trusts_paths: Whether tables may lie elsewhere, where the event log says so. Not for logs
            that may come from somebody else.
        monotonic: The clock of the bounds.
    """

    def __init__(
        self,
        root: str,
        *,
        trusts_paths: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = StorageLayout(root)
        self._root = local_path(self._layout.root)
        self._trusts_paths = trusts_paths
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._readers = threading.BoundedSemaphore(_READERS)
        self._tables: OrderedDict[Path, StoredTable] = OrderedDict()
        self._counted: OrderedDict[Path, tuple[int, Counter[str]]] = OrderedDict()
        self._commits: OrderedDict[Path, _Commits] = OrderedDict()

    def preview(self, dataset: str, path: str | None, *, limit: int) -> dict[str, Any]:
        """Some rows of a table, those of its newest files first.

        Args:
            dataset: Its resolved name.
            path: Where the event log says that it lies.
            limit: How many rows at most.

        Returns:
            `columns` with `name` and `type`, `rows` of texts (or null), `version`, `total` (null
            if unknown), `more_columns`: how many are left out.

        Raises:
            SpecError: `TABLE_NOT_FOUND`, `TABLE_NOT_READABLE`.
        """
        with self._readers:
            found = self._table(self._place(dataset, path)).snapshot()
            columns = found.columns[:_MAX_COLUMNS]
            rows: list[list[str | None]] = []
            size = 0
            for values in _rows(found, columns, at_once=_PREVIEW_AT_ONCE):
                cells = [_cell(one) for one in masked_values(_plain_row(values)).values()]
                size += sum(len(cell) for cell in cells if cell is not None)
                if rows and size > _MAX_BODY:
                    break
                rows.append(cells)
                if len(rows) == limit:
                    break
            return {
                "version": found.version,
                "total": found.rows,
                "columns": [{"name": one.name, "type": _type_text(one.type)} for one in columns],
                "more_columns": len(found.columns) - len(columns),
                "rows": rows,
            }

    def table(self, dataset: str, path: str | None) -> dict[str, Any]:
        """Files and versions of a table, from its log.

        Args:
            dataset: Its resolved name.
            path: Where the event log says that it lies.

        Returns:
            `version`; `files`, `bytes` and `small_files` (those below 16 MiB) of that version;
            `advice`: what to do where many small files make reading slow, else null; `versions`:
            the newest ones, newest first, with `version`, `at` (in milliseconds), `operation`,
            `flow`, `batch_id`, `files_added`, `files_removed` and `rows` (added, null if unknown).

        Raises:
            SpecError: `TABLE_NOT_FOUND`, `TABLE_NOT_READABLE`.
        """
        place = self._place(dataset, path)
        with self._readers:
            found = self._table(place).snapshot(rests=True)
            assert place is not None
            small = sum(file.size < _SMALL_FILE for file in found.files)
            size = sum(file.size for file in found.files)
            return {
                "version": found.version,
                "files": len(found.files),
                "bytes": size,
                "small_files": small,
                "advice": _advice(small, size),
                "versions": newest_versions(place / "_delta_log", found.version),
            }

    def quarantines(self, paths: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Every table that has a quarantine, by name.

        Args:
            paths: Where the event log says that the datasets lie; `None` where it does not.

        Returns:
            `dataset`, `rows` (null if unknown), `counted` (how many of them `rules` is about),
            `rules`: how many of those broke each rule, and `newest`, in milliseconds; or a
            `problem` instead.
        """
        names = {name: self._place(name, path) for name, path in paths.items()}
        for name in self._stored():
            names.setdefault(name, self._place(name, None))
        until = self._monotonic() + _COUNT_SECONDS
        found = []
        for name, place in sorted(names.items()):
            folder = _quarantine_of(place)
            if folder is None or not (folder / "_delta_log").is_dir():
                continue
            try:
                with self._readers:
                    found.append({"dataset": name, **self._summary(folder, until)})
            except SpecError as error:
                found.append({"dataset": name, "problem": _problem(error)})
        return found

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
        """Rows in quarantine, those of the newest batch first.

        Args:
            dataset: Resolved name of the table.
            path: Where the event log says that it lies.
            search: Only rows with this in their values, their source or their rules, in any case.
            rule: Only rows that broke this rule.
            before: Only what comes after a place, from `next` of an earlier answer.
            limit: How many at most.

        Returns:
            `rows` with `id` (as `RowSelection` takes it), `rules`, `row` (its values as JSON
            text), `is_cut`, `source`, `at` (of the commit, in milliseconds), `flow`, `batch_id` and
            `version` (null if the commit is gone or not ours); `searched`: how many were looked
            at; `next`: the place to go on from, null at the end; `total`.

        Raises:
            SpecError: `TABLE_NOT_FOUND`, `TABLE_NOT_READABLE`.
            ValueError: `before` is no place.
        """
        start = _cursor(before)
        folder = _quarantine_of(self._place(dataset, path))
        if folder is None:
            raise _no_place()
        with self._readers:
            found = self._table(folder).snapshot()
            columns = _reason_columns(found)
            until = self._monotonic() + _SEARCH_SECONDS
            wanted = search.casefold()
            rows: list[dict[str, Any]] = []
            files: list[StoredFile] = []
            searched = size = 0
            place: str | None = None
            for file, position, values in _from(found, columns, start):
                is_late = searched > 0 and self._monotonic() > until
                if len(rows) >= limit or size > _MAX_BODY or is_late:
                    at, digest = file.order
                    place = f"{at}-{digest}-{position}"
                    break
                searched += 1
                broken = [str(one) for one in values.get(FAILED_RULES) or ()]
                if rule and rule not in map(_shown_rule, broken):
                    continue
                item = _item(broken, values)
                if wanted and not _has(item, wanted):
                    continue
                item["id"] = row_id(file.name, position)
                item["is_cut"] = len(item["row"]) > _MAX_PAYLOAD
                item["row"] = item["row"][:_MAX_PAYLOAD]
                size += len(item["row"])
                rows.append(item)
                files.append(file)
            commits = self._commits_of(folder, found.version, files)
            for item, file in zip(rows, files, strict=True):
                commit = commits.get(file.name)
                item["at"] = commit.at if commit is not None else file.at
                item["flow"] = commit.flow if commit is not None else ""
                item["batch_id"] = commit.batch_id if commit is not None else None
                item["version"] = commit.version if commit is not None else None
            return {"total": found.rows, "searched": searched, "next": place, "rows": rows}

    # -- where tables are ------------------------------------------------------------------------

    def _place(self, dataset: str, path: str | None) -> Path | None:
        """The folder of a table; `None` where it may not or cannot be looked at."""
        parts = dataset.split(".")
        plain = None
        if self._root is not None and len(parts) == 3:
            plain = local_path(self._layout.table_path(DatasetName(*parts)))
        if path is None or (plain is not None and (plain / "_delta_log").is_dir()):
            return plain
        told = local_path(path)
        if told is None or self._trusts_paths:
            return told
        is_below = self._root is not None and told.resolve().is_relative_to(self._root.resolve())
        return told if is_below else plain

    def _stored(self) -> Iterator[str]:
        """Datasets below the root that have a quarantine, whether the pipeline has them or not."""
        if self._root is None:
            return
        for log in self._root.glob(f"tables/*/*/*{QUARANTINE_SUFFIX}/_delta_log"):
            *_, catalog, schema, name = log.parent.parts
            found = [segment_name(part) for part in (catalog, schema, name)]
            found[-1] = found[-1].removesuffix(QUARANTINE_SUFFIX)
            if not any("." in part for part in found):
                yield ".".join(found)

    def _table(self, place: Path | None) -> StoredTable:
        if place is None:
            raise _no_place()
        with self._lock:
            table = self._tables.get(place)
            if table is None:
                table = self._tables[place] = StoredTable(place, monotonic=self._monotonic)
            self._tables.move_to_end(place)
            while len(self._tables) > _MAX_TABLES:
                self._tables.popitem(last=False)
            return table

    # -- what is counted -------------------------------------------------------------------------

    def _summary(self, folder: Path, until: float) -> dict[str, Any]:
        found = self._table(folder).snapshot(rests=True)
        rules: Counter[str] = Counter()
        counted = 0
        for file in found.files:
            known = self._counted.get(file.path)
            if known is None or file.path in found.kept:
                if self._monotonic() > until:
                    continue
                known = _count(found, file)
                self._remember(file.path, known)
            counted += known[0]
            rules.update(known[1])
        return {
            "rows": found.rows,
            "counted": counted,
            "rules": {_shown_rule(name): rows for name, rows in rules.most_common()},
            "newest": found.files[0].at if found.files else None,
        }

    def _remember(self, path: Path, counts: tuple[int, Counter[str]]) -> None:
        with self._lock:
            self._counted[path] = counts
            while len(self._counted) > _MAX_COUNTED_FILES:
                self._counted.popitem(last=False)

    def _commits_of(
        self, folder: Path, version: int, files: list[StoredFile]
    ) -> Mapping[str, _Commit]:
        if not files:
            return {}
        with self._lock:
            found = self._commits.setdefault(folder, _Commits(folder / "_delta_log"))
            self._commits.move_to_end(folder)
            while len(self._commits) > _MAX_TABLES:
                self._commits.popitem(last=False)
        return found.of({file.name for file in files}, version)


class _Commits:
    """Which commit added which file; read from the newest one back, as far as it is asked for."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._found: dict[str, _Commit] = {}
        self._newest = -1
        self._oldest = 0

    def of(self, names: set[str], version: int) -> Mapping[str, _Commit]:
        """Commits by file, those that are known; at most some hundred are read."""
        with self._lock:
            if self._newest < 0:
                self._newest, self._oldest = version, version + 1
            # As it grew meanwhile; if by very much, only its newest part counts.
            if version - self._newest > _MAX_COMMITS:
                self._found, self._newest, self._oldest = {}, version, version + 1
            for number in range(self._newest + 1, version + 1):
                self._read(number)
            self._newest = max(self._newest, version)
            read = 0
            while read < _MAX_COMMITS and self._oldest > 0 and not names <= self._found.keys():
                self._oldest -= 1
                read += 1
                self._read(self._oldest)
            return dict(self._found)

    def _read(self, number: int) -> None:
        actions = read_commit(self._log, number)
        if actions is None:
            return  # cleaned up
        made = description(number, actions)
        commit = _Commit(
            version=number, at=made["at"], flow=made["flow"], batch_id=made["batch_id"]
        )
        for one in actions:
            if "add" in one:
                self._found[one["add"]["path"]] = commit


def _advice(small: int, size: int) -> str | None:
    """Whether merging files would pay: there are many, and few large ones would do."""
    if small < _MANY_FILES or small < 4 * (1 + size // _GOOD_FILE):
        return None
    return (
        f"{small:,} files are below 16 MiB: each query opens them all. OPTIMIZE merges them; "
        "longer triggers make fewer of them"
    )


# -- rows ------------------------------------------------------------------------------------------


def _rows(
    found: Snapshot, columns: tuple[Column, ...], *, at_once: int
) -> Iterator[dict[str, Any]]:
    for file in found.files:
        for _, values in found.read(file, columns, at_once=at_once):
            yield values


def _from(
    found: Snapshot, columns: list[Column], start: tuple[tuple[int, str], int] | None
) -> Iterator[tuple[StoredFile, int, dict[str, Any]]]:
    for file in found.files:
        skip = 0
        if start is not None:
            if file.order > start[0]:
                continue
            skip = start[1] if file.order == start[0] else 0
        for at, values in found.read(file, columns, at_once=_SEARCH_AT_ONCE, skip=skip):
            yield file, at, values


def _count(found: Snapshot, file: StoredFile) -> tuple[int, Counter[str]]:
    rules: Counter[str] = Counter()
    rows = 0
    columns = [one for one in found.columns if one.name == FAILED_RULES]
    for _, values in found.read(file, columns, at_once=_COUNT_AT_ONCE):
        rows += 1
        rules.update(values.get(FAILED_RULES) or ())
    return rows, rules


def _reason_columns(found: Snapshot) -> list[Column]:
    columns = [one for one in found.columns if one.name in (FAILED_RULES, ROW, SOURCE)]
    if {FAILED_RULES, ROW} - {one.name for one in columns}:
        raise SpecError(
            "TABLE_NOT_READABLE", "the table has not the columns of a quarantine", hint="drop it"
        )
    return columns


def _item(broken: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    row, source = values.get(ROW), values.get(SOURCE)
    texts = {
        "row": str(row if row is not None else "")[:_MAX_READ],
        "source": str(source)[:_MAX_CELL] if source is not None else None,
    }
    # Rules by themselves: one may be called like a secret.
    return {"rules": [_shown_rule(one) for one in broken], **masked_values(texts)}


def _has(item: Mapping[str, Any], wanted: str) -> bool:
    texts = (item["row"], item["source"] or "", *item["rules"])
    return any(wanted in text.casefold() for text in texts)


@lru_cache(maxsize=4096)
def _shown_rule(name: str) -> str:
    return shown(name)


def _cursor(text: str) -> tuple[tuple[int, str], int] | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise ValueError("not a place in a quarantine")
    return (int(found[1]), found[2]), int(found[3])


def _quarantine_of(place: Path | None) -> Path | None:
    return None if place is None else place.with_name(place.name + QUARANTINE_SUFFIX)


def _no_place() -> SpecError:
    return SpecError(
        "TABLE_NOT_READABLE",
        "the table is not on this machine, or not below the storage that this page knows",
        hint="`penstock preview` reads tables elsewhere",
    )


def _problem(error: SpecError) -> dict[str, str]:
    return {"message": shown(error.message), "hint": shown(error.hint or "")}


# -- values ----------------------------------------------------------------------------------------


def _plain_row(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(one, 0) for name, one in values.items()}


def _plain(value: Any, depth: int) -> Any:
    """A value for JSON, of bounded size."""
    match value:
        case None | bool():
            return value
        case int():
            return value if -_EXACT <= value <= _EXACT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value[:_MAX_READ]
        case bytes():
            return _bytes_text(value[:_MAX_READ])
        case _ if depth >= _MAX_DEPTH:
            return "…"
        case dict():
            return {
                str(key): _plain(one, depth + 1)
                for _, (key, one) in zip(range(_MAX_ITEMS), value.items(), strict=False)
            }
        case list() | tuple():
            return [_plain(one, depth + 1) for one in value[:_MAX_ITEMS]]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _bytes_text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() or text.isspace() else "0x" + value.hex()


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"


def _type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", ""))
