import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project.sources import find_sources, imports_api
from penstock.errors import SpecError


def _found(project, *patterns):
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(project.root), source_patterns=patterns
    )
    return [str(path.relative_to(project.root.parent)) for path in find_sources(settings)]


@pytest.mark.parametrize(
    "text",
    [
        "import penstock as dp",
        "import dlt",
        "import os, dlt",
        "    import dlt",
        "from dlt import *",
        "from penstock import table",
        "from pyspark import pipelines as dp",
        "from pyspark import SparkContext, pipelines",
        "from pyspark import (\n    SparkContext,\n    pipelines as dp,\n)",
        "import pyspark.pipelines as dp",
        "from pyspark.pipelines import table",
        "'''doc'''\nimport dlt  # comment",
    ],
)
def test_file_is_a_pipeline_when_it_imports_the_api(text):
    assert imports_api(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# import dlt",
        "import dlthub",
        "from dlt.sources import x",
        "from penstock.testing import run",
        "from pyspark.sql import functions",
        "from pyspark.ml import Pipeline",
        "x = 'import dlt'",
    ],
)
def test_file_is_no_pipeline_when_it_imports_something_else(text):
    assert not imports_api(text)


def test_pipeline_files_of_the_folder_are_found_when_nothing_is_listed(project):
    project.write("b.py", "import dlt\n")
    project.write("a.py", "import penstock as dp\n")
    project.write("rules.py", "RULES = {}\n")
    project.write("test_a.py", "import penstock as dp\n")
    project.write("deep/c.py", "import dlt\n")
    assert _found(project) == ["orders/a.py", "orders/b.py"]


def test_error_tells_what_to_do_when_the_folder_has_no_pipeline(project):
    with pytest.raises(SpecError) as caught:
        _found(project)
    assert caught.value.condition == "SOURCE_NOT_FOUND"
    assert "penstock init" in caught.value.hint


def test_python_files_are_found_in_order_when_a_folder_is_listed(project):
    for name in ("t/b.py", "t/a/z.py", "t/a/README.md", "t/.hidden/x.py", "t/__pycache__/y.py"):
        project.write(name)
    project.write("t/.ipynb_checkpoints/x.ipynb")
    assert _found(project, "t/**") == ["orders/t/b.py", "orders/t/a/z.py"]


def test_each_file_comes_once_when_patterns_overlap(project):
    project.write("t/a.py")
    project.write("t/b.py")
    assert _found(project, "t/b.py", "t/**", "./t/a.py") == ["orders/t/b.py", "orders/t/a.py"]


def test_files_outside_are_found_when_a_pattern_leads_there(project):
    (project.root.parent / "shared").mkdir()
    (project.root.parent / "shared" / "s.py").write_text("")
    assert _found(project, "../shared/**") == ["shared/s.py"]


def test_whole_folder_is_searched_when_the_pattern_is_two_stars(project):
    project.write("a/b.py")
    assert _found(project, "**") == ["orders/a/b.py"]


@pytest.mark.parametrize(
    ("pattern", "condition", "told"),
    [
        ("t/*.py", "SOURCE_PATTERN_INVALID", "/**"),
        ("t/**/*.py", "SOURCE_PATTERN_INVALID", "/**"),
        ("t/[ab].py", "SOURCE_PATTERN_INVALID", "/**"),
        (" ", "SOURCE_PATTERN_INVALID", "path of a file"),
        ("t", "SOURCE_PATTERN_INVALID", "write `t/**`"),
        ("t/a.py/**", "SOURCE_PATTERN_INVALID", "leave the `/**` out"),
        ("t/aa.py", "SOURCE_NOT_FOUND", "t/a.py"),
        ("tt/**", "SOURCE_NOT_FOUND", "folder"),
        ("nowhere/a.py", "SOURCE_NOT_FOUND", "does not exist"),
        ("empty/**", "SOURCE_NOT_FOUND", "no Python file"),
        ("q.sql", "SOURCE_NOT_SUPPORTED", "SQL"),
        ("n.ipynb", "SOURCE_NOT_SUPPORTED", "notebooks"),
        ("t.jar", "SOURCE_NOT_SUPPORTED", "`.jar`"),
        ("sql/**", "SOURCE_NOT_SUPPORTED", "q.sql"),
    ],
)
def test_error_tells_the_way_out_when_a_pattern_is_wrong(project, pattern, condition, told):
    for name in ("t/a.py", "q.sql", "n.ipynb", "t.jar", "sql/q.sql", "empty/README.md"):
        project.write(name)
    with pytest.raises(SpecError) as caught:
        _found(project, pattern)
    assert caught.value.condition == condition
    assert told in str(caught.value)
