import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

from penstock._launch import open_pipeline, project_session, source_digest
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._project.imports import project_imports
from penstock._project.loader import load_definitions
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, run_update
from penstock.errors import DefinitionError, DefinitionErrors, SpecError, UserCodeError


def _settings(project, *patterns):
    return PipelineSettings(
        name="p", storage="file:///x", root=str(project.root), source_patterns=patterns or ("**",)
    )


def _load(project, *patterns, **namespace):
    return load_definitions(_settings(project, *patterns), namespace=namespace)


def _errors(project, *patterns):
    with pytest.raises(DefinitionErrors) as caught:
        _load(project, *patterns)
    return caught.value.errors


TABLE = "import dlt\n@dlt.table\ndef {0}():\n    return {1}\n"


def test_files_can_use_dlt_pyspark_pipelines_and_penstock(project):
    project.write("a.py", TABLE.format("a", "1"))
    project.write("b.py", "from pyspark import pipelines as dp\n@dp.temporary_view\ndef b(): ...\n")
    project.write("c.py", "import penstock as dp\n@dp.materialized_view\ndef c(): ...\n")
    project.write("d.py", "from dlt import *\n@expect('r', 'x')\n@view\ndef d(): ...\n")
    definition = _load(project)
    assert [d.name for d in definition.datasets] == ["a", "b", "c", "d"]
    assert definition.datasets[3].expectations[0].name == "r"


def test_source_has_the_injected_globals(project):
    project.write("a.py", TABLE.format("a", "spark.x"))
    spark = type("Spark", (), {"x": 42})()
    (flow,) = _load(project, spark=spark).flows
    assert flow.function() == 42


def test_origin_is_the_line_of_the_decorator(project):
    path = project.write("t/a.py", TABLE.format("a", "1"))
    (dataset,) = _load(project).datasets
    assert (dataset.origin.file, dataset.origin.line) == (str(path), 2)


def test_main_code_runs_if_the_file_imports_dlt(project):
    main = "import {0}\n\ndef f(): ...\nif __name__ == '__main__':\n    {0}.table(name='{1}')(f)\n"
    project.write("a.py", main.format("dlt", "a"))
    project.write("b.py", main.format("penstock", "b"))
    project.write("c.py", "import dlt\nif __name__ == '__main__':\n  import penstock\n  1 / 0\n")
    assert [dataset.name for dataset in _load(project).datasets] == ["a"]


def test_source_has_its_file_and_module_name(project):
    path = project.write(
        "a.py",
        "import dlt, sys\n"
        "assert __name__ != '__main__' and sys.modules[__name__].__file__ == __file__\n"
        + TABLE.format("a", "(__file__, __name__)"),
    )
    (flow,) = _load(project).flows
    assert flow.function()[0] == str(path)


def test_source_can_define_a_dataclass_with_string_annotations(project):
    project.write(
        "a.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Rule:\n    name: str\n" + TABLE.format("a", "Rule('x').name"),
    )
    assert _load(project).flows[0].function() == "x"


def test_sibling_and_root_modules_can_be_imported(project):
    project.write("shared/__init__.py", "from shared.names import NAME\n")
    project.write("shared/names.py", "NAME = 'shared'\n")
    project.write("plain/inner.py", "VALUE = 'namespace package'\n")
    project.write("t/rules.py", "RULES = {'r': 'x'}\n")
    project.write(
        "t/a.py",
        "import dlt\nfrom rules import RULES\nimport shared.names\nfrom plain import inner\n"
        "@dlt.table\n@dlt.expect_all(RULES)\n"
        "def a(): return shared.NAME, inner.VALUE\n",
    )
    definition = _load(project, "t/a.py")
    assert definition.datasets[0].expectations[0].name == "r"
    assert definition.flows[0].function() == ("shared", "namespace package")


def test_each_source_imports_its_own_sibling_when_folders_share_a_module_name(project):
    for folder in ("bronze", "silver"):
        project.write(f"{folder}/common.py", f"WHERE = '{folder}'\n")
        project.write(f"{folder}/t.py", f"import common\n{TABLE.format(folder, 'common.WHERE')}")
    definition = _load(project)
    assert [flow.function() for flow in definition.flows] == ["bronze", "silver"]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_datasets_are_declared_once_when_one_source_imports_another(project, names):
    first, second = names
    project.write(f"{first}.py", f"import {second}\n{TABLE.format(first, 'spark')}")
    project.write(f"{second}.py", TABLE.format(second, "spark"))
    definition = _load(project, spark="here")
    assert sorted(d.name for d in definition.datasets) == ["a", "b"]
    assert [flow.function() for flow in definition.flows] == ["here", "here"]


def test_datasets_are_declared_once_when_sources_import_each_other(project):
    project.write("a.py", f"import b\n{TABLE.format('a', '1')}")
    project.write("b.py", f"import a\n{TABLE.format('b', '1')}")
    assert sorted(d.name for d in _load(project).datasets) == ["a", "b"]


def test_module_is_executed_once_when_several_sources_import_it(project):
    project.write("tables.py", TABLE.format("shared", "1"))
    project.write("t/a.py", f"import tables\n{TABLE.format('a', '1')}")
    project.write("t/b.py", f"import tables\n{TABLE.format('b', '1')}")
    assert [d.name for d in _load(project, "t/**").datasets] == ["shared", "a", "b"]


def test_changed_module_is_reloaded_within_the_same_second(project):
    project.write("a.py", "import value\n" + TABLE.format("a", "value.VALUE"))
    results = []
    for value in (1, 2):
        project.write("value.py", f"VALUE = {value}\n")
        results.append(_load(project, "a.py").flows[0].function())
    assert results == [1, 2]


def test_source_digest_changes_with_each_executed_file(project):
    project.write("t/a.py", TABLE.format("a", "1") + "import helper\n")
    project.write("t/b.py", "# Databricks notebook source\n# MAGIC %run ../shared\n")
    files = [project.write("helper.py", "import tools\n")]
    files += [project.write(f"{name}.py") for name in ("tools", "shared", "late", "unused")]
    settings = _settings(project, "t/**")

    def digest():
        with project_imports(settings):
            load_definitions(settings, namespace={})
            import late  # noqa: F401 - as a query function does

            return source_digest(settings)

    first = digest()
    assert digest() == first
    changed = set()
    for file in files:
        before = digest()
        file.write_text(file.read_text() + "X = 1\n")
        if digest() != before:
            changed.add(file.stem)
    assert changed == {"helper", "tools", "shared", "late"}


def test_loading_leaves_no_modules_or_import_paths(project):
    project.write("value.py", "VALUE = 1\n")
    project.write("a.py", "import value\n" + TABLE.format("a", "1"))
    before = (set(sys.modules), list(sys.path), list(sys.meta_path))
    _load(project, "a.py")
    project.write("a.py", "import value\n1 / 0\n")
    _errors(project, "a.py")
    after = (set(sys.modules), list(sys.path), list(sys.meta_path))
    assert after[0] - before[0] <= {"linecache", "difflib"}
    assert after[1:] == before[1:]


@pytest.mark.parametrize(
    "folder", ["'../../common/lib'", "os.path.abspath('../../common/lib')", "'../../common/./lib'"]
)
def test_relative_sys_path_is_resolved_from_the_source_file(project, folder, monkeypatch):
    monkeypatch.chdir(project.root)
    project.write("common/lib/shared_rules.py", "LIMIT = 7\n")
    project.write(
        "etl/bronze/a.py",
        f"import os, sys\nsys.path.append({folder})\nfrom shared_rules import LIMIT\n"
        + TABLE.format("a", "LIMIT"),
    )
    before = list(sys.path)
    for _ in range(2):  # the project can be loaded again in the same process
        assert _load(project, "etl/**").flows[0].function() == 7
    assert sys.path == before


def test_project_module_does_not_hide_the_standard_library(project):
    project.write("colorsys.py", "raise RuntimeError('must not be imported')\n")
    project.write("a.py", "import colorsys\n" + TABLE.format("a", "callable(colorsys.rgb_to_hls)"))
    assert _load(project, "a.py").flows[0].function() is True


def test_query_function_can_import_while_project_imports_are_open(project):
    project.write("value.py", "VALUE = 7\n")
    project.write("a.py", TABLE.format("a", "__import__('value').VALUE"))
    settings = _settings(project, "a.py")
    with project_imports(settings):
        flow = load_definitions(settings, namespace={}).flows[0]
        assert flow.function() == 7
        flow = load_definitions(settings, namespace={}).flows[0]
        assert flow.function() == 7
    with pytest.raises(ModuleNotFoundError):
        flow.function()


@pytest.mark.parametrize(
    ("imported", "name"),
    [("from clean import shout", "shout"), ("import clean", "clean.shout")],
)
def test_functions_of_the_project_are_pickled_by_value(project, imported, name):
    project.write("clean.py", "SUFFIX = '!'\ndef shout(text): return text.upper() + SUFFIX\n")
    project.write(
        "a.py",
        f"import dlt\nfrom pyspark import cloudpickle\n{imported}\n"
        f"def twice(text): return {name}(text) * 2\n"
        "shipped = cloudpickle.dumps(twice)\n"
        "@dlt.table\ndef a(): return shipped\n",
    )
    # Each source has a session, which cannot be pickled.
    shipped = _load(project, "clean.py", "a.py", spark=threading.Lock()).flows[0].function()
    program = "import sys, pickle; print(pickle.loads(bytes.fromhex(sys.argv[1]))('x'))"
    worker = subprocess.run(
        [sys.executable, "-c", program, shipped.hex()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert worker.stdout == "X!X!\n"


def test_spark_is_not_started_for_a_project_without_sources(project, monkeypatch):
    monkeypatch.setattr("penstock._launch.open_session", lambda *_, **__: pytest.fail("started"))
    settings = PipelineSettings(name="p", storage="file:///x", root=str(project.root))
    with pytest.raises(SpecError, match="has no pipeline"), project_session(settings):
        pass


def test_update_of_a_folder_without_a_pipeline_leaves_no_storage(project):
    with pytest.raises(SpecError, match="SOURCE_NOT_FOUND"):
        run_update(load_settings(project.root), UpdateOptions(), bus=EventBus())
    assert not list(project.root.rglob(".penstock"))


def test_syntax_errors_are_reported_before_spark_starts(project, monkeypatch):
    monkeypatch.setattr("penstock._launch.open_session", lambda *_, **__: pytest.fail("started"))
    monkeypatch.chdir(project.root)
    project.write("a.py", "import dlt\n1 / 0\n")  # not executed, as syntax is checked first
    project.write("b.py", "import dlt\ndef f(:\n")
    cells = ["# Databricks notebook source", "dbutils.notebook.exit('')", "# COMMAND ----------"]
    project.write("e.py", "\n".join([*cells, "def f(:"]))
    sql = "CREATE STREAMING TABLE ${set_elsewhere};\nCREATE STREAMING TABEL t;\nDROP TABLE t;\n"
    project.write("c.sql", sql)
    with pytest.raises(DefinitionErrors) as caught, open_pipeline(_settings(project)):
        pass
    assert [(str(e.origin), e.condition) for e in caught.value.errors] == [
        ("b.py:2", "USER_CODE_SYNTAX"),
        ("c.sql:2", "SQL_SYNTAX"),
        ("c.sql:3", "SQL_STATEMENT_NOT_SUPPORTED"),
    ]


def test_all_files_are_executed_when_some_fail(project):
    raising = project.write("a.py", "import dlt\ndlt.create_sink('a.b', 'x')\n1 / 0\n")
    malformed = project.write("b.py", "def f(:\n")
    project.write("c.py", "import dlt\ndlt.create_streaming_table('t', partition_cols='d')\n")
    errors = _errors(project)
    assert [(e.condition, e.origin.line) for e in errors] == [
        ("INVALID_NAME", 2),
        ("USER_CODE_RAISED", 3),
        ("USER_CODE_SYNTAX", 1),
        ("INVALID_PARAMETER", 2),
    ]
    assert [errors[1].origin.file, errors[2].origin.file] == [str(raising), str(malformed)]


def test_error_names_the_deepest_line_of_the_project_when_a_module_raises(project):
    helper = project.write("helper.py", "import json\ndef read():\n    return json.loads('{')\n")
    project.write("a.py", "import helper\nhelper.read()\n")
    (error,) = _errors(project, "a.py")
    assert isinstance(error, UserCodeError)
    assert (error.origin.file, error.origin.line) == (str(helper), 3)
    assert error.message.startswith("JSONDecodeError: Expecting property name")
    assert type(error.__cause__).__name__ == "JSONDecodeError"


def test_traceback_shows_only_user_code(project):
    project.write("helper.py", "def fail():\n    raise ValueError('no')  # the reason\n")
    project.write("a.py", "import helper\nhelper.fail()\n")
    (error,) = _errors(project, "a.py")
    cause = error.__cause__
    files = [Path(frame.filename).name for frame in traceback.extract_tb(cause.__traceback__)]
    assert files == ["a.py", "helper.py"]
    assert "# the reason" in "".join(traceback.format_exception(cause))


def test_one_error_is_reported_when_several_sources_import_a_broken_module(project):
    project.write("a.py", "import broken\n")
    project.write("b.py", "import broken\n")
    broken = project.write("broken.py", "1 / 0\n")
    (error,) = _errors(project)
    assert error.origin.file == str(broken)


@pytest.mark.parametrize("code", ["import a\nY = a.X\n", "from a import X\n"])
def test_hint_explains_an_import_cycle(project, code):
    project.write("a.py", "import b\nX = 1\n")
    project.write("b.py", code)
    (error,) = _errors(project)
    assert "import each other in a cycle" in error.hint


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("exit(3)", "exit code 3"),
        ("import sys; sys.exit('bye')", "exit code 'bye'"),
        ("raise RuntimeError", "RuntimeError"),
        ("open('/Volumes/none/a.json')", "map its prefix under `paths`"),
        ("import no_such_module", "modules are imported from"),
        ("import dtl", "did you mean `dlt`?"),
        ("from json import load, dmups", "did you mean `dumps`?"),
        ("raise ValueError('[TABLE_OR_VIEW_NOT_FOUND] x')", "inside of query functions only"),
        ("dbutils.widgets.text('a')", "from databricks.sdk.runtime import dbutils"),
        ("get_ipython().user_ns['dbutils']", "IPython is not available"),
        ("from dbruntime import x", "IPython is not available"),
        ("from dlt.sources import x", "outside the pipeline's sources"),
        ("from databricks.sdk import WorkspaceClient", "without a package, only"),
        ("raise ValueError('x' * 5000)", "..."),
    ],
)
def test_error_gives_the_reason_when_a_file_exits_or_raises(project, code, expected):
    project.write("a.py", f"\n{code}\n")
    (error,) = _errors(project)
    assert (error.condition, error.origin.line) == ("USER_CODE_RAISED", 2)
    assert expected in str(error)
    assert len(str(error)) < 1000


def test_keyboard_interrupt_is_not_caught(project):
    project.write("a.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        _load(project)


def test_error_names_the_line_of_a_read_at_module_level(project):
    path = project.write("a.py", "import dlt\n\ndlt.read('x')\n")
    (error,) = _errors(project)
    assert error.condition == "OUTSIDE_PIPELINE"
    assert (error.origin.file, error.origin.line) == (str(path), 3)


def test_pipeline_is_refused_when_it_declares_nothing(project):
    project.write("a.py", "x = 1\n")
    with pytest.raises(DefinitionError) as caught:
        _load(project)
    assert caught.value.condition == "PIPELINE_EMPTY"
    assert "a.py" in caught.value.message


def test_source_can_have_a_byte_order_mark_or_another_encoding(project):
    (project.root / "a.py").write_bytes(
        b"# -*- coding: latin-1 -*-\n" + TABLE.format("a", "'\u00e9'").encode("latin-1")
    )
    (project.root / "b.py").write_bytes(b"\xef\xbb\xbf" + TABLE.format("b", "'\u00e9'").encode())
    assert [flow.function() for flow in _load(project).flows] == ["\u00e9", "\u00e9"]


def test_relative_imports_work_when_a_source_is_in_a_package(project):
    project.write("t/lib/__init__.py")
    project.write("t/lib/names.py", "NAME = 'n'\n")
    project.write("t/lib/a.py", "from .names import NAME\n" + TABLE.format("a", "NAME"))
    project.write("t/b.py", "from lib.names import NAME\n" + TABLE.format("b", "NAME"))
    assert [flow.function() for flow in _load(project, "t/**").flows] == ["n", "n"]


def test_modules_are_imported_from_src_and_parent_folders(project):
    project.write("src/shop/rules.py", "RULES = 'src'\n")
    project.write("t/shared.py", "SHARED = 'above'\n")
    project.write(
        "t/deep/er/a.py",
        "from shop.rules import RULES\nfrom shared import SHARED\n"
        + TABLE.format("a", "RULES, SHARED"),
    )
    assert _load(project, "t/deep/**").flows[0].function() == ("src", "above")


def test_modules_are_imported_from_above_the_root_within_the_repository(project):
    project.write("utilities/rules.py", "from utilities.names import NAME\nRULES = NAME\n")
    project.write("utilities/names.py", "NAME = 'beside'\n")
    project.write("json/__init__.py", "raise RuntimeError('hides the standard library')\n")
    project.write(
        "etl/transformations/a.py",
        "import json\nfrom utilities.rules import RULES\n" + TABLE.format("a", "RULES"),
    )
    inner = type(project)(project.root / "etl/transformations")
    assert _load(inner).flows[0].function() == "beside"
    assert "utilities" not in sys.modules
    (project.root / "etl/.git").mkdir()  # a repository root: modules above it are not imported
    (error,) = _errors(inner)
    assert "No module named 'utilities'" in error.message
