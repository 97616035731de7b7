import json

import pytest

from penstock._project.databricks.notebook import is_notebook_source, read_cells, run_arguments
from penstock.errors import DefinitionError

HEADER = "# Databricks notebook source\n"


def _cells(path):
    return [(str(cell.kind), cell.line, cell.text) for cell in read_cells(path)]


def _notebook(*sources, **metadata):
    cells = [{"cell_type": "code", "source": source, "metadata": {}} for source in sources]
    return json.dumps({"nbformat": 4, "metadata": metadata, "cells": cells})


def test_file_without_a_notebook_header_is_one_cell(project):
    text = "import dlt\n# COMMAND ----------\n# MAGIC %sql\n# MAGIC SELECT 1\n"
    assert _cells(project.write("a.py", text)) == [("python", 1, text)]
    assert _cells(project.write("a.sql", "SELECT 1;\n")) == [("sql", 1, "SELECT 1;\n")]
    assert _cells(project.write("empty.sql", "\n")) == []


def test_cells_of_mixed_languages_keep_their_lines(project):
    path = project.write(
        "a.py",
        "# Databricks notebook source\n"
        "# DBTITLE 1,Intro\n"
        "# MAGIC %md\n"
        "# MAGIC # Title\n"
        "\n"
        "# COMMAND ----------\n"
        "\n"
        "x = 1\n"
        "\n"
        "# COMMAND ----------\n"
        "\n"
        "# MAGIC %sql\n"
        "# MAGIC SELECT\n"
        "# MAGIC   1;\n"
        "# MAGIC\n"
        "# MAGIC SELECT 2\n"
        "\n"
        "# COMMAND ----------   \n"
        "# MAGIC %run ./setup\n"
        "# COMMAND ----------\n"
        "# MAGIC %pip install pandas \\\n"
        "# MAGIC   requests\n"
        "# MAGIC %pip install numpy\n"
        "# COMMAND ----------\n"
        "# MAGIC %sh ls\n"
        "# COMMAND ----------\n"
        "# MAGIC %scala val x = 1\n"
        "# COMMAND ----------\n"
        "# MAGIC %r\n"
        "# COMMAND ----------\n"
        "# MAGIC %sql SELECT 3\n",
    )
    assert [cell for cell in _cells(path) if "Databricks" not in cell[2]] == [
        ("python", 7, "\nx = 1\n"),
        ("sql", 12, "\nSELECT\n  1;\n\nSELECT 2"),
        ("run", 19, "./setup"),
        ("packages", 21, "pip install pandas  requests"),
        ("packages", 23, "pip install numpy"),
        ("packages", 25, "ls"),
        ("lost", 27, "val x = 1"),
        ("sql", 31, "SELECT 3"),
    ]


def test_cell_is_not_split_by_magics_without_effect(project):
    path = project.write(
        "a.py",
        "# Databricks notebook source\ndef f():\n# MAGIC %pip install x\n# MAGIC %md note\n"
        "    return 1\n",
    )
    cells = read_cells(path)
    assert [str(cell.kind) for cell in cells] == ["packages", "python"]
    assert cells[1].text.split("\n")[4] == "    return 1"


def test_shell_commands_have_no_effect(project):
    path = project.write("a.py", f"{HEADER}# COMMAND ----------\n!pip install x\ny = 1\n")
    assert _cells(path)[1:] == [("packages", 3, "pip install x"), ("python", 3, "pass\ny = 1\n")]


def test_sql_notebook_can_have_python_cells(project):
    path = project.write(
        "a.sql",
        "-- Databricks notebook source\nSELECT 1\n-- COMMAND ----------\n"
        "-- MAGIC %python\n-- MAGIC def f():\n-- MAGIC   pass\n-- COMMAND ----------\n"
        "-- MAGIC %md no\n-- COMMAND ----------\n-- MAGIC %run ./x\n",
    )
    assert _cells(path) == [
        ("sql", 1, "-- Databricks notebook source\nSELECT 1"),
        ("python", 4, "\ndef f():\n  pass"),
        ("run", 10, "./x"),
    ]


@pytest.mark.parametrize(
    ("text", "is_notebook"),
    [
        ("# Databricks notebook source\n", True),
        ("\n# Copyright\n# Databricks notebook source\r\n", True),
        ("#Databricks notebook source", True),
        ("-- Databricks notebook source", True),
        ("import dlt\n# Databricks notebook source\n", False),
        ("", False),
        ("# Databricks notebook sources\n", False),
    ],
)
def test_notebook_source_is_recognized_by_its_header(text, is_notebook):
    assert is_notebook_source(text) is is_notebook


def test_cells_of_a_jupyter_notebook_are_numbered(project):
    path = project.write(
        "a.ipynb",
        json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "source": ["# text"]},
                    {"cell_type": "code", "source": ["import dlt\n", "x = 1"]},
                    {"cell_type": "code", "source": "%sql\nSELECT 1"},
                    {"cell_type": "code", "source": []},
                    {"cell_type": "raw", "source": "raw"},
                    {"cell_type": "code", "source": "%%sql -o df\nSELECT 2"},
                    {"cell_type": "code", "source": "%md\n# x"},
                    {"cell_type": "code"},
                    "no cell",
                ]
            }
        ),
    )
    assert [(cell.file, str(cell.kind), cell.text) for cell in read_cells(path)] == [
        (f"{path}[cell 2]", "python", "import dlt\nx = 1"),
        (f"{path}[cell 3]", "sql", "\nSELECT 1"),
        (f"{path}[cell 6]", "sql", "\nSELECT 2"),
    ]


@pytest.mark.parametrize(
    ("source", "kinds", "code"),
    [
        ("%matplotlib inline\nx = 1", ["python"], "pass\nx = 1"),
        ("!pip install foo\nx = 1", ["packages", "python"], "pass\nx = 1"),
        ("x = 1\n%pip install foo", ["packages", "python"], "x = 1\npass"),
        ("%pip install foo\n%pip install bar\nx = 1", ["packages"] * 2 + ["python"], "x = 1"),
        ("%load_ext a\n%autoreload 2", ["python"], "pass\npass"),
        ("if True:\n    !ls \\\n      -l\nx = 1", ["packages", "python"],
         "if True:\n    pass\n\nx = 1"),
        ("x = ('%s'\n% 1)", ["python"], "x = ('%s'\n% 1)"),
        ("x = '''\n%run no\n!no\n'''", ["python"], "x = '''\n%run no\n!no\n'''"),
        ("?x\nx?\nx.y??", ["python"], "pass\npass\npass"),
        ("%%time\nx = 1", ["python"], "\nx = 1"),
        ("%time x = f(1)", ["python"], "x = f(1)"),
        ("%timeit x = f(1)", ["python"], "pass"),
        ("!echo don't\ny = 2", ["packages", "python"], "pass\ny = 2"),
        ("%%bash\nls", ["packages"], None),
        ("%%html\n<b>", [], None),
        ("%%unknown\nx", ["lost"], None),
        ("%python\nx = 1", ["python"], "\nx = 1"),
        ("%restart_python", ["python"], "pass"),
        ("%environment\n\"client\": \"1\"\n- a b", [], None),
        ("%my_table\nname: x\n- y z", ["lost"], None),
        ("%my_magic\nx = 1", ["python"], "pass\nx = 1"),
    ],
)  # fmt: skip
def test_magics_in_code_have_no_effect(project, source, kinds, code):
    cells = read_cells(project.write("a.ipynb", _notebook(source)))
    assert [str(cell.kind) for cell in cells] == kinds
    assert next((cell.text for cell in cells if cell.kind == "python"), None) == code


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ('%environment\n{"client": "1"}', []),
        ("%configure -f\n{}", []),
        ("%whatever\nSELECT 1", ["lost"]),
        ("%whatever", []),
        ("%time\nSELECT 1", ["sql"]),
    ],
)
def test_content_of_an_unknown_magic_is_not_sql_in_a_sql_notebook(project, source, kinds):
    content = json.loads(_notebook(source))
    content["metadata"] = {"language_info": {"name": "sql"}}
    cells = read_cells(project.write("a.ipynb", json.dumps(content)))
    assert [str(cell.kind) for cell in cells] == kinds


def test_cell_is_split_by_run(project):
    path = project.write("a.ipynb", _notebook("x = 1\n%run ./b $y='2'\nz = 3"))
    assert _cells(path) == [
        ("python", 1, "x = 1"),
        ("run", 2, "./b $y='2'"),
        ("python", 3, "z = 3"),
    ]


@pytest.mark.parametrize("code", ["if True:\n    %run ./b", "x = (1", "x = !ls", "\0"])
def test_invalid_code_is_unchanged(project, code):
    (cell,) = read_cells(project.write("a.ipynb", _notebook(code)))
    assert (str(cell.kind), cell.text) == ("python", code)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"language_info": {"name": "sql"}}, "sql"),
        ({"application/vnd.databricks.v1+notebook": {"language": "sql"}}, "sql"),
        ({"application/vnd.databricks.v1+notebook": {"language": "SQL"},
          "language_info": {"name": "python"}}, "sql"),
        ({"language_info": {"name": "scala"}}, "lost"),
        ({"kernelspec": {"language": "python"}}, "python"),
        ({"kernelspec": None, "language_info": 3}, "python"),
    ],
)  # fmt: skip
def test_language_of_a_cell_without_a_magic_is_that_of_the_notebook(project, metadata, kind):
    (cell,) = read_cells(project.write("a.ipynb", _notebook("x", **metadata)))
    assert str(cell.kind) == kind


@pytest.mark.parametrize(
    ("written", "kind"), [("plaintext", "python"), ("sql", "sql"), ("scala", "lost")]
)
def test_language_of_a_cell_is_read_from_vscode_metadata(project, written, kind):
    cell = {"cell_type": "code", "metadata": {"vscode": {"languageId": written}}, "source": "x"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (read,) = read_cells(project.write("a.ipynb", json.dumps(notebook)))
    assert str(read.kind) == kind


@pytest.mark.parametrize(
    ("name", "content", "line", "expected"),
    [
        ("a.ipynb", b'{\n"cells": [}', 2, "is not JSON"),
        ("a.ipynb", b"[]", 1, "is not a notebook"),
        ("a.ipynb", b'{"worksheets": []}', 1, "old format"),
        ("a.ipynb", b'{"cells": {}}', 1, "is not a notebook"),
        ("a.ipynb", b"\xff\xfe\x00", 1, "UTF-8"),
        ("a.ipynb", b"[" * 200_000, 1, "nested too deeply"),
        ("a.sql", b"-- x\nSELECT '\xff'", 2, "UTF-8"),
        ("a.py", b"# x\n# Gr\xf6\xdfe", 2, "UTF-8"),
    ],
)
def test_error_names_the_line_when_a_file_cannot_be_read(project, name, content, line, expected):
    path = project.write(name)
    path.write_bytes(content)
    with pytest.raises(DefinitionError) as caught:
        read_cells(path)
    assert (caught.value.condition, caught.value.origin.line) == ("SOURCE_INVALID", line)
    assert expected in caught.value.message


@pytest.mark.parametrize(
    "content",
    [b"SELECT '\xc3\xa9'", b"\xef\xbb\xbfSELECT '\xc3\xa9'", "SELECT 'é'".encode("utf-16")],
)
def test_sql_can_have_a_byte_order_mark_or_utf_16_encoding(project, content):
    path = project.write("a.sql")
    path.write_bytes(content)
    assert _cells(path) == [("sql", 1, "SELECT 'é'")]


def test_empty_notebook_has_no_cells(project):
    assert read_cells(project.write("a.ipynb", "")) == []
    assert read_cells(project.write("b.ipynb", '{"cells": []}')) == []


def test_lines_are_correct_with_windows_line_endings(project):
    path = project.write("a.py")
    path.write_bytes(
        b"# Databricks notebook source\r\n# COMMAND ----------\r\n"
        b"# MAGIC %sql\r\n# MAGIC SELECT 1\r\n"
    )
    assert _cells(path)[-1] == ("sql", 3, "\nSELECT 1")


def test_only_outer_quotes_of_run_arguments_are_removed():
    text = """./setup $where="country = 'DE'" $name='"x"' $plain=1"""
    values = {"where": "country = 'DE'", "name": '"x"', "plain": "1"}
    assert run_arguments(text) == ("./setup", values)
