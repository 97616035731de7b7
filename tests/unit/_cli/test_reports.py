"""JUnit XML, annotations of GitHub and the summary of a run."""

from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
import typer
from made_events import definition, flow_progress, update_progress

from penstock._cli.main import main
from penstock._cli.reports import (
    Case,
    annotations,
    cases_of,
    summary,
    write_junit,
    write_summary,
)
from penstock._model.origin import SourceLocation
from penstock._observe.snapshot import update_view
from penstock._observe.state import ObservedUpdate
from penstock.errors import DefinitionError, DefinitionErrors

SOURCE = """\
import dlt
TOKEN = "dapi0123456789abcdef0123456789abcdef"
query.trigger(once=True)
"""


def test_each_error_is_a_junit_test_case_with_its_location(tmp_path: Path):
    origin = SourceLocation("src/orders.py", 12)
    first = DefinitionError("TABLE_MISSING", "no <b> & \x1b[0m", origin=origin, hint="declare it")
    second = DefinitionError("OTHER", "wrong")
    cases = cases_of(DefinitionErrors([first, second, first]))
    cases.append(Case(name="silver", group="flow"))
    cases.append(Case(name="unsure", group="flow", verdict="skipped", title="why", text="w"))
    write_junit(tmp_path / "new" / "out.xml", "penstock dry-run", cases)
    suites = Xml.parse(tmp_path / "new" / "out.xml").getroot()
    (suite,) = suites
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped", "errors")} == {
        "tests": "4",
        "failures": "2",
        "skipped": "1",
        "errors": "0",
    }
    by_name = {case.get("name"): case for case in suite}
    case = by_name["TABLE_MISSING src/orders.py:12"]
    assert (case.get("file"), case.get("line")) == ("src/orders.py", "12")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "[TABLE_MISSING] no <b> & ?[0m"
    assert "declare it" in (failure.text or "")
    assert [child.tag for child in by_name["unsure"]] == ["skipped"]
    assert list(by_name["silver"]) == []


def test_annotations_name_file_and_line_and_stay_one_line():
    case = Case(
        name="x",
        group="g",
        verdict="failed",
        title="100%, a: b",
        text="one\ntwo",
        file="a,b.py",
        line=3,
    )
    assert list(annotations([case, Case(name="ok", group="g")])) == [
        "::error file=a%2Cb.py,line=3,title=100%25%2C a%3A b::one%0Atwo"
    ]


def test_lint_writes_a_junit_report(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.py").write_text(SOURCE, encoding="utf-8")
    assert main(["lint", "--text-only", "--junit", "out.xml", "--fail-on", "error"]) == 1
    (suite,) = Xml.parse("out.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
    assert "dapi0123" not in Path("out.xml").read_text()
    assert main(["lint", "--text-only", "--junit", "out.xml", "--fail-on", "never"]) == 0
    (suite,) = Xml.parse("out.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "2")
    (tmp_path / "orders.py").write_text("import dlt\n", encoding="utf-8")
    assert main(["lint", "--text-only", "--junit", "out.xml"]) == 0
    (suite,) = Xml.parse("out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    (tmp_path / "folder").mkdir()
    assert main(["lint", "--text-only", "--junit", "folder"]) == 2
    assert "--junit" in capsys.readouterr().err


def _view(failing_update):
    snapshot = ObservedUpdate()
    for event in failing_update:
        snapshot(event)
    return update_view(snapshot)


def test_the_summary_shows_datasets_rules_and_errors(recorder, tmp_path: Path, monkeypatch):
    view = _view(recorder)
    text = "\n".join(summary(view))
    assert text.startswith("## shop: FAILED\n")
    assert "| silver | streaming table | FAILED |" in text
    assert "| Expectation | Dataset | Passed | Failed | Share |" in text
    assert "| positive\\_amount | silver | 97 | 3 | 3.00% |" in text
    assert "### Errors" in text
    assert "    it \\| broke" not in text  # the message is a block of code: nothing is escaped
    assert "    it | broke" in text

    target = tmp_path / "summary.md"
    write_summary(target, view)
    write_summary(target, view)
    assert target.read_text().count("## shop") == 1
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(target))
    write_summary(target, view)
    assert target.read_text().count("## shop") == 2
    with pytest.raises(typer.BadParameter):
        write_summary(tmp_path, view)


@pytest.fixture
def recorder():
    from penstock._observe.events import (
        ErrorInfo,
        EventOrigin,
        ExpectationCounts,
        FlowMetrics,
        FlowStatus,
        UpdateState,
    )

    update = EventOrigin(pipeline_name="shop", update_id="8c1f")
    flow = EventOrigin(
        pipeline_name="shop", update_id="8c1f", dataset_name="c.s.silver", flow_name="silver"
    )
    error = ErrorInfo(condition="BOOM", class_name="E", message="it | broke\nreally")
    rule = ExpectationCounts(
        name="positive_amount", dataset="c.s.silver", passed_records=97, failed_records=3
    )
    return [
        update_progress(update, UpdateState.RUNNING, ""),
        definition("dataset_definition", flow, "", {"dataset_type": "STREAMING_TABLE"}),
        flow_progress(
            flow,
            FlowStatus.RUNNING,
            "",
            metrics=FlowMetrics(num_output_rows=97, quarantined_records=3),
            expectations=[rule],
        ),
        flow_progress(flow, FlowStatus.FAILED, "", error=error),
        update_progress(update, UpdateState.FAILED, "failed", error=error),
    ]


def test_a_summary_is_written_when_the_update_cannot_start(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text("import penstock as dp\n")
    monkeypatch.setattr("penstock._launch.open_session", _no_session)
    assert main(["run", "--quiet", "--summary", "out.md"]) != 0
    assert "FAILED" in (tmp_path / "out.md").read_text()
    assert "no Java today" in (tmp_path / "out.md").read_text()


def _no_session(*_, **__):
    from penstock.errors import SetupError

    raise SetupError("JAVA_NOT_FOUND", "no Java today")
