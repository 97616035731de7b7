"""`preview`, `quarantine`, `quality` and `events`: contents of tables and of the event log."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import options
from penstock._cli.tables import print_table
from penstock._display.text import printable, seconds
from penstock._model.quantity import plural

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings
    from penstock._observe.events import Event
    from penstock._repair.quarantine_replay import Replayed, ReplayPreview
    from penstock._tables.read.preview import TablePreview

_quarantine = typer.Typer(help="Rows that violated a drop expectation, with the reasons.")
Table = Annotated[str, typer.Argument(help="Name of the table.", metavar="TABLE")]

app = typer.Typer()
app.add_typer(_quarantine, name="quarantine", no_args_is_help=True)


@app.command(
    "preview",
    epilog="Examples: penstock preview silver | penstock preview silver -n 5 --output json",
)
@options.grouped
def preview(
    table: Table,
    limit: options.Limit = 20,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print rows of a table."""
    from penstock._repair.reading import read_table

    _print_rows(table, read_table(project.settings(), table, limit), output)


@_quarantine.command("list", epilog="Example: penstock quarantine list --output json")
@options.grouped
def list_tables(*, project: options.ReadOptions, output: options.Output = "text") -> None:
    """Print how many rows of each table are in quarantine, and which rules they violated."""
    from penstock._repair.reading import list_quarantines

    quarantines = list_quarantines(project.settings())
    if output == "json":
        options.print_json([asdict(item) for item in quarantines])
        return
    if not quarantines:
        print("no table has a quarantine yet")
        return
    lines: list[tuple[str, str, str, str]] = []
    for item in quarantines:
        table, count = item.table, f"{item.rows:,}"
        for rule, rows in item.by_rule.items() or [("-", None)]:
            lines.append((table, count, rule, "-" if rows is None else f"{rows:,}"))
            table = count = ""
    print_table(("table", "rows", "rule", "violated by"), lines, right=("rows", "violated by"))


@_quarantine.command(
    "show", epilog="Examples: penstock quarantine show silver | ... show silver -o json"
)
@options.grouped
def show(
    table: Table,
    limit: options.Limit = 20,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print quarantined rows of a table with the rules that they violated. JSON has their ids."""
    from penstock._repair.reading import read_quarantine

    rows = read_quarantine(project.settings(), table, limit, ids=output == "json")
    _print_rows(f"the quarantine of {table}", rows, output)


@_quarantine.command(
    "replay",
    epilog="Examples: penstock quarantine replay silver | "
    "penstock quarantine replay silver --rule positive_amount --dry-run | "
    "penstock quarantine replay silver --where 'amount < 100' --output json",
)
@options.grouped
def replay(
    table: Table,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule", help="Replay only rows that violated this expectation; may be repeated."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Replay only rows that match: SQL over the columns of the quarantine.",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", metavar="A,B", help="Replay only these row ids; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what a replay would do; changes nothing.")
    ] = False,
    *,
    project: options.RepairOptions,
    output: options.Output = "text",
) -> None:
    """Evaluate the expectations of a table again on its quarantined rows, after a correction.

    Replays all rows, or those that match all options. Rows that pass move into the table; the
    others stay, with the expectations that they violate now. The next replay finishes an
    interrupted one: no row is lost or duplicated. Not possible while the pipeline runs.
    """
    from penstock._repair.quarantine_replay import preview_replay, replay_quarantine
    from penstock._tables.read.row_selection import RowSelection

    rows = options.names(row, "--row")
    selection = RowSelection(rules=tuple(rule or ()), where=where, rows=rows)
    settings = project.settings()
    with options.stdout_to_stderr():
        if dry_run:
            preview = preview_replay(settings, table, selection=selection)
            body = preview_body(preview)
            lines = preview_lines(preview, is_all=selection.is_all)
        else:
            done = replay_quarantine(settings, table, selection=selection)
            body = replayed_body(done)
            lines = replayed_lines(done, is_all=selection.is_all)
    options.show(output, body, lines)


def replayed_body(done: "Replayed") -> dict[str, Any]:
    return {
        **options.attributes(done, "table", "chosen", "moved", "kept", "resumed"),
        "quarantine_version": done.version,
        "finished": done.finished and options.attributes(done.finished, "chosen", "moved", "kept"),
    }


def preview_body(preview: "ReplayPreview") -> dict[str, Any]:
    return {
        **options.attributes(preview, "table", "chosen", "unfinished"),
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
        yield f"  {plural(rows, 'row')} would violate {rule}"
    yield "nothing was changed (--dry-run)"


def _moved(done: "Replayed") -> str:
    stay = "stays" if done.kept == 1 else "stay"
    return (
        f"{plural(done.moved, 'row')} moved into {done.table}, {done.kept:,} {stay} in quarantine"
    )


@app.command(
    "quality",
    epilog="Examples: penstock quality | penstock quality --dataset silver --update all",
)
@options.grouped
def quality(
    update: options.RecordedUpdates = "latest",
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Print only this dataset.")
    ] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="Print only this rule.")] = None,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print how many rows passed and failed each rule, per batch. JSON has an object per line."""
    from penstock._observe import log, segments
    from penstock._observe.rule_counts import rule_counts
    from penstock._project.event_store import read_events_of

    directory = read_events_of(project.settings())
    chosen = None if update == "all" else options.one_update(directory, update)
    events = log.recorded_events(directory, chosen, event_type="flow_progress", dataset=dataset)
    batches = [row for event in events for row in rule_counts(event) if rule in (None, row["rule"])]
    if output == "json":
        for row in batches:
            options.print_json(row, indent=None)
        return
    if not batches:
        has_others = chosen is not None and len(segments.updates(directory)) > 1
        hint = "; --update all prints those of all updates" if has_others else ""
        print(f"no batch has counts of rules{hint}", file=sys.stderr)
        return
    heads = ("timestamp", "flow", "batch_id", "rule", "passed", "failed")
    rows = [
        [f"{cell:,}" if isinstance(cell, int) else cell or "-" for cell in map(row.get, heads)]
        for row in batches
    ]
    print_table(heads, rows, right=("batch_id", "passed", "failed"))


@app.command(
    "events",
    epilog="Examples: penstock events --level WARN | penstock events --follow | "
    "penstock events --update all --type flow_progress --output json",
)
@options.grouped
def events(
    update: options.RecordedUpdates = "latest",
    event_type: Annotated[
        str | None, typer.Option("--type", help="Print only this type, for example flow_progress.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Print only this dataset or sink.")
    ] = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Minimum level: INFO, WARN or ERROR; or METRICS.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they are recorded.")
    ] = False,
    *,
    project: options.ReadOptions,
    output: options.Output = "text",
) -> None:
    """Print the event log."""
    from difflib import get_close_matches

    from penstock._observe import segments
    from penstock._observe.codec import EVENT_TYPES, event_of
    from penstock._observe.events import Level
    from penstock._project.event_store import read_events_of

    if level is not None and level.upper() not in set(Level):
        raise typer.BadParameter(
            f"{level!r} is not one of {', '.join(Level)}", param_hint="--level"
        )
    settings = project.settings()
    directory = read_events_of(settings)
    chosen = None if update == "all" else options.one_update(directory, update)
    is_empty, shows_metrics = True, level is not None or event_type is not None
    wanted = {"update": chosen, "event_type": event_type, "dataset": dataset, "level": level}
    for body in _bodies(settings, wanted, follow=follow):
        is_empty = False
        if output == "json":
            options.print_json(body, indent=None)
        elif (event := event_of(body)) and (event.level is not Level.METRICS or shows_metrics):
            for line in _event_lines(event):
                print(printable(line), flush=follow)
    if is_empty and not follow:
        what = "no events match" if segments.updates(directory) else "there are no events yet"
        near = get_close_matches(event_type or "", EVENT_TYPES, n=1)
        if near and near[0] != event_type:
            what = f"no events have the type {event_type!r} (did you mean {near[0]!r}?)"
        print(f"{what} in {directory}", file=sys.stderr)


def _bodies(
    settings: "PipelineSettings", wanted: dict[str, str | None], *, follow: bool
) -> Iterator[dict[str, Any]]:
    from penstock._observe import log
    from penstock._project.event_store import followed_events

    if not follow:
        yield from log.read_events(log.event_directory(settings), **wanted)
        return
    with followed_events(settings) as directory:
        yield from log.follow(directory, stop=None, **wanted)


def _event_lines(event: "Event") -> list[str]:
    from penstock._observe.codec import time_text

    about = event.origin.flow_name or event.origin.dataset_name or event.origin.sink_name
    message = event.message
    if about and about.lower() not in message.lower():
        message = f"{about}: {message}" if message else about
    figures = _figures(event)
    if figures:
        message = f"{message}: {figures}" if message == about else f"{message} ({figures})"
    timestamp = time_text(event.timestamp)
    lines = [f"{timestamp} {event.level:<5} {event.event_type} {message}".rstrip()]
    if event.error is not None:
        first, *rest = event.error.message.strip().splitlines() or [""]
        lines += [f"    {event.error.class_name}: {first}", *(f"    {text}" for text in rest)]
    return lines


def _figures(event: "Event") -> str:
    from penstock._observe.events import FlowMetrics, FlowProgress
    from penstock._observe.snapshot import rows_discarded

    if not isinstance(event.body, FlowProgress):
        return ""
    body, batch, parts = event.body, event.origin.batch_id, []
    metrics = body.metrics or FlowMetrics()
    if metrics == FlowMetrics():
        return ""
    if body.rolled_up is not None:
        parts.append(f"batches {body.rolled_up.first_batch_id} to {batch} in one event")
    elif batch is not None:
        parts.append(f"batch {batch}")
    for count, verb in (
        (metrics.num_input_rows, "in"),
        (metrics.num_output_rows, "written"),
        (metrics.num_upserted_rows, "merged"),
        (metrics.num_deleted_rows, "deleted"),
    ):
        if count is not None:
            parts.append(f"{plural(count, 'row')} {verb}")
    quarantined = metrics.quarantined_records or 0
    for count, verb in (
        (rows_discarded(metrics.dropped_records or 0, quarantined), "dropped"),
        (quarantined, "quarantined"),
        (metrics.late_records, "late"),
        (metrics.duplicate_records, "duplicate"),
    ):
        if count:
            parts.append(f"{count:,} {verb}")
    if metrics.batch_duration_ms is not None:
        parts.append(f"took {seconds(metrics.batch_duration_ms / 1000)}")
    if metrics.backlog_records is not None:
        parts.append(f"lag {metrics.backlog_records:,}")
    return ", ".join(parts)


def _print_rows(table: str, preview: "TablePreview", output: options.OutputFormat) -> None:
    if output == "json":
        options.print_json([dict(zip(preview.columns, row, strict=True)) for row in preview.rows])
        return
    rows = (["NULL" if cell is None else cell for cell in row] for row in preview.rows)
    print_table(preview.columns, rows)
    print(f"{len(preview.rows):,} of {plural(preview.total, 'row')} of {table}")
