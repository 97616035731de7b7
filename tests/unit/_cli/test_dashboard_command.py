import sys
from pathlib import Path

import pytest

from penstock._cli import exit_codes
from penstock._cli.main import main

LOGS = Path(__file__).parents[1] / "_ui" / "logs"


def test_the_extra_is_named_when_its_packages_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["ui", str(LOGS / "shop")]) == exit_codes.USAGE
    told = capsys.readouterr().err
    assert "[MISSING_EXTRA]" in told
    assert 'pip install "penstock[ui]"' in told


def test_a_token_is_refused_when_it_can_be_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--token", "short", str(LOGS / "shop")]) == exit_codes.USAGE
    assert "at least 12 characters" in capsys.readouterr().err


def test_a_project_is_asked_for_when_a_path_has_neither_events_nor_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path / "nothing")]) == exit_codes.USAGE
    assert "nothing" in capsys.readouterr().err
