import json

import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project.needs import needs
from penstock.errors import SpecError

HEADER = "# Databricks notebook source\n"


def _needs(project, *patterns, **configuration):
    settings = PipelineSettings(
        name="p",
        storage="file:///x",
        root=str(project.root),
        source_patterns=patterns or ("**",),
        configuration=configuration,
    )
    return needs(settings)


def _at(found, project):
    return [f"{item.origin.file.removeprefix(f'{project.root}/')}:{item.origin.line}"
            for item in found]  # fmt: skip


def test_keys_are_found_with_their_defaults_when_sources_read_them(project):
    project.write(
        "a.py",
        "KEY = 'constant'\n"
        "spark.conf.get('plain')\n"
        "spark.conf.get('default', 'x')\n"
        "spark.conf.get(key='named', default=None)\n"
        "self.spark.conf.get(KEY)\n"
        "spark.conf.get(f'{x}.computed')\n"
        "spark.conf.get('spark.sql.shuffle.partitions')\n"
        "spark.conf.get('given')\n"
        "spark.conf.set('own', 1); spark.conf.get('own')\n"
        "{}.get('no key')\n"
        "spark.sql('''SELECT 1\nFROM ${in_sql}''')\n",
    )
    missing = _needs(project, given="yes").settings
    assert [need.name for need in missing] == ["plain", "constant", "in_sql"]
    assert _at(missing, project) == ["a.py:2", "a.py:5", "a.py:12"]


def test_sql_tells_its_needs_when_it_is_a_file_or_a_cell(project):
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


def test_widgets_are_missing_when_nothing_gives_them_a_value(project):
    project.write(
        "a.py",
        "dbutils.widgets.text('env', 'dev')\ndbutils.widgets.get('env')\n"
        "dbutils.widgets.get('region')\ndbutils.widgets.get('given')\n"
        "getArgument('old', 'x')\n",
    )
    assert [need.name for need in _needs(project, given="x").settings] == ["region"]


def test_secrets_are_looked_for_when_their_names_are_known(project, monkeypatch):
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
    result = _needs(project)
    assert [need.name for need in result.secrets] == ["kafka/password", "{s}/x"]
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
def test_paths_are_found_when_they_are_elsewhere(project, code, path, scheme):
    project.write("a.py", code)
    assert [(item.name, item.scheme) for item in _needs(project).paths] == [(path, scheme)]


@pytest.mark.parametrize(
    "code",
    ["'''/mnt/docstring'''", "# '/mnt/comment'", "x = 'see /mnt/x'", "x = '/Volumesque'", "x = 1"],
)
def test_no_path_is_found_when_a_text_is_none(project, code):
    project.write("a.py", code)
    assert _needs(project).paths == ()


def test_imports_are_listed_when_they_are_neither_installed_nor_in_the_project(project):
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


def test_modules_are_known_when_a_source_adds_their_folder_to_the_path(project):
    project.write("common/lib/shared_rules.py", "import no_such_in_shared\n")
    project.write(
        "etl/bronze/a.py",
        "import os, sys\nsys.path.insert(0, os.path.abspath(os.path.join('..', '../common/lib')))\n"
        "sys.path.append('../nowhere')\nimport shared_rules\n",
    )
    assert [need.name for need in _needs(project, "etl/**").imports] == ["no_such_in_shared"]


def test_notebooks_are_read_when_another_runs_them(project):
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


def test_lines_still_tell_needs_when_a_file_is_wrong(project):
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


def test_a_huge_expression_is_read_when_python_can_parse_it(project):
    project.write("a.py", "x = " + " + ".join(["'a'"] * 5000) + "\nspark.conf.get('k')\n")
    assert [need.name for need in _needs(project).settings] == ["k"]


def test_nothing_is_executed_when_needs_are_read(project):
    project.write("a.py", "raise SystemExit(3)\nspark.conf.get('k')\n")
    assert [need.name for need in _needs(project).settings] == ["k"]


def test_missing_sources_are_an_error_when_needs_are_read(project):
    with pytest.raises(SpecError):
        _needs(project, "no.py")
