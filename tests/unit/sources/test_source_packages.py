"""Sources in other packages: their entry points, and entry points that are refused."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import SetupError
from penstock.sources import registry
from penstock.sources.kafka.source import KafkaSource

MODULE = """
from penstock.sources.base import OpenedSource, Source


class Tape(Source):
    formats = ("Tape",)

    def open(self, read):
        return OpenedSource(read.load(read.options), name="tape")


class Mine(Tape):
    formats = ("kafka",)


class Unfinished(Source):
    formats = ("tape",)


text = "no source"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package that is not installed yet."""
    (tmp_path / "tape_source.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    registry._sources.cache_clear()
    yield tmp_path
    registry._sources.cache_clear()


def install(site: Path, value: str) -> None:
    """Write the metadata that pip installs for a package."""
    folder = site / "tape_source-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tape-source\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[penstock.sources]\ntape = {value}\n")
    importlib.invalidate_caches()


def test_a_package_adds_a_format(site: Path):
    assert type(registry.source_of("tape")) is registry.SparkSource
    registry._sources.cache_clear()
    install(site, "tape_source:Tape")
    assert type(registry.source_of("TAPE")).__name__ == "Tape"
    assert type(registry.source_of("Kafka")) is KafkaSource
    assert type(registry.source_of("tapes")) is registry.SparkSource


@pytest.mark.parametrize("file_format", ["JSON", "binaryFile"])
def test_streams_of_files_read_files_of_any_age(file_format: str):
    checked = registry.source_of(file_format).check_options({}, is_stream=True)
    assert checked == {"maxFileAge": "3650000d"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("tape_source:text", "not a subclass of penstock.sources.base.Source"),
        ("tape_source:Mine", "'kafka', which KafkaSource has already"),
        ("tape_source:Unfinished", "cannot be loaded: Can't instantiate abstract class"),
        ("tape_source:Missing", "cannot be loaded: module 'tape_source' has no attribute"),
        ("no_such_module:Tape", "cannot be loaded: No module named 'no_such_module'"),
    ],
)
def test_invalid_entry_point_of_a_source_is_refused(site: Path, value: str, problem: str):
    install(site, value)
    with pytest.raises(SetupError) as error:
        registry.source_of("kafka")
    assert error.value.condition == "SOURCE_CLASS_INVALID"
    assert "tape-source 1.0" in error.value.message
    assert problem in error.value.message
    assert error.value.hint
