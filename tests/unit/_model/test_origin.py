import dataclasses
from pathlib import Path

import pytest

from penstock._model.dataset import Sink
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation, capture_origin, source_location
from penstock._model.pipeline import PipelineSettings


def test_a_location_is_shown_from_the_project_when_it_lies_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = source_location(str(tmp_path / "flows" / "orders.py"), 3)
    outside = source_location("/elsewhere/orders.py", 4)
    assert (str(inside), str(outside)) == ("flows/orders.py:3", "/elsewhere/orders.py:4")


def test_the_callers_line_is_captured_when_a_declaration_is_made():
    origin = capture_origin()
    assert Path(origin.file).name == "test_origin.py"
    assert Path(__file__).read_text().splitlines()[origin.line - 1].endswith("capture_origin()")


def test_options_are_not_shown_when_a_sink_is_printed():
    sink = Sink(
        name="out", format="kafka", options={"password": "hunter2"}, origin=SourceLocation("a", 1)
    )
    assert "hunter2" not in repr(sink)


def test_a_declaration_cannot_be_changed_when_it_is_made():
    flow = Flow(name="a", target="b", function=lambda: None, origin=SourceLocation("a", 1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        flow.name = "c"


def test_the_defaults_are_those_of_a_plain_spark_when_settings_say_nothing():
    settings = PipelineSettings(name="p", storage="file:///s", root="/r")
    assert (settings.catalog, settings.schema, settings.quarantine) == (
        "spark_catalog",
        "default",
        True,
    )
    with pytest.raises(TypeError):
        settings.configuration["a"] = "b"
