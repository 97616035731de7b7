"""What `quarantine replay` says: for programs, and for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock._display.text import plural

if TYPE_CHECKING:
    from penstock._repair.quarantine_replay import Replayed, ReplayPreview


def replayed_body(done: "Replayed") -> dict[str, Any]:
    """What a replay did, for JSON."""
    return {
        "table": done.table,
        "quarantine_version": done.version,
        "chosen": done.chosen,
        "moved": done.moved,
        "kept": done.kept,
        "resumed": done.resumed,
        "finished": None if done.finished is None else _counts(done.finished),
    }


def preview_body(replay: "ReplayPreview") -> dict[str, Any]:
    """What a replay would do, for JSON."""
    return {
        "table": replay.table,
        "quarantine_version": replay.version,
        "chosen": replay.chosen,
        "would_move": replay.moves,
        "would_keep": replay.keeps,
        "by_rule": dict(replay.by_rule),
        "unfinished": replay.unfinished,
    }


def replayed_lines(done: "Replayed", *, is_all: bool) -> Iterator[str]:
    """What a replay did.

    Args:
        done: The outcome.
        is_all: All rows were meant.
    """
    if done.finished is not None:
        yield f"an interrupted replay of other rows was finished first: {_moved(done.finished)}"
    if done.version is None:
        yield f"no row of {done.table} was ever in quarantine"
        return
    if done.resumed and done.finished is None:
        # What was decided then, whatever is asked for now.
        yield f"an interrupted replay was finished: {_moved(done)}"
    elif is_all:
        yield _moved(done)
    elif not done.chosen:
        yield f"no row in the quarantine of {done.table} is like that; nothing was changed"
    else:
        yield f"{plural(done.chosen, 'row')} chosen: {_moved(done)}"


def preview_lines(replay: "ReplayPreview", *, is_all: bool) -> Iterator[str]:
    """What a replay would do.

    Args:
        replay: The outlook.
        is_all: All rows are meant.
    """
    if replay.version is None:
        yield f"no row of {replay.table} was ever in quarantine"
        return
    if replay.unfinished:
        yield (
            "an interrupted replay would be finished first, as it was decided then; "
            "these figures are of the quarantine as it is"
        )
    if not replay.chosen and not is_all:
        yield f"no row in the quarantine of {replay.table} is like that"
        return
    chosen = "" if is_all else f"{plural(replay.chosen, 'row')} chosen: "
    yield (
        f"{chosen}{plural(replay.moves, 'row')} would move into {replay.table}, "
        f"{replay.keeps:,} would stay in quarantine"
    )
    for rule, rows in replay.by_rule.items():
        yield f"  {plural(rows, 'row')} would break {rule}"
    yield "nothing was changed: --dry-run"


def _counts(done: "Replayed") -> dict[str, int]:
    return {"chosen": done.chosen, "moved": done.moved, "kept": done.kept}


def _moved(done: "Replayed") -> str:
    stay = "stays" if done.kept == 1 else "stay"
    return (
        f"{plural(done.moved, 'row')} moved into {done.table}, {done.kept:,} {stay} in quarantine"
    )
