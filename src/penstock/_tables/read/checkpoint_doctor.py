"""Finds damaged checkpoints, and checkpoints that do not match their tables; changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._model.pipeline import PipelineSettings
from penstock._model.quantity import plural
from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, NotedCommit, commits_of
from penstock._tables.files import commit_lines, local_path
from penstock._tables.layout import NOTE_FILE, QUARANTINE_SUFFIX, app_id, layout_of
from penstock._tables.read.checkpoint_files import (
    METADATA_MISSING,
    Checkpoint,
    FlowRecord,
    checkpoints,
    flow_records,
    newest_of_checkpoint,
)
from penstock._tables.read.damage import (
    behind,
    is_lost,
    local_log,
    log_hint,
    log_message,
    older,
    state_lost,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

_PARTITIONS = "spark.sql.shuffle.partitions"


class Severity(StrEnum):
    NOTE = "note"
    """Nothing to do."""
    WARNING = "warning"
    """The next start may fail, or repeat work."""
    ERROR = "error"
    """The next start fails, or loses rows."""


@dataclass(frozen=True)
class Finding:
    """A finding about a checkpoint, or about the log of a table; `kind` is a stable name."""

    kind: str
    severity: Severity
    message: str
    hint: str = ""
    flow: str = ""
    epoch: str = ""


def examine(settings: PipelineSettings, flow: str | None = None) -> list[Finding]:
    """Examine all checkpoints, or those of one flow; the most severe findings first."""
    examined = checkpoints(settings, flow)
    every = examined if flow is None else checkpoints(settings)
    findings = list(_table_logs(settings))
    tables = _tables_by_id(settings)
    known = flow_records(settings)
    for checkpoint in examined:
        if checkpoint.is_current:
            own = list(_files(checkpoint))
            if checkpoint.exists:
                own += _copied(checkpoint, every)
                own += _state(checkpoint)
                own += _table(checkpoint, settings, tables, known.get(checkpoint.flow))
        else:
            is_lost_flow = checkpoint.flow not in known
            lost = _lost_state(checkpoint, settings, tables) if is_lost_flow else None
            own = [lost or _old(checkpoint)]
        findings += [replace(each, flow=checkpoint.flow, epoch=checkpoint.epoch) for each in own]
    order = list(Severity)[::-1]
    return sorted(findings, key=lambda item: (order.index(item.severity), item.flow, item.kind))


def unreadable_files(checkpoint: Checkpoint) -> list[str]:
    """Problems of files that the next start needs; empty if it can start."""
    return [
        finding.message
        for finding in _files(checkpoint)
        if finding.severity is Severity.ERROR
        and finding.kind in ("file-damaged", "offsets-missing")
        and finding.message != f"metadata {METADATA_MISSING}"
    ]


def _rebuild(checkpoint: Checkpoint) -> str:
    return (
        f"restore {checkpoint.path} from a copy that is as old as the table; or rebuild the table "
        "from its sources: `penstock run --full-refresh` with its name"
    )


def _files(checkpoint: Checkpoint) -> Iterator[Finding]:
    if not checkpoint.exists:
        yield Finding(
            "checkpoint-missing",
            Severity.ERROR,
            f"{checkpoint.path} does not exist, but the flow was started with it: a new one would "
            "number its batches from 0, and the table would skip them as already committed",
            f"`penstock checkpoint reset {checkpoint.flow} --from earliest` shows what a new one "
            "would read again; or --full-refresh the table",
        )
        return
    last = max(checkpoint.last_planned or 0, checkpoint.last_finished or 0)
    newest = {
        f"offsets/{checkpoint.last_planned}",
        f"commits/{checkpoint.last_finished}",
        "metadata",
    }
    is_unused = not (checkpoint.planned or checkpoint.finished or len(checkpoint.damaged) > 1)
    for name, reason in checkpoint.damaged.items():
        if name == "metadata" and is_unused:
            continue  # before its first batch
        is_needed = name in newest or ("/" in name and int(name.rpartition("/")[2]) >= last)
        yield Finding(
            "file-damaged",
            Severity.ERROR if is_needed else Severity.WARNING,
            f"{name} {reason}",
            _rebuild(checkpoint) if is_needed else "the next start does not read older batches",
        )
    yield from _logs(checkpoint)


def _logs(checkpoint: Checkpoint) -> Iterator[Finding]:
    planned = [batch.batch_id for batch in checkpoint.planned]
    finished = -1 if checkpoint.last_finished is None else checkpoint.last_finished
    unfinished = [number for number in planned if number > finished]
    if len(unfinished) == 1:
        yield Finding(
            "batch-open",
            Severity.NOTE,
            f"batch {unfinished[0]} is planned and not finished: the next start runs it again",
        )
    elif len(unfinished) > 1:
        yield Finding(
            "commits-missing",
            Severity.WARNING,
            f"batches {unfinished[0]} to {unfinished[-1]} are planned and not finished, but Spark "
            "plans one batch at a time: files of `commits` are missing",
            f"the next start runs only batch {unfinished[-1]} again, which a table skips if it has "
            "it; find out what deletes files here",
        )
    damaged = {int(name[8:]) for name in checkpoint.damaged if name.startswith("offsets/")}
    known = {*planned, *damaged}
    if checkpoint.last_finished is not None and finished not in known:
        yield Finding(
            "offsets-missing",
            Severity.ERROR,
            f"batch {finished} is finished, but offsets/{finished} is missing: the next start "
            "cannot determine its end offsets",
            _rebuild(checkpoint),
        )
    gaps = sorted(set(range(min(known), max(known) + 1)) - known) if known else []
    if gaps:
        yield Finding(
            "offsets-gap",
            Severity.WARNING,
            f"no offsets of {plural(len(gaps), 'batch')}, the first is {gaps[0]}",
            "Spark reads only the newest ones; find out what deletes files here",
        )
    if len({len(batch.offsets) for batch in checkpoint.planned[-2:]}) > 1:
        yield Finding(
            "sources-changed",
            Severity.WARNING,
            "the number of sources changed between the last two batches",
            "a query with other sources needs a new checkpoint",
        )


def _copied(checkpoint: Checkpoint, every: list[Checkpoint]) -> Iterator[Finding]:
    query = checkpoint.query_id
    flows = sorted(item.flow for item in every if item.query_id == query)
    if query is not None and len(flows) > 1:
        yield Finding(
            "query-id-shared",
            Severity.ERROR,
            f"{len(flows)} checkpoints have the query id {query}: one is a copy of the other "
            f"({', '.join(flows)})",
            "each flow needs its own checkpoint: reset the one that was copied",
        )


def _old(checkpoint: Checkpoint) -> Finding:
    return Finding(
        "not-used",
        Severity.NOTE,
        f"{checkpoint.path} ({checkpoint.size:,} bytes) belongs to an earlier epoch and is not "
        "used by any flow",
        "delete it if it is not needed for reference",
    )


def _state(checkpoint: Checkpoint) -> Iterator[Finding]:
    if not checkpoint.state or checkpoint.last_finished is None:
        return
    pinned = checkpoint.planned[-1].conf.get(_PARTITIONS, "") if checkpoint.planned else ""
    for operator in sorted({part.operator for part in checkpoint.state}):
        parts = [part for part in checkpoint.state if part.operator == operator]
        if pinned.isdecimal() and len(parts) != int(pinned):
            yield Finding(
                "state-partitions",
                Severity.WARNING,
                f"stateful operator {operator} has {len(parts)} partitions, the checkpoint "
                f"was created with {pinned}",
                _rebuild(checkpoint),
            )
        version = checkpoint.last_finished + 1
        old = [part.partition for part in parts if max(part.versions, default=-1) < version]
        if old:
            yield Finding(
                "state-behind",
                Severity.WARNING,
                f"stateful operator {operator} has no version {version} of partition "
                f"{old[0]}{' and others' if len(old) > 1 else ''}, which batch "
                f"{checkpoint.last_finished} wrote",
                _rebuild(checkpoint),
            )


def _table(
    checkpoint: Checkpoint,
    settings: PipelineSettings,
    tables: Mapping[str, Path],
    record: FlowRecord | None,
) -> Iterator[Finding]:
    if record is None or record.target_id is None:
        return
    path = tables.get(record.target_id)
    if path is None:
        if any(_table_logs(settings)):
            return  # it may be the table with the damaged log
        yield Finding(
            "table-unknown",
            Severity.WARNING,
            "its table is not in the storage of the pipeline: it was dropped or recreated, or has "
            "a path of its own",
            "if it was dropped: --full-refresh it",
        )
        return
    log = local_log(str(path))
    if log is None or log.problem:
        return
    yield from _behind(checkpoint, path, settings)
    committed = _opened(path).transaction_version(
        app_id(record.pipeline, checkpoint.flow, checkpoint.epoch)
    )
    # Read after the table, because the flow may be running.
    newest = newest_of_checkpoint(checkpoint.flow, checkpoint.epoch, checkpoint.path)
    last = newest.last_planned
    if committed is not None and (last is None or committed > last):
        target, place = ".".join(path.parts[-3:]), str(checkpoint.path)
        damage = older(checkpoint.flow, target, place, last=committed, newest=last)
        yield Finding("behind-table", Severity.ERROR, damage.message, damage.hint)


def _note(checkpoint: Checkpoint) -> Mapping[str, NotedCommit] | None:
    """The newest commits of a flow, as noted in its checkpoint; `None` if there is no note."""
    try:
        text = (checkpoint.path / NOTE_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return commits_of(text)


def _behind(checkpoint: Checkpoint, target: Path, settings: PipelineSettings) -> Iterator[Finding]:
    note = _note(checkpoint)
    if note is None:
        return
    names = target.parts[-3:]
    paths = {
        TARGET: target,
        QUARANTINE: target.with_name(f"{target.name}{QUARANTINE_SUFFIX}"),
        CDC_STATE: Path(local_path(layout_of(settings).state_dir) or "", "cdc", *names),
    }
    for role, commit in note.items():
        path = paths.get(role)
        if path is None or not checkpoint.has_finished(commit.batch_id):
            continue  # the batch will be repeated
        log = local_log(str(path))
        if log is None or log.newest is None or log.problem:
            continue
        if not is_lost(commit, partial(commit_lines, path), log.newest):
            continue
        table = _opened(path)
        if str(table.metadata().id) != commit.table_id:
            continue
        last = table.transaction_version(commit.app_id)
        last = -1 if last is None else last
        damage = behind(checkpoint, ".".join(names), role, commit, last, log.newest)
        yield Finding("table-behind", Severity.ERROR, damage.message, damage.hint)


def _lost_state(
    checkpoint: Checkpoint, settings: PipelineSettings, tables: Mapping[str, Path]
) -> Finding | None:
    note = _note(checkpoint)
    # The pipeline may have had another name when the flow started.
    identities = {app_id(settings.name, checkpoint.flow, checkpoint.epoch)}
    identities.update(commit.app_id for commit in (note or {}).values())
    targets = (
        ".".join(path.parts[-3:])
        for path in tables.values()
        if any(_opened(path).transaction_version(each) is not None for each in identities)
    )
    table = next(targets, None)
    # Only flows into tables have a note: with a note, the table of this flow was dropped.
    if table is None and (not checkpoint.finished or note is not None):
        return None
    file = local_path(layout_of(settings).flow_state(checkpoint.flow))
    damage = state_lost(checkpoint.flow, table, str(checkpoint.path), str(file))
    return Finding("state-missing", Severity.ERROR, damage.message, damage.hint)


def _table_logs(settings: PipelineSettings) -> Iterator[Finding]:
    for path in _table_paths(settings):
        log = local_log(str(path))
        if log is not None and log.problem:
            message = log_message(".".join(path.parts[-3:]), log)
            hint = log_hint(str(path), log)
            yield Finding("table-log-damaged", Severity.ERROR, message, hint)


def _opened(path: Path) -> "DeltaTable":
    """A table at the newest version that has a file in the log."""
    from deltalake import DeltaTable

    log = local_log(str(path))
    # Without a version, delta-rs refuses a log whose newest checksum has no commit.
    return DeltaTable(str(path), version=None if log is None else log.newest)


def _table_paths(settings: PipelineSettings) -> list[Path]:
    layout = layout_of(settings)
    root, state = local_path(layout.root) or Path(), local_path(layout.state_dir) or Path()
    logs = (*root.glob("tables/*/*/*/_delta_log"), *state.glob("cdc/*/*/*/_delta_log"))
    return sorted(log.parent for log in logs)


def _tables_by_id(settings: PipelineSettings) -> dict[str, Path]:
    from deltalake.exceptions import DeltaError

    tables: dict[str, Path] = {}
    for path in _table_paths(settings):
        try:
            tables[str(_opened(path).metadata().id)] = path
        except DeltaError:
            continue  # `_table_logs` or `penstock preview` reports the problem
    return tables
