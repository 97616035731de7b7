import os
import sys
from pathlib import Path

import pytest

from penstock._local import cds
from penstock._local.java import Java
from penstock.errors import SetupError

JAVA = Java(executable=Path("/java/bin/java"), version="17.0.15", feature=17)
_TRAIN = "import os, pathlib; pathlib.Path(os.environ['PENSTOCK_CDS_TRAINING']).write_text('x')"


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(cds, "require_java", lambda: JAVA)
    monkeypatch.delenv("PENSTOCK_CDS_TRAINING", raising=False)


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    jar_files = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in jar_files:
        jar.write_bytes(b"jar")
    return jar_files


def test_archive_name_depends_on_java_and_the_class_path(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Java(executable=JAVA.executable, version="21.0.1", feature=21)
    names = {
        cds.archive_path(jars),
        cds.archive_path(jars[:1]),
        cds.archive_path(jars[::-1]),
    }
    jars[0].write_bytes(b"another jar")
    names.add(cds.archive_path(jars))
    monkeypatch.setattr(cds, "require_java", lambda: newer)
    names.add(cds.archive_path(jars))
    assert len(names) == 5


def test_options_are_empty_when_there_is_no_archive(jars: list[Path]) -> None:
    assert cds.java_options(jars) == []
    assert not cds.is_ready(jars)


def test_options_name_the_archive_after_the_training(jars: list[Path]) -> None:
    archive = cds.build([sys.executable, "-c", _TRAIN], jars)
    assert archive.read_text() == "x"
    assert cds.is_ready(jars)
    options = cds.java_options(jars)
    assert options[:2] == [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
    assert [path.suffix for path in archive.parent.iterdir() if path.suffix == ".tmp"] == []


def test_options_write_the_archive_during_a_training(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CDS_TRAINING", "/x/y.jsa")
    options = cds.java_options(jars)
    assert options[0] == "-XX:ArchiveClassesAtExit=/x/y.jsa"


def test_training_is_skipped_when_the_archive_exists(jars: list[Path]) -> None:
    first = cds.build([sys.executable, "-c", _TRAIN], jars)
    again = cds.build([sys.executable, "-c", "raise SystemExit(1)"], jars)
    assert again == first


def test_new_archive_replaces_those_that_were_not_used_for_a_month(jars: list[Path]) -> None:
    train = [sys.executable, "-c", _TRAIN]
    used, unused = cds.build(train, jars), cds.build(train, jars[:1])
    for archive in (used, unused):
        os.utime(archive, (0, 0))
    cds.java_options(jars)
    newest = cds.build(train, jars[::-1])
    assert set(newest.parent.glob("*.jsa")) == {used, newest}


@pytest.mark.parametrize(
    ("program", "message"),
    [("print('no luck'); raise SystemExit(4)", "no luck"), ("pass", "left no archive")],
)
def test_error_has_the_output_of_a_failed_training(
    jars: list[Path], program: str, message: str
) -> None:
    with pytest.raises(SetupError) as caught:
        cds.build([sys.executable, "-c", program], jars)
    assert caught.value.condition == "CLASS_ARCHIVE_FAILED"
    assert message in caught.value.message
    assert not cds.is_ready(jars)


def test_training_fails_after_its_timeout(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cds, "_BUILD_SECONDS", 0.2)
    program = "import threading; threading.Event().wait(60)"
    with pytest.raises(SetupError, match=r"longer than 0\.2 s"):
        cds.build([sys.executable, "-c", program], jars)
