import dataclasses
from pathlib import Path

import pytest

from penstock._model.dataset import Sink
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation, capture_origin, source_location
from penstock._model.pipeline import PipelineSettings


def test_location_is_relative_when_it_is_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = source_location(str(tmp_path / "flows" / "orders.py"), 3)
    outside = source_location("/elsewhere/orders.py", 4)
    assert (str(inside), str(outside)) == ("flows/orders.py:3", "/elsewhere/orders.py:4")


def test_origin_is_the_line_of_the_caller():
    origin = capture_origin()
    assert Path(origin.file).name == "test_origin.py"
    assert Path(__file__).read_text().splitlines()[origin.line - 1].endswith("capture_origin()")


def test_sink_repr_does_not_show_options():
    sink = Sink(
        name="out", format="kafka", options={"password": "hunter2"}, origin=SourceLocation("a", 1)
    )
    assert "hunter2" not in repr(sink)


def test_declarations_are_immutable():
    flow = Flow(name="a", target="b", function=lambda: None, origin=SourceLocation("a", 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        flow.name = "c"


def test_default_settings_are_those_of_plain_spark():
    settings = PipelineSettings(name="p", storage="file:///s", root="/r")
    assert (settings.catalog, settings.schema, settings.quarantine) == (
        "spark_catalog",
        "default",
        True,
    )
    with pytest.raises(TypeError):
        settings.configuration["a"] = "b"
