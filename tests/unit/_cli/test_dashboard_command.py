import sys
from pathlib import Path

import pytest

from penstock._cli import exit_codes
from penstock._cli.main import main

LOGS = Path(__file__).parents[1] / "_ui" / "logs"


def test_error_names_the_extra_when_its_packages_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["ui", str(LOGS / "shop")]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "[MISSING_EXTRA]" in error
    assert 'pip install "penstock[ui]"' in error


def test_short_token_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--token", "short", str(LOGS / "shop")]) == exit_codes.USAGE
    assert "at least 12 characters" in capsys.readouterr().err


def test_error_names_the_path_when_it_has_no_events_and_no_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop"
    assert main(["ui", str(path)]) == exit_codes.USAGE
    assert str(path) in capsys.readouterr().err
