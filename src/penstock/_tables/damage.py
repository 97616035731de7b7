"""Finds what is missing or cut in the log of a table, from the names and the text of its files.

Delta takes the newest file that is there for the newest version, and does not read the text of
commits whose checksum file it has. So a lost commit shows in no error, and a cut one only when it
has further commits behind it.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._tables.commit_note import NotedCommit
from penstock._tables.files import local_path
from penstock._tables.layout import TableRef
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock._tables.delta_log import DeltaJvm

_LOG_FOLDER = "_delta_log"
_WHOLE_BYTES = 4_000_000
"""Of larger commits, such as those of a compaction, only both ends are parsed."""
_COMMIT_LENGTH = 25
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..+")


@dataclass(frozen=True, kw_only=True)
class TableLog:
    """The log of a table as its files tell.

    Attributes:
        newest: The newest version that has a file; `None` for an empty folder.
        problem: Why nobody can read the table, or all of it; empty if the log is sound.
        file: Name of the file that `problem` is about.
    """

    newest: int | None
    problem: str = ""
    file: str = ""


def commit_file(version: int) -> str:
    """Name of the file of a commit."""
    return f"{version:020d}.json"


def torn(text: str) -> str:
    """What is wrong with the text of a commit; empty if every line is an action."""
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
            return f"is cut or damaged: line {number} of {len(lines)} is not JSON"
    return ""


def log_of(
    names: Iterable[str],
    read: Callable[[str], str],
    exists: Callable[[str], bool] = lambda _: False,
) -> TableLog:
    """What a listing of a log and the text of its newest commit say.

    Args:
        names: Of all files.
        read: The text of one.
        exists: Whether a file is there that the listing, made while others commit, lacks.
    """
    commits: set[int] = set()
    checkpoint = -1
    for name in names:
        if len(name) == _COMMIT_LENGTH and name[:20].isdecimal() and name.endswith(".json"):
            commits.add(int(name[:20]))
        elif ".checkpoint." in name and (match := _CHECKPOINT.fullmatch(name)):
            checkpoint = max(checkpoint, int(match[1]))
    if not commits:
        # A cleaned log may begin with a checkpoint alone.
        return TableLog(newest=checkpoint if checkpoint >= 0 else None)
    newest = max(commits)
    first = checkpoint + 1 if checkpoint >= 0 else 0
    missing = (at for at in range(first, newest) if at not in commits)
    gap = next((at for at in missing if not exists(commit_file(at))), None)
    if gap is not None:
        file = commit_file(gap)
        return TableLog(newest=newest, problem="is missing, and newer ones are there", file=file)
    file = commit_file(newest)
    problem = torn(read(file))
    return TableLog(newest=max(newest, checkpoint), problem=problem, file=file if problem else "")


def local_log(table: str) -> TableLog | None:
    """The log of a table on this machine; `None` for other storage, and where there is none."""
    path = local_path(table)
    if path is None:
        return None
    folder = path / _LOG_FOLDER

    def look() -> TableLog:
        with os.scandir(folder) as files:
            names = [file.name for file in files]
        return log_of(names, read, lambda name: (folder / name).exists())

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8", errors="replace")

    try:
        # Another writer may have committed, or Delta cleaned up, while the folder was listed.
        log = look()
        return look() if log.problem else log
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_log(delta: "DeltaJvm", table: TableRef) -> None:
    """Refuse a table of whose log a part is missing or cut, before anything is added to it.

    Raises:
        SetupError: `TABLE_LOG_DAMAGED`.
    """
    log = local_log(table.path)
    if log is None and local_path(table.path) is None:
        check_commit(delta, table, int(delta.snapshot(table.path).version()))
    elif log is not None and log.problem:
        raise SetupError(
            "TABLE_LOG_DAMAGED", log_message(table.name, log), hint=log_hint(table.path, log)
        )


def check_commit(delta: "DeltaJvm", table: TableRef, newest: int) -> None:
    """The part of `check_log` that needs no listing: the text of the newest commit.

    Raises:
        SetupError: `TABLE_LOG_DAMAGED`.
    """
    lines = delta.commit_lines(table.path, newest) if newest >= 0 else None
    problem = "" if lines is None else torn("\n".join(lines))
    if problem:
        log = TableLog(newest=newest, problem=problem, file=commit_file(newest))
        raise SetupError(
            "TABLE_LOG_DAMAGED", log_message(table.name, log), hint=log_hint(table.path, log)
        )


def log_message(table: str, log: TableLog) -> str:
    """What is wrong with a log, in one sentence."""
    return f"the log of {table} is damaged, and nothing is written to it: {log.file} {log.problem}"


def log_hint(path: str, log: TableLog) -> str:
    """What to do about a damaged log."""
    file = f"{local_path(path) or path}/{_LOG_FOLDER}/{log.file}"
    if log.file != commit_file(log.newest if log.newest is not None else -1):
        return f"restore {file} from a copy, or the whole table with the storage of the pipeline"
    return (
        f"restore {file} from a copy; or remove it and {log.newest:020d}.crc: the next start "
        "reports which batches were in it, and the commands that read them again"
    )


def commit_lines(table: Path, version: int) -> list[str] | None:
    """The lines of a commit on this machine; `None` without a file."""
    try:
        file = table / _LOG_FOLDER / commit_file(version)
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None


def is_lost(
    commit: NotedCommit,
    read: Callable[[int], list[str] | None],
    newest: int | Callable[[], int],
) -> bool:
    """Whether a table lacks a commit that a flow has noted.

    Args:
        commit: That was noted; in this table.
        read: Lines of a commit; `None` without a file.
        newest: Version of the table, or how to look it up.
    """
    lines = read(commit.version)
    if lines is None:
        # Else Delta has cleaned it up.
        return (newest if isinstance(newest, int) else newest()) < commit.version
    return last_batch_of(lines, commit.app_id) != commit.batch_id


def last_batch_of(lines: Iterable[str], app_id: str) -> int | None:
    """The batch of an app id that a commit holds."""
    for action in _actions(lines, "txn"):
        if action.get("appId") == app_id:
            return int(action["version"])
    return None


def restored_to(lines: Iterable[str]) -> int | None:
    """The version that a commit went back to, if it is that of a RESTORE."""
    for info in _actions(lines, "commitInfo"):
        if info.get("operation") == "RESTORE":
            version = str((info.get("operationParameters") or {}).get("version", ""))
            return int(version) if version.isdecimal() else None
    return None


def _actions(lines: Iterable[str], kind: str) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if f'"{kind}"' in line[:20]:
            try:
                yield json.loads(line).get(kind) or {}
            except ValueError:
                continue
