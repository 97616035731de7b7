import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock import __main__
from penstock._cli import exit_codes, options
from penstock._cli.failure import report
from penstock._cli.main import app, main
from penstock._cli.masked_output import masked_output
from penstock._cli.update import exit_code_of
from penstock._display.signals import StopSignals
from penstock._display.terminal import Output
from penstock._observe.events import UpdateState
from penstock.errors import (
    DefinitionErrors,
    FlowError,
    InternalError,
    MissingExtraError,
    PlanError,
    SetupError,
    SpecError,
    UpdateFailedError,
)

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}


def penstock(*arguments: str, **kwargs) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **kwargs,
    )


def test_help_imports_no_heavy_package() -> None:
    program = """
import sys, time
begin = time.perf_counter()
from penstock._cli.main import main
code = main(["--help"])
heavy = {"pyspark", "py4j", "delta", "pydantic", "yaml", "pandas", "pyarrow", "rich", "asyncio"}
loaded = {name.partition(".")[0] for name in sys.modules}
print(code, time.perf_counter() - begin, sorted(heavy & loaded))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, spent, imported = done.stdout.splitlines()[-1].split(maxsplit=2)
    assert (code, imported) == ("0", "[]")
    print(f"--help took {float(spent):.2f} s")


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "dry-run",
        "init",
        "preview",
        "quarantine list",
        "quarantine show",
        "events",
        "jars sync",
        "jars verify",
        "jars list",
        "doctor",
        "broker start",
        "broker stop",
        "broker status",
        "demo",
        "ui",
    ],
)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"penstock {command}" in result.output.replace("root", "penstock")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (SpecError("BAD", "wrong", hint="right"), 2, "Error: [BAD] wrong\n  hint: right\n"),
        (
            DefinitionErrors([PlanError("A", "a"), PlanError("B", "b")]),
            2,
            "Error: [A] a\nError: [B] b\n",
        ),
        (MissingExtraError("MISSING_EXTRA", "no kafka"), 2, "Error: [MISSING_EXTRA] no kafka\n"),
        (FlowError("X", "died", flow="f"), 1, "Error: [X] died\n"),
        (
            UpdateFailedError([]),
            1,
            "Error: [UPDATE_FAILED] 0 flows failed\n",
        ),
        (SetupError("NO_JAVA", "no Java"), 3, "Error: [NO_JAVA] no Java\n"),
        (typer.BadParameter("no"), 2, "Error: Invalid value: no\n"),
        (
            typer.BadParameter("Input should be a valid integer, unable to parse string as ..."),
            2,
            "Error: Invalid value: it must be a valid integer\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_error_has_its_exit_code_and_message(
    error: BaseException, code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert report(error, debug=False) == code
    assert capfd.readouterr().err == text


def test_message_and_exit_code_of_an_interrupted_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock._local.doctor.run_checks", interrupted)
    assert main(["doctor"]) == 130
    assert capfd.readouterr() == ("", "interrupted\n")


def test_interrupt_during_the_imports_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "penstock._cli.main")
    monkeypatch.setattr("sys.meta_path", [Interrupted()])
    assert __main__.main() == 130
    assert capfd.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("error", [ValueError("oops"), InternalError("LOST", "lost a flow")])
def test_internal_error_asks_for_a_report_and_writes_a_log(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception as raised:
        assert report(raised, debug=False) == 70
    text = capsys.readouterr().err
    assert "please report it" in text
    assert "Traceback" not in text
    log = Path(next(line for line in text.splitlines() if "with the log" in line).split()[3])
    try:
        assert "raise error" in log.read_text()
        assert str(error) in log.read_text()
        assert log.stat().st_mode & 0o077 == 0
    finally:
        log.unlink()


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (UpdateState.COMPLETED, exit_codes.OK),
        (UpdateState.FAILED, exit_codes.UPDATE_FAILED),
        (UpdateState.CANCELED, exit_codes.INTERRUPTED),
    ],
)
def test_exit_code_follows_the_state_of_the_update(state: UpdateState, code: int) -> None:
    assert exit_code_of(state) == code


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Usage: penstock"),
        (["rnu"], 2, "Did you mean"),
        (["run", "--nonsense"], 2, "No such option: --nonsense"),
        (["run", "--conf", "novalue"], 2, "'novalue' is not KEY=VALUE"),
        (["run", "--refresh", ""], 2, "--refresh: expected at least one name"),
        (["dry-run", "--full-refresh", " , "], 2, "--full-refresh: expected at least one name"),
        (["dry-run", "nowhere.py"], 2, "[SOURCE_NOT_FOUND]"),
        (["check", "-o", "yaml"], 2, "'-o': 'yaml' is not one of"),
        (["events", "--level", "LOUD"], 2, "'LOUD' is not one of INFO, WARN, ERROR, METRICS"),
        (["events", "--update", "abc"], 2, "[UNKNOWN_UPDATE]"),
        (["graph", "--update", "latest"], 0, "no datasets are recorded"),
        (["jars", "list", "--set", "nonsense"], 2, "[UNKNOWN_JAR_SET]"),
        (["init", "../out"], 2, "[INVALID_PROJECT_NAME]"),
        (["broker", "status", "--dir", "b"], 3, "not running"),
        (["broker", "stop", "--dir", "b"], 0, "no broker is running"),
        (["--version"], 0, "penstock 0."),
    ],
)
def test_command_has_its_exit_code_and_message(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("arguments", [["--debug"], []])
def test_a_traceback_is_shown_when_debug_is_on(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if not arguments:
        monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert main(["dry-run", "nowhere.py", *arguments]) == 2
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "Error: [SOURCE_NOT_FOUND]" in text


def test_command_succeeds_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "jars", "list"],
            env=ENVIRONMENT,
            cwd=tmp_path,
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_output_ignores_a_closed_pipe() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        output = Output(stream)
        output.line("one")
        os.close(read_end)
        output.line("two")
        output.line("three")


def test_module_run_returns_the_exit_code(tmp_path: Path) -> None:
    done = penstock("broker", "status", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"not running ({tmp_path / '.penstock' / 'broker'})\n"


def test_list_options_are_split_at_commas() -> None:
    assert options.names(["a, b", "c", "a,,"], "--refresh") == ("a", "b", "c")
    assert options.names(None, "--refresh") == ()
    assert options.assignments(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}


class Stoppable:
    """An update that counts the requests to stop."""

    def __init__(self) -> None:
        self.requests = 0

    def request_stop(self) -> None:
        self.requests += 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_request_a_stop_of_the_running_update(number: signal.Signals) -> None:
    update, before = Stoppable(), signal.getsignal(number)
    now = [100.0]
    with StopSignals(lambda: now[0]) as signals:
        signals.bind(update)
        signal.raise_signal(number)
        now[0] += 0.9
        signal.raise_signal(number)  # the same request, forwarded again
        assert (signals.received, update.requests) == (1, 1)
        now[0] += 0.2
        signal.raise_signal(number)
        assert (signals.received, update.requests) == (2, 2)
        signals.bind(None)  # the JVM ended, and the next update has not started
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert update.requests == 2
    assert signal.getsignal(number) == before


def test_signal_interrupts_before_an_update_runs() -> None:
    now = [100.0]
    with StopSignals(lambda: now[0]):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        now[0] += 0.9
        signal.raise_signal(signal.SIGTERM)  # the same request, forwarded again
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def ignored_hangup() -> "Callable[[], None]":
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("ignored_hangup")
def test_hangup_signal_is_ignored_when_started_with_nohup() -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == 0


@pytest.mark.parametrize(
    ("arguments", "continuous"),
    [(["availableNow"], False), (["once"], False), (["10 seconds"], True), (["default"], True)],
)
def test_trigger_option_decides_whether_the_update_is_continuous(
    tmp_path: Path, arguments: list[str], continuous: bool
) -> None:
    (tmp_path / "pipeline.py").write_text("")
    settings = options.UpdateOptions(path=tmp_path / "pipeline.py", trigger=arguments[0]).settings()
    assert settings.continuous is continuous
    assert settings.configuration["pipelines.trigger"] == arguments[0]


@pytest.mark.parametrize(
    ("trigger", "continuous", "message"),
    [
        ("sometimes", None, "is not one of"),
        ("availableNow", True, "contradicts --continuous"),
        ("1 minute", False, "contradicts --triggered"),
    ],
)
def test_invalid_trigger_is_refused(
    tmp_path: Path, trigger: str, continuous: bool | None, message: str
) -> None:
    (tmp_path / "pipeline.py").write_text("")
    with pytest.raises(typer.BadParameter, match=message):
        options.UpdateOptions(
            path=tmp_path / "pipeline.py", trigger=trigger, continuous=continuous
        ).settings()


def test_pipeline_refuses_job_arguments(tmp_path: Path, capsys):
    source = tmp_path / "shop.py"
    source.write_text("from pyspark import pipelines as dp\n\n@dp.table\ndef t():\n    pass\n")
    assert main(["run", str(source), "--", "--topic", "orders"]) != 0
    printed = capsys.readouterr().err
    assert "[SOURCE_IS_NOT_JOB]" in printed
    assert not (tmp_path / ".penstock").exists()


def test_characters_missing_in_the_output_encoding_are_replaced(monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    with masked_output():
        print("Größe 日")
    assert ascii_only.buffer.getvalue() == b"Gr??e ?\n"


def test_output_is_discarded_when_it_was_closed(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["--version"]) == exit_codes.OK
    assert main(["status", "--storage", "/nonexistent"]) == exit_codes.USAGE
