"""`status`, `history` and `metrics`: the state of a pipeline from its event log."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from typing import Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock._cli.masked_output import print_as_is
from penstock._cli.tables import WIDE, print_table, shown_id
from penstock._display.terminal import detect
from penstock._display.text import printable, rows_text, seconds, size
from penstock._model.name import find_name
from penstock._model.quantity import plural

_WATCH_SECONDS = 1.0
_SHOWN_LOSS_SECONDS = 86_400.0
_WIDE_ONLY = ("batch", "in/s", "state rows")
"""Columns of the table of flows that are hidden in narrow terminals."""

_CLEAR = "\x1b[H\x1b[2J"

app = typer.Typer()


@app.command("history", epilog="Examples: penstock history | penstock history -n 5 -o json")
@options.grouped
def history(
    limit: options.Limit = 20, *, project: options.ReadOptions, output: options.Output = "text"
) -> None:
    """List the recorded updates, newest first, with start, state, duration and error."""
    from penstock._observe.events import UpdateProgress
    from penstock._observe.log import last_progress
    from penstock._observe.segments import began, updates
    from penstock._observe.unfinished import PROCESS_GONE, has_ended
    from penstock._project.event_store import holder_of, read_events_of

    settings = project.settings()
    holder = holder_of(settings)
    rows: list[dict[str, Any]] = []
    for file in updates(read_events_of(settings))[: -limit - 1 : -1]:
        event = last_progress(file)
        body = event and event.body
        state = body.state.value if isinstance(body, UpdateProgress) else None
        # A lease without the id of an update may belong to any update.
        is_held = holder is not None and holder.get("update") in (None, file.update_id)
        is_over = has_ended(event)
        is_gone = not (is_held or is_over)
        error = event.error if event is not None else None
        started, took = began(file), None
        last = event.timestamp if event is not None else None
        if end := last if is_gone or is_over else datetime.now(UTC):
            took = max(0.0, round((end - started).total_seconds(), 3))
        rows.append(
            {
                "update_id": file.update_id,
                "started": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
                "state": "FAILED" if is_gone else state,
                "seconds": took,
                "error": PROCESS_GONE if is_gone else error and error.condition,
            }
        )
    if output == "json":
        options.print_json(rows)
        return
    if not rows:
        print(f"pipeline {settings.name!r} has no recorded update", file=sys.stderr)
        return
    print_table(
        ("started", "update", "state", "duration", "error"),
        [
            (
                str(row["started"]),
                shown_id(row["update_id"]),
                str(row["state"] or "-"),
                seconds(row["seconds"]),
                str(row["error"] or "-"),
            )
            for row in rows
        ],
        right=("duration",),
    )


@app.command(
    "status",
    epilog="Examples: penstock status | penstock status shop --watch | "
    "penstock status --output json | jq '.flows[] | {flow, state, lag: .lag.records}'",
)
@options.grouped
def status(
    *,
    project: options.StatusOptions,
    update: options.RecordedUpdate = "latest",
    flow: Annotated[
        str | None, typer.Option("--flow", help="Show the details of this flow.", metavar="NAME")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every second until the update ends.")
    ] = False,
    output: options.Output = "text",
) -> int:
    """Show the state of a running pipeline or of its last update: flows, lag, state, errors.

    Reads the event log only: needs neither Spark nor the lease, and works while the pipeline runs.
    Exit code 0 if the update is running or completed, 1 if it or one of its flows failed or its
    process is gone.
    """
    from penstock.monitoring import status_of

    settings = project.settings()
    pause = threading.Event()
    last = ""
    while True:
        body = status_of(settings, update=update)
        if body is None:
            raise no_update(settings.name, update)
        text = _rendered(body, flow, output, one_line=watch)
        show = print_as_is if output == "json" else print
        if not watch:
            show(text)
        elif sys.stdout.isatty() and output == "text":
            print(f"{_CLEAR}{text}", flush=True)
        elif text != last:
            show(text)
            sys.stdout.flush()
            last = text
        if not (watch and body["is_alive"]):
            return exit_codes.UPDATE_FAILED if has_failed(body) else exit_codes.OK
        pause.wait(_WATCH_SECONDS)


@app.command(
    "metrics",
    epilog="Examples: penstock metrics | penstock metrics shop --update 8c1f | "
    "penstock metrics > /var/lib/node_exporter/shop.prom",
)
@options.grouped
def metrics(
    *,
    project: options.StatusOptions,
    update: options.RecordedUpdate = "latest",
    output: options.Output = "text",
) -> None:
    """Print the metrics of an update in Prometheus format, from its event log, without Spark.

    The same metrics as the endpoint of `run --metrics-port`, also after the end of the update.
    """
    from penstock._observe import log, segments
    from penstock._observe.metrics_endpoint import exposition, require_metrics_extra
    from penstock._observe.state import ObservedUpdate
    from penstock._project.event_store import read_events_of

    if output == "text":
        require_metrics_extra()
    directory = read_events_of(project.settings())
    state = ObservedUpdate()
    for event in log.recorded_events(directory, options.one_update(directory, update)):
        state(event)
    if output == "json":
        options.print_json(_metrics_body(state))
        return
    print(exposition(state)[0].decode(), end="")
    if not segments.updates(directory):
        print(f"there are no events yet in {directory}", file=sys.stderr)


def _metrics_body(state: Any) -> list[dict[str, Any]]:
    from penstock._observe.metrics import metric_series
    from penstock._observe.state import BATCH_BUCKETS, Histogram

    body = []
    for series in metric_series(state):
        metric = series.metric
        samples: list[dict[str, Any]] = []
        for labels, value in series.values.items():
            named = dict(zip(metric.labels, labels, strict=True))
            sample: dict[str, Any] = {"labels": named}
            if isinstance(value, Histogram):
                buckets = [
                    {"above": low, "count": count}
                    for low, count in zip((0.0, *BATCH_BUCKETS), value.counts, strict=True)
                ]
                sample |= {"count": sum(value.counts), "sum": value.total, "buckets": buckets}
            else:
                sample["value"] = value
            samples.append(sample)
        body.append(
            {"name": metric.name, "type": metric.kind.value, "help": metric.help}
            | {"samples": samples}
        )
    return body


def no_update(name: str, update: str) -> Exception:
    from penstock.errors import SpecError

    problem = f"no recorded update of pipeline {name!r} begins with {update!r}"
    hint = "run `penstock history` to list the updates"
    if update == "latest":
        problem = f"pipeline {name!r} has no recorded update"
        hint = "run `penstock run`, or set --storage if the storage is not the default one"
    return SpecError("UNKNOWN_UPDATE", problem, hint=hint)


def has_failed(body: Mapping[str, Any]) -> bool:
    if body["state"] == "FAILED" or not (body["is_alive"] or body["has_ended"]):
        return True
    return failed_flows(body) > 0


def failed_flows(body: Mapping[str, Any]) -> int:
    return sum(flow["state"] == "FAILED" for flow in body["flows"])


def shown_state(state: str, failed: int) -> str:
    """The state with the number of failed flows, while the other flows continue to run."""
    is_final = state in ("FAILED", "COMPLETED", "CANCELED")
    return state if is_final or not failed else f"{state}, {plural(failed, 'flow')} failed"


def _rendered(
    body: Mapping[str, Any], flow: str | None, output: options.OutputFormat, *, one_line: bool
) -> str:
    shown = dict(body)
    if flow is not None:
        name = find_name(flow, [each["flow"] for each in body["flows"]])
        shown["flows"] = [each for each in body["flows"] if each["flow"] == name]
        if not shown["flows"]:
            names = ", ".join(each["flow"] for each in body["flows"]) or "(none yet)"
            raise typer.BadParameter(
                f"there is no flow {flow!r}; the flows are {names}", param_hint="--flow"
            )
    if output == "json":
        indent = None if one_line else 2
        return json.dumps(options.masked_json(shown), ensure_ascii=False, indent=indent)
    if flow is not None:
        return printable("\n".join(_details(shown["flows"][0])))
    width = detect(sys.stdout).width if sys.stdout.isatty() else None
    text = StringIO()
    with redirect_stdout(text):
        for line in _head(body):
            print(line)
        if body["flows"]:
            print()
            _print_flows(body["flows"], width)
        for line in _errors(body):
            print(line)
    return printable(text.getvalue().rstrip("\n"))


def _head(body: Mapping[str, Any]) -> Iterator[str]:
    state = shown_state(body["state"] or "STARTING", failed_flows(body))
    if not (body["is_alive"] or body["has_ended"]):
        state = f"{state}, but its process no longer exists"
    mode = "continuous" if body["continuous"] else "triggered"
    yield f"pipeline {body['pipeline']}: {state} since {body['since'] or '?'} ({mode})"
    process = f", process {body['process_id']}" if body["process_id"] else ""
    yield f"update {body['update_id']}, {seconds(body['seconds'])}{process}"


def _print_flows(flows: list[dict[str, Any]], width: int | None) -> None:
    heads = (
        *("flow", "state", "batch", "rows", "in/s", "processed/s"),
        *("lag", "state rows", "quarantined"),
    )
    rows = []
    for flow in flows:
        last, lag = flow["last_progress"] or {}, flow["lag"] or {}
        store = flow["state_store"]
        rows.append(
            (
                flow["flow"],
                flow["state"],
                _cell(flow["batch_id"]),
                "-" if flow["rows"] is None else f"{flow['rows']:,}",
                _cell(last.get("input_rows_per_second")),
                _cell(last.get("processed_rows_per_second")),
                _lag(lag),
                "-" if store is None else f"{store['rows']:,}",
                f"{flow['quarantined']:,}",
            )
        )
    is_narrow = width is not None and width < WIDE
    shown = [at for at, head in enumerate(heads) if not (is_narrow and head in _WIDE_ONLY)]
    print_table(
        [heads[at] for at in shown],
        [[row[at] for at in shown] for row in rows],
        right=heads[2:],
        width=width,
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _lag(lag: Mapping[str, Any]) -> str:
    if any(source.get("problem") for source in lag.get("sources", ())):
        return "no response"
    if lag.get("records") is None:
        return "-"
    mark = " (falls behind)" if lag["falls_behind"] else ""
    if lag.get("loss") == "happened":
        mark += " (rows lost)"
    elif lag.get("seconds_to_loss") is not None and lag["seconds_to_loss"] < _SHOWN_LOSS_SECONDS:
        mark += f" (loss in {seconds(lag['seconds_to_loss'])})"
    return f"{lag['records']:,}{mark}"


def _waiting(source: Mapping[str, Any]) -> str:
    """The backlog of a folder or table; empty for other sources, or if it is unknown."""
    parts = []
    if source.get("versions") is not None:
        parts.append(plural(source["versions"], "version"))
    if source.get("files") is not None:
        parts.append(plural(source["files"], "file"))
    if parts and source.get("bytes") is not None:
        parts.append(size(source["bytes"]))
    text = f": {', '.join(parts)} behind" if parts else ""
    if source.get("files") or source.get("versions"):
        age = source.get("seconds_behind")
        text += "" if age is None else f", oldest {seconds(age)} old"
    return text


def _partition(part: Mapping[str, Any]) -> str:
    newest, records = part["latest_offset"], part["records"]
    text = f"{part['topic']}/{part['partition']}: at {part['offset']:,} of "
    text += "an unknown end" if newest is None else f"{newest:,}, {records:,} behind"
    if records and part.get("seconds_behind") is not None:
        text += f", oldest {seconds(part['seconds_behind'])} old"
    match part.get("loss"):
        case "happened":
            text += f", {plural(part['lost_records'], 'offset')} lost before they were read"
        case "expected":
            text += f", removed in {seconds(part['seconds_to_loss'])} (by {part['loss_by']})"
        case "unknown":
            text += ", time until it is removed unknown"
    return text


def _errors(body: Mapping[str, Any]) -> Iterator[str]:
    errors = [("update", body["error"])] if body["error"] else []
    errors += [(flow["flow"], flow["exception"]) for flow in body["flows"] if flow["exception"]]
    for name, error in errors:
        yield ""
        yield f"{name}: [{error['condition']}] {error['message']}"
    for warning in body["warnings"][-3:]:
        yield f"warning: {warning}"


def _details(flow: Mapping[str, Any]) -> Iterator[str]:
    from penstock._observe.snapshot import rows_discarded

    yield f"flow {flow['flow']} into {flow['target']}: {flow['state']} since {flow['since'] or '?'}"
    discarded = rows_discarded(flow["dropped"], flow["quarantined"])
    yield (
        f"{plural(flow['batches'], 'batch')}, {rows_text(flow['rows'])}, "
        f"{flow['quarantined']:,} quarantined, {discarded:,} dropped, "
        f"{flow['late_rows']:,} late"
    )
    for batch in flow["recent_progress"][-5:]:
        yield (
            f"  batch {batch['batch_id']} at {batch['ended']}: "
            f"{plural(batch['input_rows'], 'row')} in {seconds(batch['seconds'])}, "
            f"{_cell(batch['input_rows_per_second'])} rows/s in, "
            f"{_cell(batch['processed_rows_per_second'])} rows/s processed"
        )
    lag = flow["lag"]
    if lag is not None:
        work, age = lag["catch_up_seconds"], lag["event_time_seconds"]
        behind = "" if work is None else f", {seconds(work)} of work"
        if age is not None:
            behind += f", newest row {seconds(abs(age))} {'old' if age >= 0 else 'in the future'}"
        yield f"lag: {_lag(lag)}{behind}"
        for source in lag["sources"]:
            yield f"  source {source['source']}{_waiting(source)}"
            if source.get("problem"):
                yield f"    {source['problem']}, since {source['problem_since']}"
            for part in source["partitions"]:
                yield f"    {_partition(part)}"
            for shard in source["shards"]:
                age = seconds(shard["behind_seconds"])
                yield f"    {shard['stream']}/{shard['shard']}: {age} behind"
    store, watermark = flow["state_store"], flow["watermark"]
    if store is not None:
        yield f"state: {plural(store['rows'], 'row')}, {store['bytes']:,} bytes"
    if watermark is not None:
        delay = watermark["delay_seconds"]
        behind = "" if delay is None else f", {seconds(delay)} behind the batch"
        if delay is not None and delay < 0:
            behind = f", {seconds(-delay)} ahead of the batch"
        yield f"watermark: {watermark['value'] or 'not yet'}{behind}"
    for rule in flow["rules"]:
        yield f"rule {rule['name']}: {rule['passed']:,} passed, {rule['failed']:,} failed"
    if flow["exception"]:
        yield f"exception: [{flow['exception']['condition']}] {flow['exception']['message']}"
