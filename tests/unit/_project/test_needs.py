import json

import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project.needs import needs
from penstock.errors import SpecError

HEADER = "# Databricks notebook source\n"


def _needs(project, *patterns, parameters=None, **configuration):
    settings = PipelineSettings(
        name="p",
        storage="file:///x",
        root=str(project.root),
        source_patterns=patterns or ("**",),
        configuration=configuration,
        parameters=parameters or {},
    )
    return needs(settings)


def _at(items, project):
    return [f"{item.origin.file.removeprefix(f'{project.root}/')}:{item.origin.line}"
            for item in items]  # fmt: skip


def test_missing_configuration_keys_without_defaults_are_found(project):
    project.write(
        "a.py",
        "KEY = 'constant'\n"
        "spark.conf.get('plain')\n"
        "spark.conf.get('default', 'x')\n"
        "spark.conf.get(key='named', default=None)\n"
        "self.spark.conf.get(KEY)\n"
        "spark.conf.get(f'{x}.computed')\n"
        "spark.conf.get('spark.sql.shuffle.partitions')\n"
        "spark.conf.get('configured')\n"
        "spark.conf.set('own', 1); spark.conf.get('own')\n"
        "{}.get('no key')\n"
        "spark.sql('''SELECT 1\nFROM ${in_sql}''')\n",
    )
    missing = _needs(project, configured="yes").settings
    assert [need.name for need in missing] == ["plain", "constant", "in_sql"]
    assert _at(missing, project) == ["a.py:2", "a.py:5", "a.py:12"]


def test_variables_and_paths_of_sql_are_found(project):
    project.write(
        "a.sql",
        "-- ${comment} '/mnt/comment'\nSET mine = 1;\n/* ${no}\n */ SELECT ${mine}, ${ yours }\n"
        "FROM STREAM read_files('/Volumes/${catalog}/raw', x => \"s3://b/it''s\")\n",
    )
    project.write("b.py", f"{HEADER}# COMMAND ----------\n# MAGIC %sql\n# MAGIC SELECT '${{z}}'\n")
    result = _needs(project, catalog="main")
    assert [need.name for need in result.settings] == ["yours", "z"]
    assert _at(result.settings, project) == ["a.sql:4", "b.py:4"]
    assert [(item.name, item.scheme) for item in result.paths] == [
        ("/Volumes/{catalog}/raw", "/Volumes"),
        ("s3://b/it''s", "s3:"),
    ]


def test_widgets_without_a_value_are_missing(project):
    project.write(
        "a.py",
        "dbutils.widgets.text('env', 'dev')\ndbutils.widgets.get('env')\n"
        "dbutils.widgets.get('region')\ndbutils.widgets.get('configured')\n"
        "getArgument('old', 'x')\n",
    )
    assert [need.name for need in _needs(project, configured="x").settings] == ["region"]


def test_parameters_are_settings_with_a_value(project):
    project.write("a.py", "spark.conf.get('day'); dbutils.widgets.get('day'); getArgument('x')\n")
    assert [need.name for need in _needs(project, parameters={"day": "1"}).settings] == ["x"]


def test_missing_secrets_are_found(project, monkeypatch):
    monkeypatch.setenv("TOKEN", "x")
    project.write(".secrets/kafka/user", "me")
    project.write(
        "a.py",
        "dbutils.secrets.get('kafka', 'user')\n"
        "dbutils.secrets.get(key='password', scope='kafka')\n"
        "dbutils.secrets.getBytes(scope=s, key='x')\n"
        "option('a', '${secret:TOKEN}')\n"
        "option('a', '${not.a.key}')\n",
    )
    project.write(
        "b.sql", "-- secret('no', 'x')\nSELECT secret('s', 'k'), SECRET( \"kafka\", 'user')\n"
    )
    result = _needs(project)
    assert [need.name for need in result.secrets] == ["kafka/password", "{s}/x", "s/k"]
    assert result.settings == ()


@pytest.mark.parametrize(
    ("code", "path", "scheme"),
    [
        ("load('/Volumes/main/raw')", "/Volumes/main/raw", "/Volumes"),
        ("load('dbfs:/raw')", "dbfs:/raw", "dbfs:"),
        ("load(f'/mnt/{x}/raw')", "/mnt/{x}/raw", "/mnt"),
        ("BASE = '/FileStore'\nload(BASE)", "/FileStore", "/FileStore"),
        ("load('abfss://c@a.net/' + x)", "abfss://c@a.net/{x}", "abfss:"),
        ("load(path='s3a://b/k')", "s3a://b/k", "s3a:"),
        ("load(['gs://b'])", "gs://b", "gs:"),
        ("load('wasbs://x')", "wasbs://x", "wasbs:"),
        ("load('/databricks-datasets/x')", "/databricks-datasets/x", "/databricks-datasets"),
    ],
)  # fmt: skip
def test_cloud_and_workspace_paths_are_found(project, code, path, scheme):
    project.write("a.py", code)
    assert [(item.name, item.scheme) for item in _needs(project).paths] == [(path, scheme)]


@pytest.mark.parametrize(
    "code",
    ["'''/mnt/docstring'''", "# '/mnt/comment'", "x = 'see /mnt/x'", "x = '/Volumesque'", "x = 1"],
)
def test_strings_that_are_not_paths_are_ignored(project, code):
    project.write("a.py", code)
    assert _needs(project).paths == ()


def test_missing_imports_are_found(project):
    project.write("t/rules.py", "import no_such_in_rules\n")
    project.write("lib/deep/__init__.py", "from . import inner\n")
    project.write("lib/deep/inner.py", "import no_such_in_inner\n")
    project.write("unused.py", "import no_such_unused\n")
    project.write(
        "t/a.py",
        "import os.path, json, yaml, dlt, pyspark.sql\nfrom penstock import table\n"
        "import databricks.sdk.runtime\nfrom pyspark.dbutils import DBUtils\n"
        "import rules\nfrom lib import deep\nimport no_such_one.deep as x\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import no_such_type\n"
        "try:\n    import no_such_two\nexcept ImportError:\n    import no_such_three\n"
        "from .missing import x\n",
    )
    assert [need.name for need in _needs(project, "t/a.py").imports] == [
        *("no_such_one.deep", "no_such_three", "no_such_in_rules", "no_such_in_inner"),
    ]


def test_modules_in_added_sys_path_folders_are_not_missing(project):
    project.write("common/lib/shared_rules.py", "import no_such_in_shared\n")
    project.write(
        "etl/bronze/a.py",
        "import os, sys\nsys.path.insert(0, os.path.abspath(os.path.join('..', '../common/lib')))\n"
        "sys.path.append('../nowhere')\nimport shared_rules\n",
    )
    assert [need.name for need in _needs(project, "etl/**").imports] == ["no_such_in_shared"]


def test_notebooks_that_are_run_by_others_are_read(project):
    project.write("lib/setup.py", f"{HEADER}# MAGIC %pip install no-such-one pandas\n")
    path = project.write(
        "a.ipynb",
        json.dumps({"cells": [
            {"cell_type": "code", "source": "%run ./lib/setup $x=1"},
            {"cell_type": "code", "source": "x = 1\nspark.conf.get('k')"},
        ]}),
    )  # fmt: skip
    result = _needs(project, "a.ipynb")
    assert [need.name for need in result.packages] == ["no-such-one"]
    assert [str(item.origin) for item in result.settings] == [f"{path}[cell 2]:2"]


def test_needs_of_invalid_files_are_found_by_line(project):
    project.write(
        "a.py",
        "spark.conf.get('k')\nspark.conf.get(\"d\", 'x')\n# spark.conf.get('no')\n"
        "dbutils.secrets.get(scope='s', key='k')\ndbutils.widgets.get('w')\n"
        "load('/mnt/raw')\ndef f(:\n",
    )
    project.write("b.ipynb", "{")
    (project.root / "c.py").write_bytes(b"x = '\xff'\n")
    result = _needs(project)
    assert [need.name for need in result.settings] == ["k", "w"]
    assert [need.name for need in result.secrets] == ["s/k"]
    assert [need.name for need in result.paths] == ["/mnt/raw"]


def test_very_long_expression_is_parsed(project):
    project.write("a.py", "x = " + " + ".join(["'a'"] * 5000) + "\nspark.conf.get('k')\n")
    assert [need.name for need in _needs(project).settings] == ["k"]


def test_sources_are_not_executed(project):
    project.write("a.py", "raise SystemExit(3)\nspark.conf.get('k')\n")
    assert [need.name for need in _needs(project).settings] == ["k"]


def test_missing_source_is_an_error(project):
    with pytest.raises(SpecError):
        _needs(project, "no.py")
