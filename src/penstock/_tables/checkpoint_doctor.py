"""Looks for damage in checkpoints, and for checkpoints that do not fit their tables.

Nothing is changed. What is found tells whether the next start would fail, or go wrong in silence.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._model.pipeline import PipelineSettings
from penstock._tables.checkpoint_files import (
    METADATA_MISSING,
    Checkpoint,
    checkpoints,
    flow_records,
)
from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, commits_of
from penstock._tables.damage import (
    commit_lines,
    is_lost,
    local_log,
    log_hint,
    log_message,
)
from penstock._tables.files import local_path
from penstock._tables.layout import NOTE_FILE, QUARANTINE_SUFFIX, StorageLayout
from penstock._tables.lost_batches import behind, state_lost

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PARTITIONS = "spark.sql.shuffle.partitions"


class Severity(StrEnum):
    """How bad it is."""

    NOTE = "note"
    """Nothing to do."""
    WARNING = "warning"
    """The next start may fail, or do work again."""
    ERROR = "error"
    """The next start fails, or loses rows."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        flow: Name of the flow.
        epoch: Of the checkpoint.
        kind: Stable name.
        severity: How bad it is.
        message: What is there.
        hint: The way out.
    """

    flow: str
    epoch: str
    kind: str
    severity: Severity
    message: str
    hint: str = ""


def examine(settings: PipelineSettings, flow: str | None = None) -> list[Finding]:
    """Look at all checkpoints, or at those of one flow; the worst comes first.

    Raises:
        SpecError: As `checkpoints`.
    """
    found = checkpoints(settings, flow)
    everywhere = found if flow is None else checkpoints(settings)
    owners = Counter(one.query_id for one in everywhere if one.query_id is not None)
    findings = list(_table_logs(settings))
    tables = _tables_by_id(settings)
    known = flow_records(settings)
    for one in found:
        if not one.is_current:
            lost = None if one.flow in known else _lost_state(one, settings, tables)
            findings.append(lost or _old(one))
            continue
        findings += _files(one)
        if not one.exists:
            continue
        if one.query_id is not None and owners[one.query_id] > 1:
            others = [other.flow for other in everywhere if other.query_id == one.query_id]
            findings.append(_copied(one, sorted(others)))
        findings += _state(one)
        findings += _table(one, settings, tables)
    order = list(Severity)[::-1]
    return sorted(findings, key=lambda one: (order.index(one.severity), one.flow, one.kind))


def unreadable_files(one: Checkpoint) -> list[str]:
    """What is wrong with files that the next start needs; empty if it can go on."""
    kinds = ("file-damaged", "offsets-missing")
    return [
        finding.message
        for finding in _files(one)
        if finding.severity is Severity.ERROR
        and finding.kind in kinds
        and finding.message != f"metadata {METADATA_MISSING}"
    ]


def _finding(
    one: Checkpoint, kind: str, severity: Severity, message: str, hint: str = ""
) -> Finding:
    return Finding(
        flow=one.flow, epoch=one.epoch, kind=kind, severity=severity, message=message, hint=hint
    )


def _rebuild(one: Checkpoint) -> str:
    return (
        f"restore {one.path} from a copy that is as old as the table; or rebuild the table from "
        "its sources: `penstock run --full-refresh` with its name"
    )


# -- files --------------------------------------------------------------------------------------


def _files(one: Checkpoint) -> Iterator[Finding]:
    if not one.exists:
        yield _finding(
            one,
            "checkpoint-missing",
            Severity.ERROR,
            f"{one.path} is gone, but the flow was started with it: batches would be numbered from "
            "0 again, and taken for those that the table has already",
            f"`penstock checkpoint reset {one.flow} --from earliest` shows what a new one would "
            "read again; or --full-refresh the table",
        )
        return
    newest = {f"offsets/{one.last_planned}", f"commits/{one.last_finished}", "metadata"}
    for name, reason in one.damaged.items():
        number = int(name.rpartition("/")[2]) if "/" in name else None
        last = max(one.last_planned or 0, one.last_finished or 0)
        matters = name in newest or (number is not None and number >= last)
        if name == "metadata" and not (one.planned or one.finished or len(one.damaged) > 1):
            continue  # it has not got to its first batch
        yield _finding(
            one,
            "file-damaged",
            Severity.ERROR if matters else Severity.WARNING,
            f"{name} {reason}",
            _rebuild(one) if matters else "Spark reads older batches only to look back",
        )
    yield from _logs(one)


def _logs(one: Checkpoint) -> Iterator[Finding]:
    planned = [batch.batch_id for batch in one.planned]
    finished = -1 if one.last_finished is None else one.last_finished
    open_ones = [number for number in planned if number > finished]
    if len(open_ones) == 1:
        yield _finding(
            one,
            "batch-open",
            Severity.NOTE,
            f"batch {open_ones[0]} is planned and not finished: the next start runs it again",
        )
    elif len(open_ones) > 1:
        yield _finding(
            one,
            "commits-missing",
            Severity.ERROR,
            f"batches {open_ones[0]} to {open_ones[-1]} are planned and not finished, though Spark "
            "plans one at a time: files of `commits` are missing",
            _rebuild(one),
        )
    damaged = {int(name[8:]) for name in one.damaged if name.startswith("offsets/")}
    known = {*planned, *damaged}
    if one.last_finished is not None and one.last_finished not in known:
        yield _finding(
            one,
            "offsets-missing",
            Severity.ERROR,
            f"batch {one.last_finished} is finished, but offsets/{one.last_finished} is missing: "
            "the next start cannot know where it ended",
            _rebuild(one),
        )
    gaps = sorted(set(range(min(known), max(known) + 1)) - known) if known else []
    if gaps:
        yield _finding(
            one,
            "offsets-gap",
            Severity.WARNING,
            f"offsets of {len(gaps)} batches are missing, the first is {gaps[0]}",
            "Spark reads only the newest ones; find out who deletes files here",
        )
    if one.planned:
        counts = {len(batch.offsets) for batch in one.planned[-2:]}
        if len(counts) > 1:
            yield _finding(
                one,
                "sources-changed",
                Severity.WARNING,
                "the number of sources changed between the last two batches",
                "a query with other sources needs a new checkpoint",
            )


def _copied(one: Checkpoint, owners: list[str]) -> Finding:
    return _finding(
        one,
        "query-id-shared",
        Severity.ERROR,
        f"{len(owners)} checkpoints have the query id {one.query_id}: one is a copy of the other "
        f"({', '.join(owners)})",
        "each flow needs a checkpoint of its own: reset the one that was copied",
    )


def _old(one: Checkpoint) -> Finding:
    return _finding(
        one,
        "not-used",
        Severity.NOTE,
        f"{one.path} ({one.size:,} bytes) belongs to an earlier epoch; no flow goes on with it",
        "it may be deleted when nobody wants to look back",
    )


# -- state --------------------------------------------------------------------------------------


def _state(one: Checkpoint) -> Iterator[Finding]:
    if not one.state or one.last_finished is None:
        return
    pinned = one.planned[-1].conf.get(_PARTITIONS, "") if one.planned else ""
    operators = sorted({part.operator for part in one.state})
    for operator in operators:
        parts = [part for part in one.state if part.operator == operator]
        if pinned.isdecimal() and len(parts) != int(pinned):
            yield _finding(
                one,
                "state-partitions",
                Severity.WARNING,
                f"stateful operator {operator} has {len(parts)} partitions, the checkpoint "
                f"was made with {pinned}",
                _rebuild(one),
            )
        wanted = one.last_finished + 1
        behind = [
            part.partition for part in parts if not part.versions or part.versions[-1] < wanted
        ]
        if behind:
            yield _finding(
                one,
                "state-behind",
                Severity.WARNING,
                f"stateful operator {operator} has no version {wanted} of partition "
                f"{behind[0]}{' and others' if len(behind) > 1 else ''}, which batch "
                f"{one.last_finished} has made",
                _rebuild(one),
            )


# -- table --------------------------------------------------------------------------------------


def _table(
    one: Checkpoint, settings: PipelineSettings, tables: Mapping[str, Path]
) -> Iterator[Finding]:
    record = flow_records(settings).get(one.flow)
    if record is None or record.target_id is None:
        return
    path = tables.get(record.target_id)
    if path is None and any(_table_logs(settings)):
        return  # it may be the one that nobody can read
    if path is None:
        yield _finding(
            one,
            "table-unknown",
            Severity.WARNING,
            "the table that it belongs to does not lie in the storage of the pipeline: it was "
            "dropped or made anew, or has a path of its own",
            "if it was dropped: --full-refresh it",
        )
        return
    log = local_log(str(path))
    if log is None or log.problem:
        return
    identity = _identity(one, settings)
    yield from _behind(one, path)
    taken = _opened(path).transaction_version(identity)
    last = one.last_planned
    if taken is None:
        return
    if last is None or taken > last:
        yield _finding(
            one,
            "behind-table",
            Severity.ERROR,
            f"the table has batch {taken}, the newest one of the checkpoint is "
            f"{'none' if last is None else last}: it is an older copy, and its next batches would "
            "be taken for ones that are in already",
            _rebuild(one),
        )


def _identity(one: Checkpoint, settings: PipelineSettings) -> str:
    # That of `_tables.writer.app_id`, spelled here because that room part needs Spark.
    return f"{settings.name}/{one.flow}/writer/{one.epoch}"


def _behind(one: Checkpoint, target: Path) -> Iterator[Finding]:
    """What the flow has noted as committed, and its tables do not have."""
    try:
        note = commits_of((one.path / NOTE_FILE).read_text(encoding="utf-8"))
    except OSError:
        return
    names = target.parts[-3:]
    paths = {
        TARGET: target,
        QUARANTINE: target.with_name(f"{target.name}{QUARANTINE_SUFFIX}"),
        CDC_STATE: target.parents[3].joinpath("state", "cdc", *names),
    }
    for role, commit in note.items():
        path = paths.get(role)
        if path is None or not one.has_finished(commit.batch_id):
            continue  # it runs again
        log = local_log(str(path))
        if log is None or log.newest is None or log.problem:
            continue
        newest = log.newest
        if not is_lost(commit, partial(commit_lines, path), newest):
            continue
        table = _opened(path)
        if str(table.metadata().id) != commit.table_id:
            continue
        last = table.transaction_version(commit.app_id)
        damage = behind(one, ".".join(names), role, commit, -1 if last is None else last, newest)
        yield _finding(one, "table-behind", Severity.ERROR, damage.message, damage.hint)


def _lost_state(
    one: Checkpoint, settings: PipelineSettings, tables: Mapping[str, Path]
) -> Finding | None:
    """The finding with a checkpoint of a flow of which nothing else is known."""
    identity = _identity(one, settings)
    state = local_path(StorageLayout(settings.storage).state_dir)
    for path in tables.values():
        if _opened(path).transaction_version(identity) is not None:
            file = f"{state}/flows/{one.flow}.json"
            damage = state_lost(one.flow, ".".join(path.parts[-3:]), str(one.path), file)
            return _finding(one, "state-missing", Severity.ERROR, damage.message, damage.hint)
    return None


def _table_logs(settings: PipelineSettings) -> Iterator[Finding]:
    """Logs of tables that nobody can read to their end."""
    for path in _table_paths(settings):
        log = local_log(str(path))
        if log is not None and log.problem:
            yield Finding(
                flow="",
                epoch="",
                kind="table-log-damaged",
                severity=Severity.ERROR,
                message=log_message(".".join(path.parts[-3:]), log),
                hint=log_hint(str(path), log),
            )


def _opened(path: Path) -> "DeltaTable":
    """A table at the newest version that has a file."""
    from deltalake import DeltaTable

    log = local_log(str(path))
    # Without a version delta-rs refuses a log whose newest checksum has lost its commit.
    return DeltaTable(str(path), version=None if log is None else log.newest)


def _table_paths(settings: PipelineSettings) -> list[Path]:
    root = local_path(StorageLayout(settings.storage).root) or Path()
    logs = (*root.glob("tables/*/*/*/_delta_log"), *root.glob("state/cdc/*/*/*/_delta_log"))
    return sorted(log.parent for log in logs)


def _tables_by_id(settings: PipelineSettings) -> dict[str, Path]:
    from deltalake.exceptions import DeltaError

    found: dict[str, Path] = {}
    for path in _table_paths(settings):
        try:
            found[str(_opened(path).metadata().id)] = path
        except DeltaError:
            continue  # `_table_logs` or `penstock preview` tells what is wrong with it
    return found
