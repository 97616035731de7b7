import json
import traceback

import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project import execution
from penstock._project.databricks.notebook_globals import notebook_globals
from penstock._project.imports import project_imports
from penstock._project.loader import load_definitions
from penstock.errors import DefinitionErrors

HEADER = "# Databricks notebook source\n"
BREAK = "\n# COMMAND ----------\n"


class Spark:
    """The parts of a session that are used while files are loaded."""

    def __init__(self):
        self.sparkContext = type("Context", (), {})()

    def sql(self, query):
        return ("sql", query)

    def table(self, name):
        return ("table", name)


def _settings(project, *patterns, **configuration):
    return PipelineSettings(
        name="p",
        storage="file:///x",
        root=str(project.root),
        source_patterns=patterns or ("**",),
        configuration=configuration,
    )


def _load(project, *patterns, **configuration):
    settings = _settings(project, *patterns, **configuration)
    return load_definitions(settings, namespace=notebook_globals(Spark(), settings))


def _errors(project, *patterns):
    with pytest.raises(DefinitionErrors) as caught:
        _load(project, *patterns)
    return caught.value.errors


def _table(name, value="1"):
    return f"@dlt.table\ndef {name}():\n    return {value}\n"


def _jupyter(*sources):
    return json.dumps({"cells": [{"cell_type": "code", "source": text} for text in sources]})


@pytest.fixture
def declared_sql(monkeypatch):
    """The calls of `declare_sql`."""
    calls = []
    monkeypatch.setattr(
        execution, "declare_sql", lambda text, **arguments: calls.append((text, arguments))
    )
    return calls


def test_cells_share_a_namespace_and_keep_their_lines(project):
    path = project.write(
        "a.py",
        HEADER + "from __future__ import annotations\nimport dlt\nNAME = 'n'\n" + BREAK
        + "# MAGIC %md text\n" + BREAK
        + "def typed(x: Missing): ...\n" + _table("a", "NAME"),
    )  # fmt: skip
    definition = _load(project)
    line = path.read_text().splitlines().index("@dlt.table") + 1
    assert (definition.datasets[0].origin.file, definition.datasets[0].origin.line) == (
        str(path),
        line,
    )
    assert definition.flows[0].function() == "n"


def test_sql_cells_are_declared_with_their_line_and_a_shared_context(project, declared_sql):
    path = project.write(
        "a.py",
        HEADER + "import dlt\n" + _table("a") + BREAK
        + "# MAGIC %sql\n# MAGIC SET x = 1\n" + BREAK
        + "# MAGIC %sql\n# MAGIC SELECT ${x}\n",
    )  # fmt: skip
    _load(project, source="orders")
    (first_sql, first), (second_sql, second) = declared_sql
    assert [first_sql, second_sql] == ["\nSET x = 1", "\nSELECT ${x}"]
    assert (first["file"], first["first_line"]) == (str(path), 8)
    assert first["context"] is second["context"]
    assert first["context"].variables == {"source": "orders"}
    assert first["declarations_only"]


def test_each_sql_file_has_its_own_context(project, declared_sql):
    project.write("a.sql", "USE SCHEMA a;\nSELECT 1")
    project.write(
        "b.sql", "-- Databricks notebook source\nSELECT 2\n-- COMMAND ----------\nSELECT 3"
    )
    project.write("c.py", "import dlt\n" + _table("c"))
    _load(project)
    contexts = [arguments["context"] for _, arguments in declared_sql]
    assert [arguments["first_line"] for _, arguments in declared_sql] == [1, 1, 4]
    assert contexts[0] is not contexts[1]
    assert contexts[1] is contexts[2]


def test_origin_names_the_cell_of_a_jupyter_notebook(project, declared_sql):
    path = project.write(
        "a.ipynb", _jupyter("import dlt", "%matplotlib inline\n" + _table("a"), "%sql\nSELECT 1")
    )
    (dataset,) = _load(project).datasets
    assert str(dataset.origin) == f"{path}[cell 2]:2"
    assert declared_sql[0][1]["file"] == f"{path}[cell 3]"


@pytest.mark.parametrize(
    ("code", "condition", "line"),
    [("x = 1\n1 / 0", "USER_CODE_RAISED", 2), ("x = 1\n\ndef f(:", "USER_CODE_SYNTAX", 3)],
)
def test_error_names_the_cell_and_line_of_invalid_code(project, code, condition, line):
    path = project.write("a.ipynb", _jupyter("y = 1", code, "raise KeyError"))
    (error,) = _errors(project)
    assert (error.condition, str(error.origin)) == (condition, f"{path}[cell 2]:{line}")


def test_misspelt_name_of_a_module_has_a_hint(project):
    project.write("a.py", "import penstock as dp\n\n@dp.tabel\ndef a(): ...\n")
    (error,) = _errors(project)
    assert (error.origin.line, error.hint) == (3, "did you mean `table`?")


def test_traceback_shows_the_source_of_a_cell(project):
    project.write("a.ipynb", _jupyter("def f():\n    raise ValueError('no')  # the reason\nf()"))
    (error,) = _errors(project)
    assert "# the reason" in "".join(traceback.format_exception(error.__cause__))


@pytest.mark.parametrize("target", ["./setup", "setup", "./setup.py", '"./setup"', "../t/setup"])
def test_run_executes_another_notebook_in_the_same_namespace(project, target):
    project.write("t/setup.py", HEADER + "import dlt\nNAME = spark.sql('q')\n")
    project.write("t/a.py", f"{HEADER}# MAGIC %run {target}\n{BREAK}{_table('a', 'NAME')}")
    assert _load(project, "t/a").flows[0].function() == ("sql", "q")


def test_run_accepts_a_workspace_path(project):
    project.write("lib/setup.ipynb", _jupyter("import dlt\nNAME = 'n'"))
    path = "/Repos/me@x.org/shop/lib/setup"
    project.write("a.py", f"{HEADER}# MAGIC %run {path}\n{BREAK}{_table('a', 'NAME')}")
    assert _load(project, "a.py").flows[0].function() == "n"


def test_datasets_of_a_notebook_run_by_two_others_are_declared_once(project):
    project.write(
        "setup.py",
        HEADER + "import dlt\nNAME = 'n'\n@dlt.expect('r', 'x')\n" + _table("shared")
        + "dlt.create_streaming_table('target')\n"
        "@dlt.append_flow(target='target')\ndef flow(): ...\n"
        "dlt.create_sink('sink', 'console')\n",
    )  # fmt: skip
    for name in ("a", "b"):
        project.write(f"{name}.py", f"{HEADER}# MAGIC %run ./setup\n{BREAK}{_table(name, 'NAME')}")
    definition = _load(project)
    assert [dataset.name for dataset in definition.datasets] == ["shared", "target", "a", "b"]
    assert [flow.name for flow in definition.flows] == ["shared", "flow", "a", "b"]
    assert len(definition.sinks) == 1
    assert len(definition.datasets[0].expectations) == 1


def test_template_notebook_declares_a_dataset_for_each_run(project):
    project.write(
        "template.py", HEADER + "@dlt.table(name=name)\ndef t(bound=name):\n    return bound\n"
    )
    project.write(
        "a.py",
        HEADER + "import dlt\nname = 'x'\n# COMMAND ----------\n# MAGIC %run ./template\n" + BREAK
        + "name = 'y'\n# COMMAND ----------\n# MAGIC %run ./template\n",
    )  # fmt: skip
    assert [flow.function() for flow in _load(project, "a.py").flows] == ["x", "y"]


def test_duplicate_names_are_kept_when_a_loop_declares_them(project):
    project.write(
        "a.py", f"{HEADER}import dlt\nfor _ in range(2):\n    dlt.create_sink('s', 'x')\n"
    )
    assert len(_load(project).sinks) == 2


def test_error_is_reported_once_when_two_notebooks_run_a_broken_notebook(project):
    broken = project.write("broken.py", HEADER + "1 / 0\n")
    for name in ("a", "b"):
        project.write(f"{name}.py", f"{HEADER}# MAGIC %run ./broken\n")
    (error,) = _errors(project, "a.py", "b.py")
    assert (error.condition, str(error.origin)) == ("USER_CODE_RAISED", f"{broken}:2")


def test_cycle_of_notebooks_is_refused(project):
    project.write("a.py", f"{HEADER}# MAGIC %run ./b\n")
    path = project.write("b.py", f"{HEADER}x = 1\n{BREAK}# MAGIC %run ./a\n")
    (error,) = _errors(project, "a.py")
    assert (error.condition, str(error.origin)) == ("NOTEBOOK_CYCLE", f"{path}:5")
    assert "a.py -> b.py -> a.py" in error.message


@pytest.mark.parametrize("target", ["./no", "", "/Repos/me/no", "./data.csv", "."])
def test_error_names_the_line_when_the_notebook_of_run_does_not_exist(project, target):
    project.write("data.csv")
    path = project.write("a.py", f"{HEADER}x = 1\n{BREAK}# MAGIC %run {target}\n")
    (error,) = _errors(project)
    assert (error.condition, str(error.origin)) == ("SOURCE_NOT_FOUND", f"{path}:5")


def test_widgets_have_the_arguments_of_run(project):
    project.write("setup.py", HEADER + "values.append(dbutils.widgets.get('env'))\n")
    project.write(
        "a.py",
        HEADER + "import dlt\nvalues = []\ndbutils.widgets.text('env', 'dev')\n" + BREAK
        + "# MAGIC %run ./setup $env=\"a b\" $other=1\n" + BREAK
        + "values.append(dbutils.widgets.get('env'))\n" + _table("a", "values"),
    )  # fmt: skip
    assert _load(project, "a.py").flows[0].function() == ["a b", "dev"]


@pytest.mark.parametrize(
    "cell",
    ["# MAGIC %scala\n# MAGIC val x = 1", "# MAGIC %r x <- 1", "# MAGIC %%nonsense\n# MAGIC x"],
)
def test_cell_of_an_unsupported_language_is_refused(project, cell):
    path = project.write("a.py", f"{HEADER}import dlt\n{BREAK}{cell}\n{BREAK}{_table('a')}")
    (error,) = _errors(project)
    assert (error.condition, str(error.origin)) == ("SOURCE_NOT_SUPPORTED", f"{path}:5")


def test_notebook_of_an_unsupported_language_is_one_error(project):
    content = json.loads(_jupyter("val x = 1", "val y = 1"))
    content["metadata"] = {"language_info": {"name": "scala"}}
    project.write("a.ipynb", json.dumps(content))
    (error,) = _errors(project)
    assert error.condition == "SOURCE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    "cell", ["# MAGIC %scala", "# MAGIC %md x", "# MAGIC %sh rm -rf /x", "# MAGIC %fs ls /"]
)
def test_cells_without_declarations_are_skipped(project, cell):
    project.write("a.py", f"{HEADER}import dlt\n{_table('a')}{BREAK}{cell}\n")
    assert len(_load(project).datasets) == 1


def test_cells_after_notebook_exit_are_skipped(project):
    project.write(
        "setup.py", HEADER + "import dlt\n" + _table("s") + "dbutils.notebook.exit('x')\n1/0\n"
    )
    project.write("a.py", f"{HEADER}# MAGIC %run ./setup\n{BREAK}{_table('a')}")
    assert [dataset.name for dataset in _load(project, "a.py").datasets] == ["s", "a"]


def test_hint_names_missing_packages_when_an_import_fails(project):
    project.write("requirements.txt", "pandas\nno-such-three==1.0  # why\n")
    project.write(
        "a.py",
        HEADER + "# MAGIC %pip install no-such-one 'no_such_two[x]>=2' pandas -r requirements.txt\n"
        + BREAK + "import no_such_one\n",
    )  # fmt: skip
    (error,) = _errors(project)
    assert error.hint.endswith("`pip install no-such-one no_such_two no-such-three`")


def test_missing_packages_have_the_origin_of_pip_install(project):
    path = project.write(
        "a.py", f"{HEADER}# MAGIC %pip install no-such-one\n{BREAK}import dlt\n{_table('a')}"
    )
    settings = _settings(project)
    with project_imports(settings) as imports:
        load_definitions(settings, namespace={})
        (item,) = imports.executor.missing_packages.items()
    assert (item[0], str(item[1])) == ("no-such-one", f"{path}:2")


def test_source_has_the_names_of_a_notebook(project):
    project.write(
        "a.py",
        "import dlt\ndisplay(spark, x=1)\ndisplayHTML('<b>')\n"
        + _table("a", "sqlContext is spark, sc is spark.sparkContext, sql('q'), "
                      "getArgument('k', 'd'), dbutils.widgets.get('w')"),
    )  # fmt: skip
    value = _load(project, w="v").flows[0].function()
    assert value == (True, True, ("sql", "q"), "d", "v")


def test_module_can_import_notebook_names_from_databricks(project):
    project.write(
        "helper.py",
        "from databricks.sdk.runtime import *\nimport databricks.sdk.runtime\n"
        "from databricks.sdk.runtime import dbutils as d, spark as s, table\n"
        "from pyspark.dbutils import DBUtils\nfrom databricks.connect import DatabricksSession\n"
        "session = DatabricksSession.builder.profile('x').serverless(True).getOrCreate()\n"
        "FOUND = (d is dbutils is DBUtils(spark), s is session is spark, table('t'), "
        "databricks.sdk.runtime.spark is s)\n",
    )
    project.write("a.py", "import dlt\nfrom helper import FOUND\n" + _table("a", "FOUND"))
    assert _load(project, "a.py").flows[0].function() == (True, True, ("table", "t"), True)
    with pytest.raises(ModuleNotFoundError):
        import databricks.sdk.runtime  # noqa: F401


def test_source_cannot_stop_the_session(project):
    stopped = []

    class Session(Spark):
        def stop(self):
            stopped.append(self)

    class Builder:
        def __init__(self):
            self._options = {"spark.remote": "sc://x", "k": "v"}

        def getOrCreate(self):
            return self._options

    Session.Builder = Builder
    project.write(
        "a.py",
        "import dlt\nspark.stop()\ntype(spark)().stop()\n" + _table("a", "OPTIONS")
        + "OPTIONS = spark.Builder().getOrCreate()\n",
    )  # fmt: skip
    spark = Session()
    settings = _settings(project)
    (flow,) = load_definitions(settings, namespace=notebook_globals(spark, settings)).flows
    assert (stopped, flow.function()) == ([], {"k": "v"})
    spark.stop()
    assert stopped == [spark]
