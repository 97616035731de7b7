import json
import re
import sys
from pathlib import Path

import pytest

from penstock._cli.main import main
from penstock._cli.tables import print_table
from penstock._display.terminal import Output
from penstock._observe.events import Event, EventOrigin, PlanWarning
from penstock._observe.log import EventLog


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: list[Event]) -> Path:
    """A folder in which an update has run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORAGE", raising=False)
    log = EventLog(tmp_path / ".penstock" / "events")
    for event in recording:
        log(event)
    log.close()
    return tmp_path


@pytest.mark.usefixtures("project")
def test_events_prints_errors_with_their_location(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["events", "--dataset", "customers", "--level", "error"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-03-04T14:47:43.220Z ERROR flow_progress customers failed (another try cannot help): "
        "a row violates the rule",
        "    ExpectationFailedError: a row of batch 0 violates the rule known_customer: "
        "customer_id = NULL",
        "      declared at transformations/customers.py:12",
    ]


@pytest.mark.usefixtures("project")
def test_events_prints_the_metrics_of_a_micro_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["events", "--dataset", "silver", "--type", "flow_progress"]) == 0
    lines = [line[25:] for line in capsys.readouterr().out.splitlines()]
    assert lines[3:5] == [
        "INFO  flow_progress silver: batch 0, 1,234 rows written, 12 quarantined",
        "INFO  flow_progress silver: batch 0, 1,246 rows in, took 3.2s, lag 2,000",
    ]


@pytest.mark.usefixtures("project")
def test_events_are_json_lines_with_output_json(
    recording: list[Event], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", "--output", "json", "--update", "8c1f2d3e"]) == 0
    bodies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [body["id"] for body in bodies] == [event.id for event in recording]
    assert main(["events", "-o", "json", "--type", "planning_information"]) == 0
    (body,) = capsys.readouterr().out.splitlines()
    assert json.loads(body)["origin"]["dataset_name"].endswith("revenue_per_product_and_day")


@pytest.mark.usefixtures("project")
def test_follow_ends_when_the_update_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["events", "--update", "8c1f", "--follow", "--type", "update_progress"]) == 0
    assert [
        re.sub(r".*update_progress ", "", line).strip()
        for line in capsys.readouterr().out.splitlines()
    ] == [
        "starting Spark",
        "running",
        "1 flow failed; the others finished",
        "UpdateFailedError: 1 flow failed",
    ]


@pytest.mark.usefixtures("project")
def test_message_is_shown_when_no_event_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--dataset", "nowhere"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("no events match in ")
    assert main(["events", "--type", "flow_progres"]) == 0
    assert "'flow_progres' (did you mean 'flow_progress'?)" in capsys.readouterr().err


def test_control_characters_of_data_are_escaped(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "a\x1b]0;title\x07\x9b2Jb"
    print_table(["text"], [[data]])
    Output(sys.stdout).line(data)
    log = EventLog(project / ".penstock" / "events")
    log(Event(EventOrigin(update_id="u1"), PlanWarning(data), data))
    log.close()
    assert main(["events", "--type", "plan_warning"]) == 0
    out = capsys.readouterr().out
    assert out.count(r"a\x1b]0;title\x07\x9b2Jb") == 3
    assert not set("\x1b\x07\x9b") & set(out)


def test_table_cells_are_not_truncated_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    print_table(("key", "[value]"), [("1", long), ("2", "[red]not markup[/red]")])
    lines = capsys.readouterr().out.splitlines()
    assert "[value]" in lines[0]
    assert long in lines[2]
    assert "[red]not markup[/red]" in lines[3]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_cells_are_truncated_only_in_a_terminal(capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_table(["text"], [["x" * 1000]])
    printed = capsys.readouterr().out
    assert len(re.findall("x", printed.partition("text")[2])) == (399 if is_terminal else 1000)
    assert ("…" in printed) is is_terminal
