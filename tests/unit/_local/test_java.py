from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._local.java import parse_feature, require_java
from penstock.errors import SetupError


def _fake_java(home: Path, *, release: str | None = None, prints: str | None = None) -> Path:
    """A Java home whose `java` is a script that prints `prints`, or fails without it."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    body = "exit 1" if prints is None else f"cat >&2 <<'END'\n{prints}\nEND"
    executable.write_text(f"#!/bin/sh\n{body}\n")
    executable.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{release}"\n')
    return executable


@pytest.fixture
def set_java(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets `JAVA_HOME` and `PATH`."""

    def set_both(home: Path | None, path: str = "/usr/bin:/bin") -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        if home is not None:
            monkeypatch.setenv("JAVA_HOME", str(home))
        monkeypatch.setenv("PATH", path)

    return set_both


@pytest.mark.parametrize(
    ("version", "feature"),
    [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25), ("11.0.2+9", 11)],
)
def test_feature_release_is_parsed_from_any_version_format(version: str, feature: int) -> None:
    assert parse_feature(version) == feature


def test_feature_release_of_an_invalid_version_is_refused() -> None:
    with pytest.raises(ValueError, match="not a Java version"):
        parse_feature("latest")


def test_version_is_parsed_after_other_lines_of_output(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    output = 'Picked up JAVA_TOOL_OPTIONS: -Da="b"\nopenjdk version "21.0.1" 2023-10-17\nmore'
    _fake_java(tmp_path, prints=output)
    set_java(tmp_path)
    assert require_java().version == "21.0.1"


def test_java_home_takes_precedence_over_path(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    expected = _fake_java(tmp_path / "a", release="21.0.2")
    other = _fake_java(tmp_path / "b", release="17.0.1")
    set_java(tmp_path / "a", str(other.parent))
    actual = require_java()
    assert (actual.executable, actual.version, actual.feature) == (expected.resolve(), "21.0.2", 21)
    set_java(None, str(other.parent))
    assert require_java().feature == 17


def test_version_is_read_from_java_without_a_release_file(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    _fake_java(tmp_path, prints='openjdk version "17.0.9" 2023-10-17')
    set_java(tmp_path)
    assert require_java().version == "17.0.9"


def test_old_java_is_refused_with_its_version(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    _fake_java(tmp_path, release="1.8.0_392")
    set_java(tmp_path)
    with pytest.raises(SetupError) as caught:
        require_java()
    assert caught.value.condition == "JAVA_TOO_OLD"
    assert "1.8.0_392" in caught.value.message
    assert "17" in (caught.value.hint or "")


def test_missing_java_is_reported_when_path_has_none(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    set_java(None, str(tmp_path))
    with pytest.raises(SetupError) as caught:
        require_java()
    assert caught.value.condition == "JAVA_NOT_FOUND"
    assert "JAVA_HOME" in (caught.value.hint or "")


def test_wrong_java_home_is_reported_when_path_has_a_good_java(
    tmp_path: Path, set_java: Callable[..., None]
) -> None:
    good = _fake_java(tmp_path / "good", release="17.0.1")
    set_java(tmp_path / "gone", str(good.parent))
    with pytest.raises(SetupError) as caught:
        require_java()
    assert caught.value.condition == "JAVA_NOT_FOUND"
    assert str(tmp_path / "gone") in caught.value.message


def test_java_that_does_not_run_is_reported(tmp_path: Path, set_java: Callable[..., None]) -> None:
    _fake_java(tmp_path)
    set_java(tmp_path)
    with pytest.raises(SetupError) as caught:
        require_java()
    assert caught.value.condition == "JAVA_NOT_FOUND"
    assert "status 1" in caught.value.message
