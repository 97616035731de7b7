import io
import json
import re
from dataclasses import replace

import pytest
from made_events import definition, flow_progress, plan_warning, stream_progress
from rich.console import Console

from penstock._display.display import (
    LineDisplay,
    LiveDisplay,
    LogFormat,
    choose_display,
    final_line,
    summary_lines,
)
from penstock._display.lines import JsonPrinter, LinePrinter
from penstock._display.render import WIDE, live_view, summary_table
from penstock._display.terminal import Output, Terminal, console, detect
from penstock._display.text import count, rate, seconds
from penstock._observe.bus import EventBus
from penstock._observe.events import ErrorInfo, Event, EventOrigin, FlowMetrics, FlowStatus
from penstock._observe.snapshot import UpdateView, update_view
from penstock._observe.state import ObservedUpdate


class Screen(io.StringIO):
    """An output that records what is written; a terminal if `is_tty` is set."""

    def __init__(self, *, is_tty: bool = False) -> None:
        super().__init__()
        self._is_tty = is_tty

    def isatty(self) -> bool:
        return self._is_tty


def view_of(events: list[Event]) -> UpdateView:
    snapshot = ObservedUpdate()
    for event in events:
        snapshot(event)
    return update_view(snapshot, events[-1].timestamp)


def drawn(renderable, width: int) -> list[str]:
    drawing = Console(file=io.StringIO(), width=width, color_system=None)
    with drawing.capture() as captured:
        drawing.print(renderable)
    return captured.get().splitlines()


def printed(events: list[Event], *, quiet: bool = False) -> list[str]:
    screen = Screen()
    state = ObservedUpdate()
    printer = LinePrinter(Output(screen), state, quiet=quiet)
    for event in events:
        state(event)
        printer(event)
    lines = screen.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \| ", line) for line in lines)
    return [line[11:] for line in lines]


def test_lines_show_the_start_and_end_of_each_flow(recording: list[Event]) -> None:
    assert printed(recording) == [
        "INITIALIZING starting Spark",
        "RUNNING running",
        "1 of 5 START streaming table bronze",
        "4 of 5 START streaming table customers",
        "1 of 5 OK streaming table bronze 1,246 rows in 2.4s",
        "4 of 5 ERROR streaming table customers",
        "  [EXPECTATION_FAILED] a row of batch 0 violates the rule known_customer: "
        "customer_id = NULL",
        "    declared at transformations/customers.py:12",
        "5 of 5 SKIP materialized view customer_totals: customer_totals skipped: customers failed",
        "2 of 5 START streaming table silver",
        "2 of 5 OK streaming table silver 1,234 rows in 3.4s, 12 quarantined",
        "3 of 5 START materialized view revenue_per_product_and_day",
        "3 of 5 OK materialized view revenue_per_product_and_day unchanged (no source changed)",
        "ERROR 1 flow failed; the others finished",
    ]


def test_schemas_are_shown_when_two_tables_have_the_same_name(recorder) -> None:
    names = ["main.bronze.orders", "main.silver.Orders", "main.silver.customers"]
    origins = [EventOrigin(dataset_name=name, flow_name=name[5:]) for name in names]
    origins.append(replace(origins[0], flow_name="late"))
    for origin in origins[:3]:
        recorder.add(definition("dataset_definition", origin, "", {}))
    for origin in origins:
        recorder.add(flow_progress(origin, FlowStatus.STARTING, ""))
    shown = "bronze.orders", "silver.Orders", "customers", "bronze.orders (flow late)"
    labels = [line.partition(" START ")[2] for line in printed(recorder.events)]
    assert labels == list(shown)


def test_only_errors_are_printed_when_quiet(recording: list[Event]) -> None:
    assert [line.split()[0] for line in printed(recording, quiet=True)] == [
        "4",
        "[EXPECTATION_FAILED]",
        "declared",
    ]


def test_progress_is_printed_every_ten_seconds_when_a_flow_runs_long(recorder) -> None:
    recorder.status("silver", FlowStatus.STARTING)
    for number in range(25):
        recorder.batch("silver", number, 100, 1, took=1.0)
    lines = printed(recorder.events)
    assert lines == [
        "1 of 1 START silver",
        "1 of 1 RUN silver 1,000 rows, 10 quarantined, lag 0",
        "1 of 1 RUN silver 2,000 rows, 20 quarantined, lag 0",
    ]


def test_retry_is_printed_as_a_warning(recorder) -> None:
    error = ErrorInfo(
        condition="KAFKA_DOWN", class_name="FlowError", message="no broker", fatal=False
    )
    recorder.status("silver", FlowStatus.QUEUED, "silver failed, retry 1 in 2.0 s", error=error)
    assert printed(recorder.events) == [
        "WARN silver: silver failed, retry 1 in 2.0 s",
        "  [KAFKA_DOWN] no broker",
    ]


def test_json_lines_parse(recording: list[Event]) -> None:
    screen = Screen()
    printer = JsonPrinter(Output(screen), instance="i")
    for event in recording:
        printer(event)
    bodies = [json.loads(line) for line in screen.getvalue().splitlines()]
    assert len(bodies) == len(recording)
    assert [body["sequence"]["data_plane_id"]["seq_no"] for body in bodies] == list(
        range(len(recording))
    )
    assert bodies[-1]["details"] == {"update_progress": {"state": "FAILED"}}


def test_json_lines_are_errors_and_states_only_when_quiet(recording: list[Event]) -> None:
    screen = Screen()
    printer = JsonPrinter(Output(screen), instance="i", quiet=True)
    for event in recording:
        printer(event)
    kinds = [json.loads(line)["event_type"] for line in screen.getvalue().splitlines()]
    assert kinds == ["update_progress"] * 2 + ["flow_progress", "update_progress"]


@pytest.mark.parametrize("width", [80, 100, WIDE, 200])
def test_live_view_shows_all_values_at_any_width(recording: list[Event], width: int) -> None:
    lines = drawn(live_view(view_of(recording), width=width, height=40), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    for word in ("rows/s", "quarantined", "lag", "COMPLETED", "1,246", "623"):
        assert any(word in line for line in lines), word
    silver = next(line for line in lines if line.startswith("silver"))
    assert silver.split()[:7] == ["silver", "COMPLETED", "1,234", "389", "3.2s", "12", "2,000"]
    assert any("EXPECTATION_FAILED" in line for line in lines)
    assert not any("raw_view" in line for line in lines)
    assert lines[-1].strip() == ""  # space for the `^C` that a terminal prints


def test_failed_and_running_flows_are_shown_when_not_all_fit(recorder) -> None:
    error = ErrorInfo(condition="FLOW_FAILED", class_name="X", message="no", fatal=True)
    for number in range(100):
        recorder.status(f"t{number}", FlowStatus.COMPLETED if number < 60 else FlowStatus.QUEUED)
    recorder.status("t50", FlowStatus.FAILED, error=error)
    recorder.status("t80", FlowStatus.RUNNING)
    lines = drawn(live_view(view_of(recorder.events), width=80, height=12, note="stopping"), 80)
    assert [line.split()[:2] for line in lines[2:9]] == [
        ["t50", "FAILED"],
        *([f"t{number}", "QUEUED"] for number in range(60, 64)),
        ["t80", "RUNNING"],
        ["and", "35"],
    ]
    assert [line.strip() for line in lines[8:]] == [
        "and 35 QUEUED, 59 COMPLETED",
        "t50: [FLOW_FAILED] no",
        "stopping",
        "",
    ]


def test_error_of_a_failed_flow_is_shown_when_others_were_retried(recorder) -> None:
    error = ErrorInfo(condition="FLOW_FAILED", class_name="X", message="no", fatal=False)
    for number in range(7):
        status = FlowStatus.FAILED if number == 6 else FlowStatus.RUNNING
        recorder.status(f"t{number}", status, error=error)
    lines = drawn(live_view(view_of(recorder.events), width=80, height=40), 80)
    errors = [line.split(":")[0] for line in lines if "[FLOW_FAILED]" in line]
    assert errors == ["t6", "t0", "t1", "t2", "t3"]


def test_large_numbers_are_abbreviated() -> None:
    biggest = [count(n) for n in (9_999_999, 999_949_999, 999_949_999_999, -9_999_999)]
    assert biggest == ["9,999,999", "999.9M", "999.9G", "-9,999,999"]
    assert max(len(count(10**power + 1)) for power in range(15)) <= 9
    assert [rate(None), rate(0.0), rate(3.44), rate(12_345.6)] == ["-", "0", "3.4", "12,346"]
    assert [seconds(t) for t in (None, 0.004, 0.996, 59.96, 125, 3_725, 23_628_700)] == [
        "-",
        "0.00s",
        "1.0s",
        "1m00s",
        "2m05s",
        "1h02m",
        "273d11h",
    ]


def test_late_and_duplicate_rows_and_warnings_are_reported(recorder) -> None:
    recorder.add(plan_warning(recorder.origin(), "silver: the aggregation keeps every group"))
    recorder.status("silver", FlowStatus.QUEUED)
    recorder.status("silver", FlowStatus.STARTING)
    origin = recorder.origin("silver", batch=1)
    for late in (2, 1):
        metrics = FlowMetrics(
            num_output_rows=5,
            num_deleted_rows=2,
            dropped_records=7,
            quarantined_records=3,
            late_records=late,
            duplicate_records=late - 1,
        )
        recorder.add(flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics), 0.1)
    recorder.status("silver", FlowStatus.COMPLETED)
    times = {"eventTime": {"watermark": "+57970-01-01T00:00:00.000Z"}}
    recorder.add(stream_progress(origin, {"timestamp": "2026-01-01T00:00:00.000Z", **times}))
    lines = printed(recorder.events)
    assert lines[0] == "WARN silver: the aggregation keeps every group"
    assert lines[-1].endswith(
        "10 rows in 0.30s, 4 deleted, 6 quarantined, 8 dropped, 3 late, 1 duplicate"
    )
    view = view_of(recorder.events)
    assert final_line(view).endswith("10 rows written, 6 quarantined, 8 dropped")
    assert summary_lines(view) == [
        "4 rows of silver deleted",
        "3 late rows of silver: the watermark is ahead of the clock, at 9999-12-31T23:59:59.999Z",
        "1 duplicate of silver left out",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_summary_shows_expectations_and_logs(recording: list[Event], width: int) -> None:
    view = view_of(recording)
    lines = drawn(summary_table(view, width=width), width)
    assert lines[0].split()[:6] == ["dataset", "state", "rows", "quarantined", "dropped", "time"]
    assert [line.split()[1] for line in lines[1:]] == [
        "COMPLETED",
        "COMPLETED",
        "IDLE",
        "FAILED",
        "SKIPPED",
    ]
    assert summary_lines(view) == [
        "rule positive_amount of silver: violated by 12 of 1,246 rows",
        "event log: /data/events",
        "Spark log: /data/logs/spark-8c1f.log",
    ]
    assert final_line(view) == (
        "shop FAILED in 8.4s: 5 datasets, 2,480 rows written, 12 quarantined, "
        "failed: customers, skipped: customer_totals"
    )


@pytest.mark.parametrize(
    ("is_tty", "environ", "live", "colour"),
    [
        (True, {"TERM": "xterm"}, True, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        (True, {"TERM": "xterm", "CI": "true"}, False, True),
        (True, {"TERM": "xterm", "CI": "false"}, True, True),
        (True, {"TERM": "dumb"}, False, False),
        (False, {"TERM": "xterm"}, False, False),
    ],
)
def test_terminal_is_detected_from_the_environment(
    is_tty: bool, environ: dict[str, str], live: bool, colour: bool
) -> None:
    terminal = detect(Screen(is_tty=is_tty), {**environ, "COLUMNS": "90"})
    assert (terminal.is_live, terminal.has_colour, terminal.width) == (live, colour, 90)


@pytest.mark.parametrize(("colour", "expected"), [(True, True), (False, False)])
def test_live_table_has_colours_only_when_the_terminal_has(
    recording: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    colour: bool,
    expected: bool,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen(is_tty=True)
    monkeypatch.setattr("sys.stdout", screen)
    snapshot = ObservedUpdate()
    for event in (*recording, plan_warning(recording[0].origin, "silver: keeps every group")):
        snapshot(event)
    terminal = Terminal(is_live=True, has_colour=colour, width=80)
    with LiveDisplay(snapshot, terminal):
        pass
    text = screen.getvalue()
    assert ("\x1b[32m" in text) is expected  # green: COMPLETED
    assert "\x1b[2K" in text  # drawn in place
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "shop FAILED in 8.4s" in plain.replace("\n", "")
    assert "WARN silver: keeps every group" in plain


def test_plain_summary_has_no_escape_codes(
    recording: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = ObservedUpdate()
    for event in recording:
        snapshot(event)
    terminal = Terminal(is_live=False, has_colour=False, width=80)
    with LineDisplay(snapshot, terminal, quiet=False):
        pass
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "silver                      COMPLETED     1,234          12         0   3.4s" in text
    with LineDisplay(snapshot, terminal, quiet=True):
        pass
    assert capsys.readouterr().out.count("\n") == 1


def test_no_summary_is_printed_when_the_update_did_not_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal(is_live=False, has_colour=False, width=80)
    with LineDisplay(ObservedUpdate(), terminal, quiet=False):
        pass
    assert capsys.readouterr().out == ""


def test_output_replaces_characters_missing_in_the_encoding() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Output(stream).line("früh …")
    assert raw.getvalue() == b"fr?h ?\n"


def test_console_ignores_force_color_when_the_terminal_has_no_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = Screen()
    terminal = Terminal(is_live=False, has_colour=False, width=80)
    console(terminal, screen).print("[bold]plain[/bold] :smile:", style="red")
    assert screen.getvalue() == "[bold]plain[/bold] :smile:\n"


def test_only_events_are_written_to_stdout_with_json_lines(
    recording: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    bus, snapshot = EventBus(), ObservedUpdate()
    with choose_display(bus, snapshot, log_format=LogFormat.JSON, quiet=False):
        bus.emit(recording[0])
        print("from the pipeline's own code")
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    assert json.loads(line)["event_type"] == "create_update"
    assert captured.err == "from the pipeline's own code\n"


def test_repeated_refreshes_of_a_view_are_printed_every_ten_seconds(
    recorder,
) -> None:
    r = recorder
    kind = {"dataset_type": "MATERIALIZED_VIEW"}
    r.add(definition("dataset_definition", r.origin("totals"), "", kind))
    r.status("totals", FlowStatus.QUEUED)
    r.status("totals", FlowStatus.STARTING)
    for rows in range(100, 130):
        r.add(
            flow_progress(
                r.origin("totals"),
                FlowStatus.RUNNING,
                "a source changed",
                metrics=FlowMetrics(num_output_rows=rows),
            ),
            1.0,
        )
        r.status("totals", FlowStatus.COMPLETED)
    assert printed(r.events) == [
        "1 of 1 START materialized view totals",
        "1 of 1 OK materialized view totals 100 rows in 1.1s",
        "1 of 1 RUN materialized view totals 109 rows",
        "1 of 1 RUN materialized view totals 118 rows",
        "1 of 1 RUN materialized view totals 128 rows",
    ]
