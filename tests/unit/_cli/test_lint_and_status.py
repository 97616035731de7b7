"""`lint` and `status` as commands: output formats and exit codes."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from made_events import flow_progress, stream_progress, update_progress

from penstock._cli.main import main
from penstock._cli.tables import shown_id
from penstock._observe.events import (
    ErrorInfo,
    EventOrigin,
    ExpectationCounts,
    FlowMetrics,
    FlowStatus,
    UpdateState,
)
from penstock._observe.log import EventLog
from penstock._runtime.lease import Lease
from penstock._runtime.lease_paths import pipeline_lease_path

SOURCE = """\
import dlt
TOKEN = "dapi0123456789abcdef0123456789abcdef"
query.trigger(once=True)


@dlt.table
def a():
    return spark.readStream.table("b")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "pipeline.yaml").write_text(
        "name: shop\nstorage: .\nlibraries:\n  - file: {path: orders.py}\n", encoding="utf-8"
    )
    return tmp_path


def test_lint_has_every_output_format(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["lint", "--text-only"]) == 1
    text = capsys.readouterr().out
    assert "orders.py:2: error PSL601 secret-in-code: the string is a Databricks token" in text
    assert "page: docs/lint.md#psl303-once-trigger" in text
    assert text.endswith("1 error, 1 warning (text only: queries were not checked)\n")

    assert main(["lint", str(project), "--text-only", "--output", "json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["version"], body["pipeline"], body["complete"]) == (1, "shop", False)
    assert body["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert set(body["findings"][0]) == {
        *("rule", "name", "severity", "file", "line", "flow", "message", "why", "fix", "page")
    }

    assert main(["lint", "--text-only", "--output", "github"]) == 1
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("::error file=orders.py,line=2,title=PSL601 secret-in-code::the string")
    assert "%0Afix: " in second

    assert main(["lint", "--text-only", "--output", "sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= rules
    assert run["results"][1]["locations"][0]["physicalLocation"]["region"]["startLine"] == 3


def test_a_file_name_with_a_space_is_a_uri_in_sarif(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "orders.py").rename(project / "my orders.py")
    spec = project / "pipeline.yaml"
    spec.write_text(spec.read_text("utf-8").replace("orders.py", "my orders.py"), "utf-8")
    assert main(["lint", "--text-only", "--output", "sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "my%20orders.py"}


@pytest.mark.parametrize(
    ("fail_on", "ignored", "code"),
    [
        ("error", "", 1),
        ("error", "PSL601", 0),
        ("warning", "PSL601", 1),
        ("warning", "PSL601, PSL303", 0),
        ("never", "", 0),
    ],
)
def test_lint_fails_at_the_severity_of_fail_on(
    project: Path, fail_on: str, ignored: str, code: int
):
    with (project / "pipeline.yaml").open("a", encoding="utf-8") as spec:
        spec.write(f"lint:\n  ignore: [{ignored}]\n")
    assert main(["lint", "--text-only", "--fail-on", fail_on]) == code


def test_lint_explains_a_rule(capsys: pytest.CaptureFixture[str]):
    assert main(["lint", "--explain", "psl501"]) == 0
    assert "three truth values" in capsys.readouterr().out
    assert main(["lint", "--explain", "PSL501", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "PSL501"
    assert main(["lint", "--explain", "PSL000"]) == 2


@pytest.mark.parametrize("command", ["lint", "status", "quality", "history"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "--help"]) == 0
    assert f"penstock {command}" in capsys.readouterr().out.split("Examples:")[1]


def _record(project: Path, *, failed: bool) -> None:
    update = EventOrigin(pipeline_name="shop", update_id="8c1f")
    batch = EventOrigin(
        pipeline_name="shop", update_id="8c1f", dataset_name="c.s.a", flow_name="a", batch_id=4
    )
    info = ErrorInfo(condition="FLOW_FAILED", class_name="FlowError", message="no\n  hint: yes")
    log = EventLog(project / "events")
    log(update_progress(update, UpdateState.RUNNING, "running"))
    log(flow_progress(batch, FlowStatus.RUNNING, ""))
    source = {
        "description": "KafkaV2[Subscribe[orders]]",
        "endOffset": {"orders": {"0": 7}},
        "latestOffset": {"orders": {"0": 19}},
    }
    log(
        stream_progress(
            batch,
            {"batchId": 4, "numInputRows": 7, "durationMs": {"triggerExecution": 500}}
            | {"timestamp": "2026-01-01T00:00:00Z", "sources": [source]}
            | {"eventTime": {"watermark": "2027-01-01T00:00:00.000Z"}},
        )
    )
    metrics = FlowMetrics(num_input_rows=7, batch_duration_ms=500, backlog_records=12)
    log(flow_progress(batch, FlowStatus.RUNNING, "", metrics=metrics))
    state = UpdateState.FAILED if failed else UpdateState.COMPLETED
    if failed:
        log(flow_progress(batch, FlowStatus.FAILED, "", error=info))
    log(update_progress(update, state, "ended", error=info if failed else None))
    log.close()


def test_status_shows_the_newest_update(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["status"]) == 2
    assert "UNKNOWN_UPDATE" in capsys.readouterr().err
    _record(project, failed=False)
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "pipeline shop: COMPLETED since" in text
    assert text.splitlines()[-1].split()[:3] == ["a", "RUNNING", "4"]
    with monkeypatch.context() as narrow:
        narrow.setenv("COLUMNS", "70")
        narrow.setattr(type(sys.stdout), "isatty", lambda _: True)
        assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[3:])) <= 70
    assert lines[3].split() == ["flow", "state", "rows", "processed/s", "lag", "quarantined"]
    assert main(["status", "--flow", "a"]) == 0
    text = capsys.readouterr().out
    assert "orders/0: at 7 of 19, 12 behind" in text
    assert "watermark: 2027-01-01T00:00:00.000Z, 365d00h ahead of the batch" in text
    assert main(["status", "--watch", "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["flows"][0]["lag"]["records"], body["is_alive"]) == (12, False)
    assert main(["status", "--flow", "b"]) == 2
    assert main(["status", "--update", "no"]) == 2


def test_history_has_the_state_of_each_update(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["history"]) == 0
    assert "no recorded update" in capsys.readouterr().err
    log = EventLog(project / "events")
    ahead = update_progress(EventOrigin(update_id="7a"), UpdateState.COMPLETED, "")
    log(replace(ahead, timestamp=datetime(2099, 1, 1, tzinfo=UTC)))
    log.close()
    _record(project, failed=False)
    _record(project, failed=True)
    log = EventLog(project / "events")
    running = update_progress(EventOrigin(update_id="9f"), UpdateState.RUNNING, "")
    log(replace(running, timestamp=datetime.now(UTC) - timedelta(hours=1)))
    log.close()
    with Lease.acquire(pipeline_lease_path(str(project)), holder={"update": "9f"}):
        assert main(["history", "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert 3600 <= rows[0]["seconds"] < 3700
    assert [(row["state"], row["error"]) for row in rows] == [
        ("RUNNING", None),
        ("FAILED", "FLOW_FAILED"),
        ("COMPLETED", None),
        ("COMPLETED", None),
    ]
    assert [row["started"] < "2099" for row in rows] == [True, True, True, False]
    assert main(["history", "-n", "1"]) == 0
    text = capsys.readouterr().out
    assert "9f" in text
    assert "8c1f" not in text


def test_a_running_update_with_a_failed_flow_is_not_listed_as_healthy(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    origin = EventOrigin(pipeline_name="shop", update_id="9f", flow_name="a")
    info = ErrorInfo(condition="FLOW_FAILED", class_name="FlowError", message="no")
    log = EventLog(project / "events")
    log(update_progress(replace(origin, flow_name=""), UpdateState.RUNNING, ""))
    log(flow_progress(replace(origin, dataset_name="c.s.a"), FlowStatus.FAILED, "", error=info))
    log.close()
    with Lease.acquire(pipeline_lease_path(str(project)), holder={"update": "9f"}):
        assert main(["list", "--output", "json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["state"], row["failed_flows"]) == ("RUNNING", 1)
        assert main(["list"]) == 0
        assert "RUNNING, 1 flow failed" in capsys.readouterr().out
        assert main(["status"]) == 1
        assert "pipeline shop: RUNNING, 1 flow failed since" in capsys.readouterr().out


def test_a_pipeline_with_a_sink_that_counts_no_rows_is_listed(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    log = EventLog(project / "events")
    for flow, written in (("a", 3), ("to_audit", None)):
        origin = EventOrigin(pipeline_name="shop", update_id="9f", flow_name=flow, sink_name=flow)
        metrics = FlowMetrics(num_input_rows=3, num_output_rows=written)
        log(flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics))
    log.close()
    assert main(["list", "--output", "json"]) == 0
    assert [row["rows"] for row in json.loads(capsys.readouterr().out)] == [3]


@pytest.mark.parametrize(("columns", "shown"), [("80", "4bf287ac"), ("110", "4bf287ac8a1b4b94")])
def test_ids_are_shortened_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns, shown):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    assert shown_id("4bf287ac8a1b4b94") == shown


def test_status_fails_when_the_update_failed(project: Path, capsys: pytest.CaptureFixture[str]):
    _record(project, failed=True)
    assert main(["status"]) == 1
    assert "a: [FLOW_FAILED] no\n  hint: yes" in capsys.readouterr().out


def test_quality_has_a_line_per_batch_and_rule(project: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["quality"]) == 0
    assert capsys.readouterr().err == "no batch has counts of rules\n"
    log = EventLog(project / "events")
    for number, failed in ((0, 0), (1, 1), (None, 0)):
        origin = EventOrigin(
            pipeline_name="shop",
            update_id="8c1f",
            dataset_name="c.s.a",
            flow_name="a",
            batch_id=number,
        )
        rules = [
            ExpectationCounts(name=name, dataset="c.s.a", passed_records=9, failed_records=failed)
            for name in ("has_id", "positive")
        ]
        metrics = FlowMetrics(num_output_rows=9)
        log(flow_progress(origin, FlowStatus.RUNNING, "", metrics=metrics, expectations=rules))
    log.close()
    assert main(["quality", "--rule", "positive", "--output", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["batch_id"], row["rule"], row["failed"]) for row in lines] == [
        (0, "positive", 0),
        (1, "positive", 1),
        (None, "positive", 0),
    ]
    assert main(["quality", "--dataset", "a", "--update", "8c"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1].split()[2]) == (8, "-")
    assert main(["quality", "--update", "no"]) == 2
