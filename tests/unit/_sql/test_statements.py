"""Splitting text into statements, and continuing after an invalid statement."""

import pytest

from penstock._sql.source import SqlSource
from penstock._sql.statements import split_statements


def texts(text: str) -> list[str]:
    return [part.source.text for part in split_statements(SqlSource.of(text, file="f.sql"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\ufeff\t", []),
        (";;; ;", []),
        ("-- only ; a comment", []),
        ("/* one */ -- two", []),
        ("a", ["a"]),
        ("a;", ["a"]),
        ("a;\n b ;c", ["a", "b", "c"]),
        ("-- head\na -- mid ;\n b; -- tail", ["a -- mid ;\n b"]),
        ("a ';' \";\" `;` /* ; */ b; c", ["a ';' \";\" `;` /* ; */ b", "c"]),
        ("a (; b", ["a (", "b"]),
        ("a\r\n;\r\nb", ["a", "b"]),
        ("\ufeffa;b", ["a", "b"]),
        ("a\n-- COMMAND ----------\nb\n--COMMAND-----\n-- MAGIC %md x;\nc", ["a", "b", "c"]),
        ("a -- COMMAND ---- x\n b", ["a -- COMMAND ---- x\n b"]),
        ("%md\n# it's; a title", []),
        ("\n%python\nx = 'a", []),
        ("%sql a; b", ["a", "b"]),
        ("%SQL\na", ["a"]),
    ],
)
def test_statements_end_at_semicolons_outside_of_strings(text, expected):
    assert texts(text) == expected


def test_statements_before_an_unclosed_string_are_kept(sql):
    declared = sql("CREATE VIEW a AS SELECT 1;\n\nCREATE VIEW b AS SELECT 'x;\nCREATE VIEW c")
    error = declared.error
    assert error.condition == "SQL_SYNTAX"
    assert error.origin.line == 3
    assert "is not closed" in error.message
    assert "`''`" in error.hint
    assert not declared.registry.is_empty


def test_every_statement_is_checked_when_others_are_invalid(sql):
    declared = sql(
        "CREATE STREAMNG TABLE a AS SELECT 1;\n"
        "CREATE VIEW b AS SELECT (1;\n"
        "CREATE VIEW c AS SELECT 1;\n"
        "VACUUM a;\n"
        "CREATE VIEW d;\n"
    )
    assert [error.origin.line for error in declared.errors] == [1, 2, 4, 5]


def test_statements_that_only_show_something_declare_nothing(sql):
    declared = sql(
        "SELECT * FROM a; (SELECT 1); WITH x AS (SELECT '${nowhere}') SELECT :p FROM x;"
        "SHOW TABLES; DESCRIBE t; explain select 1; FROM t SELECT a; VALUES (1); TABLE t; desc t"
    )
    assert declared.registry.is_empty
    assert declared.errors == ()


@pytest.mark.parametrize(
    "second", ["CREATE OR REFRESH LIVE TABLE b AS SELECT 1", "APPLY CHANGES INTO b FROM c",
               "create view b as select 1", "CREATE FLOW f AS INSERT INTO b SELECT 1"],
)  # fmt: skip
def test_missing_semicolon_after_a_query_is_reported(sql, second):
    error = sql(f"CREATE VIEW a AS\nSELECT 1 AS create\n\n{second};").error
    assert error.origin.line == 4
    assert error.message == "expected `;` before this statement"


def test_missing_semicolon_after_a_shown_result_is_reported(sql):
    declared = sql("SHOW CREATE TABLE t; EXPLAIN CREATE TABLE a AS SELECT 1;\n"
                   "SELECT 1\nCREATE STREAMING TABLE b AS SELECT 1;")  # fmt: skip
    assert declared.registry.is_empty
    (error,) = declared.errors
    assert (error.origin.line, error.message) == (3, "expected `;` before this statement")


def test_line_numbers_of_a_cell_are_those_of_its_file(sql):
    declared = sql().add("\nCREATE VIEW a AS SELECT 1;\nCREATE VIEW b AS SELECT 2", first_line=40)
    assert [dataset.origin.line for dataset in declared.datasets] == [41, 42]
