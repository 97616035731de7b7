import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project.sources import find_sources, imports_api
from penstock.errors import SpecError


def _sources(project, *patterns):
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
def test_file_is_not_a_pipeline_without_importing_the_api(text):
    assert not imports_api(text)


NOTEBOOK = '{"cells": [{"cell_type": "code", "source": ["%s"]}]}'
SQL_NOTEBOOK = (
    "# Databricks notebook source\n# MAGIC %sql\n# MAGIC CREATE LIVE TABLE t AS SELECT 1\n"
)


def test_unreadable_declaring_file_is_found(project, monkeypatch):
    project.write("a.py", "import dlt\n")
    project.write("b.ipynb", (NOTEBOOK % "import dlt\\n")[:-1])
    sql = "-- caf\xe9\nCREATE STREAMING TABLE t AS SELECT 1"
    project.write("c.sql").write_bytes(sql.encode("latin-1"))
    project.write("d.sql").write_bytes("-- caf\xe9\nSELECT 1".encode("latin-1"))
    assert _sources(project) == ["orders/a.py", "orders/b.ipynb", "orders/c.sql"]

    def refused(_path, *_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refused)
    assert "orders/d.sql" in _sources(project)


def test_declaring_files_of_the_root_are_found_by_default(project):
    project.write("b.py", "import dlt\n")
    project.write("a.py", "import penstock as dp\n")
    project.write("c.sql", "create or refresh streaming table t as select 1")
    project.write("d.ipynb", NOTEBOOK % "import dlt")
    project.write("e.py", SQL_NOTEBOOK)
    project.write("rules.py", "RULES = {}\n")
    project.write("setup.sql", "CREATE TABLE t (id INT); CREATE OR REPLACE VIEW v AS SELECT 1")
    project.write("other.ipynb", NOTEBOOK % "import pandas")
    project.write("broken.ipynb", "{")
    project.write("test_a.py", "import penstock as dp\n")
    project.write("deep/c.py", "import dlt\n")
    assert _sources(project) == [
        f"orders/{n}" for n in ("a.py", "b.py", "c.sql", "d.ipynb", "e.py")
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1",
        "CREATE OR REFRESH VIEW v AS SELECT 1",
        "CREATE TEMP STREAMING TABLE t AS SELECT * FROM STREAM s",
        "CREATE OR REFRESH PRIVATE INCREMENTAL LIVE TABLE t AS SELECT 1",
        "CREATE INCREMENTAL TABLE t AS SELECT * FROM STREAM s",
        "AUTO CDC INTO t FROM STREAM s KEYS (id) SEQUENCE BY n",
        "APPLY CHANGES ONCE INTO t FROM s KEYS (id) SEQUENCE BY n",
        "CREATE TABLE t COMMENT 'x'\nFLOW AUTO CDC FROM STREAM s KEYS (id) SEQUENCE BY n",
        "create temp table t flow insert by name select * from stream s",
    ],
)
def test_sql_file_is_a_source_when_it_has_a_declaration(project, statement):
    project.write("a.sql", f"-- SQL\n{statement}")
    project.write("b.sql", "CREATE TABLE flow (id INT); INSERT INTO flow VALUES (1)")
    project.write("c.py", "# Databricks notebook source\nprint(1)\n\n# COMMAND ----------\n\n"
                  "# MAGIC %sql\n# MAGIC CREATE OR REPLACE TEMP VIEW v AS SELECT 1")  # fmt: skip
    assert _sources(project) == ["orders/a.sql"]


def test_conventional_folders_are_searched_when_the_root_has_no_source(project):
    project.write("main.py", "print('no pipeline')\n")
    project.write("sql/gold.sql", "CREATE MATERIALIZED VIEW g AS SELECT 1")
    project.write("transformations/deep/a.py", "import dlt\n")
    project.write("elsewhere/b.py", "import dlt\n")
    assert _sources(project) == ["orders/transformations/deep/a.py", "orders/sql/gold.sql"]


def test_all_folders_are_searched_when_conventional_ones_have_no_source(project):
    project.write("src/lib/rules.py", "RULES = {}\n")
    project.write("jobs/b/flow.py", "import dlt\n")
    project.write("jobs/b/table/_delta_log/0.json", "{}")
    project.write("jobs/b/table/part.py", "import dlt\n")
    project.write("venv/pyvenv.cfg")
    project.write("venv/lib/dlt_user.py", "import dlt\n")
    project.write(".penstock/x.py", "import dlt\n")
    assert _sources(project) == ["orders/jobs/b/flow.py"]


def test_file_is_found_when_it_cannot_be_decoded(project):
    (project.root / "a.py").write_bytes(b"import dlt\nx = '\xff'\n")
    assert _sources(project) == ["orders/a.py"]


def test_file_with_a_mistyped_import_is_found(project):
    project.write("a.py", "import dlt\n")
    project.write("b.py", "pimport dlt\n\n@dlt.table\ndef b(): ...\n")
    project.write("c.py", "form pyspark import pipelines as dp\n\ndp.create_sink('s', 'console')\n")
    project.write("run_by_a.py", "@dlt.table\ndef d(): ...\n")
    project.write("unrelated.py", "print 1\n")
    project.write("d.py", "import dtl\n\n@dtl.table\ndef e(): ...\n")
    project.write("e.py", "from pyspark import pipeline as dp\n\n@dp.table\ndef e(): ...\n")
    project.write("other.py", "import tld\n\n@tld.cache\ndef f(): ...\n")
    assert _sources(project) == [f"orders/{name}.py" for name in "abcde"]


def test_error_has_a_hint_when_the_folder_has_no_pipeline(project):
    with pytest.raises(SpecError) as caught:
        _sources(project)
    assert caught.value.condition == "SOURCE_NOT_FOUND"
    assert "penstock init" in caught.value.hint


def test_sources_of_a_folder_are_found_in_order(project):
    for name in ("t/b.py", "t/c.sql", "t/d.ipynb", "t/a/z.py"):
        project.write(name)
    for name in (
        *("README.md", ".hidden/x.py", "__pycache__/y.py", ".ipynb_checkpoints/x.ipynb"),
        *("test_b.py", "b_test.py", "conftest.py", "setup.py", "job.scala", "plot.r", "x.csv"),
        *("x.yml", ".b.py", "node_modules/x.py"),
    ):
        project.write(f"t/{name}")
    assert _sources(project, "t/**") == [
        f"orders/t/{n}" for n in ("b.py", "c.sql", "d.ipynb", "a/z.py")
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("t/*.py", ["t/a.py", "t/b.py"]),
        ("t/**/*.py", ["t/a.py", "t/b.py", "t/deep/c.py"]),
        ("t/[ab].py", ["t/a.py", "t/b.py"]),
        ("t/?.sql", ["t/q.sql"]),
        ("*/deep/**", ["t/deep/c.py"]),
        ("t/*", ["t/a.py", "t/b.py", "t/n.ipynb", "t/q.sql"]),
        ("./t/a*", ["t/a.py"]),
        ("../orders/t/a*", ["t/a.py"]),
        ("x[1]/**", ["x[1]/z.py"]),
        ("x[1]/z.py", ["x[1]/z.py"]),
    ],
)
def test_pattern_can_have_wildcards(project, pattern, expected):
    for name in ("a.py", "b.py", "q.sql", "n.ipynb", "README.md", "test_a.py", "deep/c.py"):
        project.write(f"t/{name}")
    project.write("t/__pycache__/a.py")
    project.write("x[1]/z.py")
    assert _sources(project, pattern) == [f"orders/{name}" for name in expected]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("notebooks/bronze", "notebooks/bronze.py"),
        ("notebooks/silver", "notebooks/silver.sql"),
        ("notebooks/v1.2", "notebooks/v1.2.ipynb"),
        ("/Repos/me@x.org/shop/notebooks/bronze", "notebooks/bronze.py"),
        ("/Workspace/Users/me/notebooks/silver.sql", "notebooks/silver.sql"),
    ],
)
def test_notebook_is_found_without_extension_or_by_workspace_path(project, pattern, expected):
    project.write("notebooks/bronze.py")
    project.write("notebooks/bronze/readme.txt")
    project.write("notebooks/silver.sql")
    project.write("notebooks/v1.2.ipynb")
    assert _sources(project, pattern) == [f"orders/{expected}"]


def test_overlapping_patterns_list_each_file_once(project):
    project.write("t/a.py")
    project.write("t/b.py")
    assert _sources(project, "t/b.py", "t/**", "./t/a.py") == ["orders/t/b.py", "orders/t/a.py"]


def test_pattern_can_name_files_outside_the_root(project):
    (project.root.parent / "shared").mkdir()
    (project.root.parent / "shared" / "s.py").write_text("")
    assert _sources(project, "../shared/**") == ["shared/s.py"]


def test_pattern_of_two_stars_searches_the_whole_root(project):
    project.write("a/b.py")
    assert _sources(project, "**") == ["orders/a/b.py"]


@pytest.mark.parametrize(
    ("pattern", "condition", "message"),
    [
        (" ", "SOURCE_PATTERN_INVALID", "path of a file"),
        ("t", "SOURCE_PATTERN_INVALID", "write `t/**`"),
        ("t/a.py/**", "SOURCE_PATTERN_INVALID", "remove `/**`"),
        ("t/aa.py", "SOURCE_NOT_FOUND", "t/a.py"),
        ("t/*.txt", "SOURCE_NOT_FOUND", "`t/*.txt`"),
        ("tt/**", "SOURCE_NOT_FOUND", "folder"),
        ("nowhere/a.py", "SOURCE_NOT_FOUND", "does not exist"),
        ("/Repos/me/no/such", "SOURCE_NOT_FOUND", "no file"),
        ("empty/**", "SOURCE_NOT_FOUND", "no source file"),
        ("t.jar", "SOURCE_NOT_SUPPORTED", "`.jar`"),
        ("job.scala", "SOURCE_NOT_SUPPORTED", "Scala"),
        ("*.R", "SOURCE_NOT_SUPPORTED", "R as a source"),
        ("book.dbc", "SOURCE_NOT_SUPPORTED", "export"),
    ],
)
def test_error_explains_an_invalid_pattern(project, pattern, condition, message):
    for name in ("t/a.py", "t.jar", "job.scala", "plot.R", "book.dbc", "empty/README.md"):
        project.write(name)
    with pytest.raises(SpecError) as caught:
        _sources(project, pattern)
    assert caught.value.condition == condition
    assert message in str(caught.value)
