"""The result of `quarantine replay` as JSON and as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock._cli.options import attributes
from penstock._display.text import plural

if TYPE_CHECKING:
    from penstock._repair.quarantine_replay import Replayed, ReplayPreview


def replayed_body(done: "Replayed") -> dict[str, Any]:
    return {
        **attributes(done, "table", "chosen", "moved", "kept", "resumed"),
        "quarantine_version": done.version,
        "finished": done.finished and attributes(done.finished, "chosen", "moved", "kept"),
    }


def preview_body(preview: "ReplayPreview") -> dict[str, Any]:
    return {
        **attributes(preview, "table", "chosen", "unfinished"),
        "quarantine_version": preview.version,
        "would_move": preview.moves,
        "would_keep": preview.keeps,
        "by_rule": dict(preview.by_rule),
    }


def replayed_lines(done: "Replayed", *, is_all: bool) -> Iterator[str]:
    """The result of a replay as text; `is_all` if no option selected rows."""
    if done.finished is not None:
        yield f"an interrupted replay of other rows was finished first: {_moved(done.finished)}"
    if done.version is None:
        yield f"{done.table} has no quarantined rows"
        return
    if done.resumed and done.finished is None:
        # The interrupted replay keeps its own selection.
        yield f"an interrupted replay was finished: {_moved(done)}"
    elif is_all:
        yield _moved(done)
    elif not done.chosen:
        yield f"no row in the quarantine of {done.table} matches; nothing was changed"
    else:
        yield f"{plural(done.chosen, 'row')} chosen: {_moved(done)}"


def preview_lines(preview: "ReplayPreview", *, is_all: bool) -> Iterator[str]:
    """The result of a dry run as text; `is_all` if no option selected rows."""
    if preview.version is None:
        yield f"{preview.table} has no quarantined rows"
        return
    if preview.unfinished:
        yield (
            "an interrupted replay would be finished first, with its own selection; "
            "these figures are of the current quarantine"
        )
    if not preview.chosen and not is_all:
        yield f"no row in the quarantine of {preview.table} matches"
        return
    chosen = "" if is_all else f"{plural(preview.chosen, 'row')} chosen: "
    yield (
        f"{chosen}{plural(preview.moves, 'row')} would move into {preview.table}, "
        f"{preview.keeps:,} would stay in quarantine"
    )
    for rule, rows in preview.by_rule.items():
        yield f"  {plural(rows, 'row')} would break {rule}"
    yield "nothing was changed (--dry-run)"


def _moved(done: "Replayed") -> str:
    stay = "stays" if done.kept == 1 else "stay"
    return (
        f"{plural(done.moved, 'row')} moved into {done.table}, {done.kept:,} {stay} in quarantine"
    )
