"""What a damage means: the batches and offsets that it is about, and the commands that repair it.

Used by the start of a flow, and by `penstock checkpoint doctor`.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock._tables.checkpoint_files import Checkpoint
from penstock._tables.commit_note import CDC_STATE, QUARANTINE, TARGET, NotedCommit

_SHOWN = 400
_TABLES = {TARGET: "", QUARANTINE: "the quarantine of ", CDC_STATE: "the CDC state of "}


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A damage and the way out of it.

    Attributes:
        message: What it is, and which batches and offsets it is about.
        hint: The commands.
    """

    message: str
    hint: str


def behind(
    checkpoint: Checkpoint, target: str, role: str, commit: NotedCommit, last: int, newest: int
) -> Damage:
    """A table lacks commits that its flow has made.

    Args:
        checkpoint: Of the flow.
        target: Name of the dataset.
        role: Which of its tables it is.
        commit: That is missing, the newest one that was noted.
        last: The newest batch of the flow that the table has; -1 if there is none.
        newest: Version of the table.
    """
    flow = checkpoint.flow
    first, end = last + 1, commit.batch_id
    batches = f"batch {end}" if first >= end else f"batches {first} to {end}"
    message = (
        f"{_TABLES[role]}{target} is behind the checkpoint of flow {flow!r}: batch {end} was "
        f"committed as version {commit.version}, which is no longer there (newest version: "
        f"{newest}). The rows of {batches} are missing"
    )
    if ranges := _ranges(checkpoint, last, end):
        message += f": {ranges}"
    again = [f"restore version {commit.version} from a copy of the table's _delta_log"]
    if role != CDC_STATE and not checkpoint.state:
        again.append(
            f"`penstock backfill {flow} --from ... --by COLUMNS` adds the rows that are missing"
        )
    if role == TARGET and not checkpoint.state and (start := _start(checkpoint, last)) is not None:
        again.append(
            f"`penstock checkpoint reset {flow} --from {start} --accept-duplicates` reads these "
            "batches again"
        )
    else:
        again.append(
            f"`penstock checkpoint reset {flow} --from earliest` shows what all of the source means"
        )
    again.append(f"--full-refresh {target} rebuilds everything")
    return Damage(message=message, hint="; or ".join(again))


def unreadable(
    checkpoint: Checkpoint, target: str, files: Sequence[str], *, is_unwritten: bool
) -> Damage:
    """Files that the next start needs are cut or missing.

    Args:
        checkpoint: Of the flow.
        target: Its table or sink.
        files: What is wrong with each.
        is_unwritten: Whether nothing of the batch after the last finished one is in a table.
    """
    flow = checkpoint.flow
    message = f"the checkpoint of flow {flow!r} in {checkpoint.path} is damaged: {'; '.join(files)}"
    if checkpoint.planned:
        known = checkpoint.planned[-1]
        message += (
            f". The newest batch with readable offsets is {known.batch_id}, which ends at "
            f"{_texts(known.offsets)}"
        )
    newest = max(checkpoint.finished, default=-1) + 1
    names = set(checkpoint.damaged)
    hint = f"restore {checkpoint.path} from a copy that is as old as the table; or "
    if names == {f"commits/{newest}"}:
        hint += (
            f"remove {checkpoint.path}/commits/{newest}: the batch is run again, and a table that "
            "has it does not take it twice; or "
        )
    elif names == {f"offsets/{newest}"} and is_unwritten:
        hint += (
            f"remove {checkpoint.path}/offsets/{newest}: nothing of the batch is in the table, and "
            "it is planned anew; or "
        )
    hint += (
        f"`penstock checkpoint reset {flow} --from earliest --truncate` shows what a new one "
        f"reads; or --full-refresh {target} rebuilds the table from its sources"
    )
    return Damage(message=message, hint=hint)


def state_lost(flow: str, target: str, place: str, state: str) -> Damage:
    """The epoch of a flow is lost, while its checkpoint and its table live.

    Args:
        flow: Its name.
        target: Its table or sink.
        place: A checkpoint of the flow.
        state: The file that is missing.
    """
    return Damage(
        message=f"the state of flow {flow!r} ({state}) is missing or cut, but {target} has batches "
        f"of its checkpoint {place}: a new checkpoint would read all of the source once more",
        hint=f"restore {state} from a copy; or --full-refresh {target} rebuilds it from its "
        f"sources; or `penstock checkpoint reset {flow} --from ...` begins where you say",
    )


def restored(
    flow: str, target: str, commit: NotedCommit, version: int, checkpoint: Checkpoint
) -> str:
    """A warning: somebody took a table back behind what a flow has committed.

    Args:
        flow: Its name.
        target: Its table.
        commit: The newest one of the flow.
        version: That the table went back to.
        checkpoint: Of the flow.
    """
    text = (
        f"{target} was restored to version {version} after flow {flow} had committed batch "
        f"{commit.batch_id} as version {commit.version}: rows of its newest batches are gone, and "
        "it continues behind them"
    )
    if checkpoint.state:
        return f"{text}; --full-refresh {target} rebuilds them"
    return (
        f"{text}; `penstock backfill {flow} --from ... --by COLUMNS` adds them again, "
        f"`penstock checkpoint reset {flow} --from ...` lets it begin earlier"
    )


def _offsets(checkpoint: Checkpoint, batch_id: int) -> tuple[Any, ...] | None:
    return next((b.offsets for b in checkpoint.planned if b.batch_id == batch_id), None)


def _ranges(checkpoint: Checkpoint, last: int, end: int) -> str:
    after, before = _offsets(checkpoint, end), _offsets(checkpoint, last)
    if after is None or (before is None and last >= 0):
        return ""
    return f"from {'the beginning' if before is None else _texts(before)} to {_texts(after)}"


def _texts(offsets: Sequence[Any]) -> str:
    text = ", ".join(json.dumps(offset, separators=(",", ":")) for offset in offsets)
    # A topic may have thousands of partitions; `penstock checkpoint inspect` shows them all.
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _start(checkpoint: Checkpoint, last: int) -> str | None:
    """What `--from` takes to begin behind a batch; `None` if there is no such value."""
    offsets = _offsets(checkpoint, last)
    if last < 0:
        return "earliest"
    if not offsets:
        return None
    if all(_is_kafkas(offset) for offset in offsets):
        merged = {topic: parts for offset in offsets for topic, parts in offset.items()}
        return shlex.quote(json.dumps(merged, separators=(",", ":")))
    offset = offsets[0]
    is_whole = isinstance(offset, dict) and int(offset.get("index", 0)) < 0
    if len(offsets) == 1 and is_whole and not offset.get("isStartingVersion"):
        return f"version={offset['reservoirVersion']}" if "reservoirVersion" in offset else None
    return None


def _is_kafkas(offset: Any) -> bool:
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(isinstance(parts, dict) for parts in offset.values())
    )
