"""`make test ROOMS=...` runs the tests that a change of these packages can affect."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "rooms.py"


@pytest.fixture(scope="module")
def rooms():
    spec = importlib.util.spec_from_file_location("rooms", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_package_selects_its_tests_and_those_of_importing_packages(rooms):
    tests = rooms.reached_tests(["graph"])
    assert "tests/unit/_graph/test_build.py" in tests
    # `_plan` imports `_graph`, but `_local` does not.
    assert "tests/unit/_plan/test_planner.py" in tests
    assert [file for file in tests if "/_local/" in file] == []


def test_top_package_selects_few_tests_and_bottom_package_most(rooms):
    every = list(rooms.TESTS.rglob("test_*.py"))
    top, bottom = rooms.reached_tests(["cli"]), rooms.reached_tests(["errors"])
    assert "tests/e2e/test_cli.py" in top
    assert len(top) < len(every) / 4
    assert len(bottom) > len(every) * 3 / 4
    assert set(rooms.reached_tests(["cli", "errors"])) == {*top, *bottom}


def test_part_of_a_module_name_selects_tests(rooms):
    tests = rooms.reached_tests(["kafka"])
    assert "tests/unit/sources/test_kafka_options.py" in tests
    assert "tests/kafka/test_kafka_sink.py" in tests
    assert "tests/jdbc/test_postgresql_sink.py" not in tests


def test_imports_in_the_text_of_a_pipeline_are_followed(rooms):
    # test_time_kills.py imports `penstock.timing` only in the text of a pipeline.
    assert "tests/kafka/test_time_kills.py" in rooms.reached_tests(["timing"])


def test_all_packages_together_select_every_test_of_a_package(rooms):
    tests = set(rooms.reached_tests(rooms.all_rooms()))
    every = {file for file in rooms.TESTS.rglob("test_*.py") if rooms._imports(file)}
    assert {str(file.relative_to(ROOT)) for file in every} - tests == set()
    assert len(every) > 150


def test_unknown_package_is_refused():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "kafak"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "'kafak'" in done.stderr
    assert "sources" in done.stderr
