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
    made = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in made:
        jar.write_bytes(b"jar")
    return made


def test_archive_has_another_name_when_java_or_the_class_path_is_another(
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


def test_options_name_the_archive_when_the_training_made_one(jars: list[Path]) -> None:
    made = cds.build([sys.executable, "-c", _TRAIN], jars)
    assert made.read_text() == "x"
    assert cds.is_ready(jars)
    options = cds.java_options(jars)
    assert options[:2] == [f"-XX:SharedArchiveFile={made}", "-Xshare:auto"]
    assert [path.suffix for path in made.parent.iterdir() if path.suffix == ".tmp"] == []


def test_options_write_the_archive_when_a_training_runs(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CDS_TRAINING", "/x/y.jsa")
    options = cds.java_options(jars)
    assert options[0] == "-XX:ArchiveClassesAtExit=/x/y.jsa"


def test_training_is_left_out_when_the_archive_is_there(jars: list[Path]) -> None:
    first = cds.build([sys.executable, "-c", _TRAIN], jars)
    again = cds.build([sys.executable, "-c", "raise SystemExit(1)"], jars)
    assert again == first


@pytest.mark.parametrize(
    ("program", "said"),
    [("print('no luck'); raise SystemExit(4)", "no luck"), ("pass", "left no archive")],
)
def test_training_shows_its_output_when_it_fails(jars: list[Path], program: str, said: str) -> None:
    with pytest.raises(SetupError) as caught:
        cds.build([sys.executable, "-c", program], jars)
    assert caught.value.condition == "CLASS_ARCHIVE_FAILED"
    assert said in caught.value.message
    assert not cds.is_ready(jars)


def test_training_is_ended_when_it_takes_too_long(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cds, "_BUILD_SECONDS", 0.2)
    program = "import threading; threading.Event().wait(60)"
    with pytest.raises(SetupError, match=r"longer than 0\.2 s"):
        cds.build([sys.executable, "-c", program], jars)
