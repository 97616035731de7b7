"""Finds missing and truncated files in the log of a table, and lost commits of flows.

Delta treats the newest existing file as the newest version, and does not read commits that have a
checksum file. So a lost commit causes no error, and a truncated one only after further commits.

The messages are used when a flow starts, and by `penstock checkpoint doctor`.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, NotedCommit
from penstock._tables.commits import actions_of
from penstock._tables.files import commit_file, local_path
from penstock._tables.layout import TableRef
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock._tables.delta_log import DeltaJvm

_LOG_FOLDER = "_delta_log"
_WHOLE_BYTES = 4_000_000
"""Of larger commits, such as compactions, only the first and the last line are parsed."""
_COMMIT_LENGTH = 25
_SHOWN = 400
_TABLES = {TARGET: "", QUARANTINE: "the quarantine of ", CDC_STATE: "the CDC state of "}
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..+")


@dataclass(frozen=True, kw_only=True)
class TableLog:
    newest: int | None  # the newest version with a file; None for an empty folder
    problem: str = ""  # empty if the log is intact
    file: str = ""  # the damaged or missing file


def torn(text: str) -> str:
    """The damage of a commit's content; empty if every line is an action."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return "is empty"
    numbered = list(enumerate(lines, 1))
    for number, line in numbered if len(text) <= _WHOLE_BYTES else (numbered[0], numbered[-1]):
        try:
            is_action = isinstance(json.loads(line), dict)
        except ValueError:
            is_action = False
        if not is_action:
            return f"is truncated or damaged: line {number} of {len(lines)} is not JSON"
    return ""


def log_of(
    names: Iterable[str],
    read: Callable[[str], str],
    exists: Callable[[str], bool] = lambda _: False,
) -> TableLog:
    """Check the listing of a log, and the content of its newest commit.

    `exists` is called for missing files: the listing may be incomplete due to concurrent commits.
    """
    commits: set[int] = set()
    checkpoint = -1
    for name in names:
        if len(name) == _COMMIT_LENGTH and name[:20].isdecimal() and name.endswith(".json"):
            commits.add(int(name[:20]))
        elif ".checkpoint." in name and (match := _CHECKPOINT.fullmatch(name)):
            checkpoint = max(checkpoint, int(match[1]))
    if not commits:
        # After log cleanup, there may be only a checkpoint.
        return TableLog(newest=checkpoint if checkpoint >= 0 else None)
    newest = max(commits)
    first = checkpoint + 1 if checkpoint >= 0 else 0
    missing = (at for at in range(first, newest) if at not in commits)
    gap = next((at for at in missing if not exists(commit_file(at))), None)
    if gap is not None:
        file = commit_file(gap)
        return TableLog(newest=newest, problem="is missing, but newer ones exist", file=file)
    file = commit_file(newest)
    problem = torn(read(file))
    return TableLog(newest=max(newest, checkpoint), problem=problem, file=file if problem else "")


def local_log(table: str) -> TableLog | None:
    """The log of a local table; `None` for remote storage, or if there is no log."""
    path = local_path(table)
    if path is None:
        return None
    folder = path / _LOG_FOLDER

    def check() -> TableLog:
        with os.scandir(folder) as files:
            names = [file.name for file in files]
        return log_of(names, read, lambda name: (folder / name).exists())

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8", errors="replace")

    try:
        # A concurrent commit or log cleanup may have changed the folder during the listing.
        log = check()
        return check() if log.problem else log
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_log(delta: "DeltaJvm", table: TableRef) -> None:
    """Refuse to write to a table with missing or truncated files in its log."""
    log = local_log(table.path)
    if log is None and local_path(table.path) is None:
        check_commit(delta, table, delta.version(table.path))
    elif log is not None and log.problem:
        raise _log_error(table, log)


def _log_error(table: TableRef, log: TableLog) -> SetupError:
    return SetupError(
        "TABLE_LOG_DAMAGED", log_message(table.name, log), hint=log_hint(table.path, log)
    )


def check_commit(delta: "DeltaJvm", table: TableRef, newest: int) -> None:
    """Check the content of the newest commit only, without a listing."""
    lines = delta.commit_lines(table.path, newest) if newest >= 0 else None
    problem = "" if lines is None else torn("\n".join(lines))
    if problem:
        raise _log_error(table, TableLog(newest=newest, problem=problem, file=commit_file(newest)))


def log_message(table: str, log: TableLog) -> str:
    return f"the log of {table} is damaged, nothing is written to it: {log.file} {log.problem}"


def log_hint(path: str, log: TableLog) -> str:
    file = f"{local_path(path) or path}/{_LOG_FOLDER}/{log.file}"
    if log.file != commit_file(log.newest if log.newest is not None else -1):
        return f"restore {file} from a copy, or the whole table with the storage of the pipeline"
    return (
        f"restore {file} from a copy; or remove it and {log.newest:020d}.crc: the next start "
        "reports which batches it had, and the commands that read them again"
    )


def is_lost(
    commit: NotedCommit, read: Callable[[int], list[str] | None], newest: int | Callable[[], int]
) -> bool:
    lines = read(commit.version)
    if lines is None:
        # An older commit was deleted by log cleanup.
        return (newest if isinstance(newest, int) else newest()) < commit.version
    return last_batch_of(lines, commit.app_id) != commit.batch_id


def last_batch_of(lines: Iterable[str], app_id: str) -> int | None:
    for action in _actions(lines, "txn"):
        if action.get("appId") == app_id:
            return int(action["version"])
    return None


def restored_to(lines: Iterable[str]) -> int | None:
    for info in _actions(lines, "commitInfo"):
        if info.get("operation") == "RESTORE":
            version = str((info.get("operationParameters") or {}).get("version", ""))
            return int(version) if version.isdecimal() else None
    return None


def _actions(lines: Iterable[str], kind: str) -> Iterator[Mapping[str, Any]]:
    with suppress(ValueError):  # a torn commit
        yield from actions_of(lines, kind)


@dataclass(frozen=True, kw_only=True)
class Damage:
    message: str
    hint: str


def behind(
    checkpoint: Checkpoint, target: str, role: str, commit: NotedCommit, last: int, newest: int
) -> Damage:
    """A table lacks commits of its flow: those after batch `last` up to `commit`.

    `last` is -1 if the table has no batch of the flow. `role` is the role of the table in the
    dataset `target`, and `newest` is its newest version.
    """
    flow = checkpoint.flow
    first, end = last + 1, commit.batch_id
    batches = f"batch {end}" if first >= end else f"batches {first} to {end}"
    message = (
        f"{_TABLES[role]}{target} is behind the checkpoint of flow {flow!r}: batch {end} was "
        f"committed as version {commit.version}, which does not exist any more (newest version: "
        f"{newest}). The rows of {batches} are missing"
    )
    if ranges := _ranges(checkpoint, last, end):
        message += f": {ranges}"
    again = [f"restore version {commit.version} from a copy of the table's _delta_log"]
    if role != CDC_STATE and not checkpoint.state:
        again.append(f"`penstock backfill {flow} --from ... --by COLUMNS` adds the missing rows")
    if role == TARGET and not checkpoint.state and (start := _start(checkpoint, last)) is not None:
        again.append(
            f"`penstock checkpoint reset {flow} --from {start} --accept-duplicates` reads these "
            "batches again"
        )
    else:
        again.append(
            f"`penstock checkpoint reset {flow} --from earliest` shows what a full read would do"
        )
    again.append(f"--full-refresh {target} rebuilds everything")
    return Damage(message=message, hint="; or ".join(again))


def unreadable(
    checkpoint: Checkpoint, target: str, files: Sequence[str], *, is_unwritten: bool
) -> Damage:
    """Files of a checkpoint that the next start needs are damaged or missing.

    `is_unwritten`: no table has rows of the batch after the last finished one.
    """
    flow = checkpoint.flow
    message = f"the checkpoint of flow {flow!r} in {checkpoint.path} is damaged: {'; '.join(files)}"
    if checkpoint.planned:
        known = checkpoint.planned[-1]
        message += (
            f". The newest batch with readable offsets is {known.batch_id}, which ends at "
            f"{_shown(known.offsets)}"
        )
    newest = max(checkpoint.finished, default=-1) + 1
    names = set(checkpoint.damaged)
    hint = f"restore {checkpoint.path} from a copy that is as old as the table; or "
    if names == {f"commits/{newest}"}:
        hint += (
            f"remove {checkpoint.path}/commits/{newest}: the batch is repeated, and skipped by "
            "tables that have it; or "
        )
    elif names == {f"offsets/{newest}"} and is_unwritten:
        hint += (
            f"remove {checkpoint.path}/offsets/{newest}: the table has no rows of the batch, and "
            "it is planned again; or "
        )
    hint += (
        f"`penstock checkpoint reset {flow} --from earliest --truncate` shows what a new one "
        f"reads; or --full-refresh {target} rebuilds the table from its sources"
    )
    return Damage(message=message, hint=hint)


def older(flow: str, target: str, path: str, *, last: int, newest: int | None) -> Damage:
    """A checkpoint ends at batch `newest` (if any), but its table has batches up to `last`."""
    if newest is None:
        message = f"the checkpoint of flow {flow!r} is gone: {path} has no batches or no `metadata`"
    else:
        message = f"the checkpoint of flow {flow!r} in {path} is an older copy: it ends at {newest}"
    return Damage(
        message=f"{message}, but {target} has its batches up to {last}: the next ones would be "
        "skipped as already committed",
        hint=f"restore {path} from a copy that is as new as the table; or `penstock checkpoint "
        f"reset {flow} --from earliest --truncate` (or --accept-duplicates) shows what a new one "
        f"reads; or --full-refresh {target} rebuilds the table from its sources",
    )


def sink_checkpoint_lost(flow: str, path: str) -> Damage:
    """The checkpoint of a flow into a sink, which has run, does not exist."""
    return Damage(
        message=f"the checkpoint of flow {flow!r} is gone: {path} has no `metadata`, but the flow "
        "has written to its sink: a new one would read the sources from their start, and write "
        "all rows again",
        hint=f"restore {path} from a copy; or `penstock checkpoint reset {flow} --from POSITION` "
        "starts a new one there: `earliest` writes all rows again, `latest` only new ones",
    )


def state_lost(flow: str, table: str | None, checkpoint: str, state: str) -> Damage:
    """The state file of a flow is lost, but `table` (`None` for a sink) has batches of the flow."""
    rebuild = "" if table is None else f"--full-refresh {table} rebuilds it from its sources; or "
    return Damage(
        message=f"the state of flow {flow!r} ({state}) is missing or damaged, but "
        f"{table or 'its sink'} has batches of its checkpoint {checkpoint}: a new checkpoint would "
        "read the whole source again",
        hint=f"restore {state} from a copy; or {rebuild}`penstock checkpoint reset {flow} "
        "--from ...` starts at a given position",
    )


def restored(
    flow: str, target: str, commit: NotedCommit, version: int, checkpoint: Checkpoint
) -> str:
    """A warning: a table was restored to a version before the newest commit of a flow."""
    text = (
        f"{target} was restored to version {version} after flow {flow} had committed batch "
        f"{commit.batch_id} as version {commit.version}: rows of its newest batches are missing, "
        "and it continues after them"
    )
    if checkpoint.state:
        return f"{text}; --full-refresh {target} rebuilds them"
    return (
        f"{text}; `penstock backfill {flow} --from ... --by COLUMNS` adds them again, "
        f"`penstock checkpoint reset {flow} --from ...` starts it earlier"
    )


def _offsets(checkpoint: Checkpoint, batch_id: int) -> tuple[Any, ...] | None:
    return next((b.offsets for b in checkpoint.planned if b.batch_id == batch_id), None)


def _ranges(checkpoint: Checkpoint, last: int, end: int) -> str:
    after, before = _offsets(checkpoint, end), _offsets(checkpoint, last)
    if after is None or (before is None and last >= 0):
        return ""
    return f"from {'the beginning' if before is None else _shown(before)} to {_shown(after)}"


def _shown(offsets: Sequence[Any]) -> str:
    text = ", ".join(json.dumps(offset, separators=(",", ":")) for offset in offsets)
    # A topic may have thousands of partitions; `penstock checkpoint inspect` shows all of them.
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _start(checkpoint: Checkpoint, last: int) -> str | None:
    """The value of `--from` for a start after a batch; `None` if there is no such value."""
    offsets = _offsets(checkpoint, last)
    if last < 0:
        return "earliest"
    if not offsets:
        return None
    if all(_is_kafka(offset) for offset in offsets):
        merged = {topic: parts for offset in offsets for topic, parts in offset.items()}
        return shlex.quote(json.dumps(merged, separators=(",", ":")))
    offset = offsets[0]
    is_whole = isinstance(offset, dict) and int(offset.get("index", 0)) < 0
    if len(offsets) == 1 and is_whole and not offset.get("isStartingVersion"):
        return f"version={offset['reservoirVersion']}" if "reservoirVersion" in offset else None
    return None


def _is_kafka(offset: Any) -> bool:
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(isinstance(parts, dict) for parts in offset.values())
    )
