import pytest

from penstock._cli.jars import shown_progress
from penstock._local.jars import SyncProgress


def sync_progress(name: str, done: int, files: int) -> SyncProgress:
    return SyncProgress(
        file_name=name,
        done_bytes=done,
        total_bytes=8_000_000,
        done_files=files,
        total_files=2,
    )


STEPS = [
    sync_progress("a.jar", 1_000_000, 0),
    sync_progress("a.jar", 4_000_000, 1),
    sync_progress("b.jar", 5_000_000, 1),
    sync_progress("b.jar", 8_000_000, 2),
]


def test_each_finished_jar_is_a_line_when_stderr_is_not_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with shown_progress(quiet=False) as progress:
        assert progress is not None
        for step in STEPS:
            progress(step)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2 a.jar (4.0 MB of 8.0 MB)",
        "2 of 2 b.jar (8.0 MB of 8.0 MB)",
    ]


def test_a_bar_is_drawn_when_stderr_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with shown_progress(quiet=False) as progress:
        assert progress is not None
        for step in STEPS:
            progress(step)
    assert "jars 2/2" in capsys.readouterr().err


def test_no_progress_is_shown_when_quiet() -> None:
    with shown_progress(quiet=True) as progress:
        assert progress is None
