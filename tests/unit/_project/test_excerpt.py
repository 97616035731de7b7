"""The code of a declaration, as the pages of the dashboard show it."""

from pathlib import Path

import pytest
from planted_secrets import PLANTED

from penstock._project.excerpt import excerpt, without_secrets

PIPELINE = """import dlt

SCHEMA = "id BIGINT"


@dlt.expect("good", "id > 0")
@dlt.table(
    comment="rows",
)
def silver():
    rows = dlt.read("bronze")

    return rows.where("id > 0")


dlt.create_streaming_table(
    "gold",
)


def factory(name):
    @dlt.view(name=name)
    def inner():
        return dlt.read("silver")
"""
SQL = """-- first
CREATE OR REFRESH STREAMING TABLE a AS SELECT ';' AS x;

CREATE OR REFRESH MATERIALIZED VIEW b
AS SELECT * -- not; here
FROM a
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    (root / "tables.sql").write_text(SQL, encoding="utf-8")
    (tmp_path / "outside.py").write_text("password = 'hunter2'", encoding="utf-8")
    return root


def lines_of(root: Path, location: str) -> list[str]:
    shown = excerpt(root, location)
    assert shown is not None
    return [str(shown["line"]), *shown["text"].splitlines()]


def test_excerpt_is_the_statement_with_its_decorators(project):
    for line in (6, 7):
        first, *code = lines_of(project, f"deep/pipeline.py:{line}")
        assert (first, code[0], code[-1]) == (
            "6",
            '@dlt.expect("good", "id > 0")',
            '    return rows.where("id > 0")',
        )
    assert lines_of(project, "deep/pipeline.py:16") == [
        "16",
        *("dlt.create_streaming_table(", '    "gold",', ")"),
    ]
    first, *code = lines_of(project, "deep/pipeline.py:22")
    assert (first, code[0].strip(), len(code)) == ("22", "@dlt.view(name=name)", 3)
    assert lines_of(project, str(project / "deep/pipeline.py") + ":16")[0] == "16"


def test_excerpt_of_sql_ends_at_the_semicolon_or_end_of_file(project):
    assert lines_of(project, "tables.sql:2") == ["2", SQL.splitlines()[1]]
    assert lines_of(project, "tables.sql:4") == ["4", *SQL.splitlines()[3:]]


def test_files_that_are_not_project_sources_have_no_excerpt(project, tmp_path):
    (project / "notes.txt").write_text("1", encoding="utf-8")
    (project / "link.py").symlink_to(tmp_path / "outside.py")
    (project / "bytes.py").write_bytes(b"\xff\xfe\x00")
    for location in (
        *("../outside.py:1", f"{tmp_path}/outside.py:1", "link.py:1", "notes.txt:1", "gone.py:1"),
        *("deep:1", "bytes.py:1", "deep/pipeline.py:0", "deep/pipeline.py:999", "x", "", ":1"),
        *("deep/pipeline.py:1e3", "\0.py:1"),
    ):
        assert excerpt(project, location) is None, location


def test_invalid_code_has_no_excerpt_and_long_code_is_truncated(project):
    (project / "broken.py").write_text("def f(:\n" + "    x\n" * 400, encoding="utf-8")
    (project / "broken.sql").write_text("SELECT 'a", encoding="utf-8")
    assert excerpt(project, "broken.py:1") is excerpt(project, "broken.sql:1") is None
    (project / "long.py").write_text("def f():\n" + "    x = 1\n" * 400, encoding="utf-8")
    shown = excerpt(project, "long.py:1")
    assert shown is not None and shown["is_cut"] and len(shown["text"].splitlines()) == 120


def test_credentials_are_removed_from_code():
    secrets = []
    pieces = []
    for n, (text, secret) in enumerate(PLANTED.items()):
        if secret is not None:
            secrets.append(secret.replace("{n}", str(n)))
            planted = text.replace("{n}", str(n))
            pieces.append(f".option('it', {planted!r})  # don't")
    written = {
        '.option("password", "w-one")': "w-one",
        ".option(\n    'kafka.ssl.key.password',\n    'w-two'\n)": "w-two",
        'password = "w-three"': "w-three",
        'PASSWORD = (\n    "w-four"\n    "w-five"\n)': "w-five",
        '{"user": "bob", "client_secret": "w-six", "port": "80"}': "w-six",
        "# it's: option('password', 'w-seven')": "w-seven",
        'connect(token=f"w-eight-{x}")': "w-eight",
        'key = "QmFzZTY0S2V5V2l0aE51bWJlcnMxMjM0NQ=="': "QmFzZTY0S2V5",
        "jaas = '''\nrequired\npassword=\"w-nine\";\n'''": "w-nine",
    }
    code = "\n".join([*pieces, *written])
    shown = without_secrets(code)
    leaked = [value for value in (*secrets, *written.values()) if value in shown]
    assert leaked == []
    assert shown.count("\n") == code.count("\n")
    assert all(word in shown for word in ('"user"', '"bob"', '"port"', "it's"))
    sql = """SELECT `it's`, 'it''s' -- don't: password = 'w-ten'
    FROM read_files('/in', password => 'w-eleven', user => 'bob', token 'w-''twelve')
    /* isn't
       the secret: "w-thirteen" */ WHERE a = 'b'"""
    shown = without_secrets(sql, is_sql=True)
    assert [n for n in ("ten", "eleven", "twelve", "thirteen") if n in shown] == []
    assert all(word in shown for word in ("`it's`", "'it''s'", "'/in'", "'bob'", "a = 'b'"))


def test_credentials_are_removed_from_truncated_code(project):
    text = 'x = connect(password="""' + "a\n" * 200 + 'hunter2""")\n'
    (project / "cut.py").write_text(text, encoding="utf-8")
    shown = excerpt(project, "cut.py:1")
    assert shown is not None and shown["is_cut"]
    assert "[redacted]" in shown["text"] and "hunter2" not in shown["text"]
    assert (
        shown["text"].removeprefix("x = connect(password").replace("[redacted]", "").strip('="\n')
        == ""
    )


@pytest.mark.timeout(60)
def test_long_strings_are_scanned_in_linear_time():
    code = "x = '" + "a,B1," * 100_000 + "'\ny = '" + "password " * 50_000 + "'"
    assert without_secrets(code).count("\n") == 1


def test_code_without_credentials_is_unchanged():
    assert without_secrets(PIPELINE) == PIPELINE
    assert without_secrets(SQL, is_sql=True) == SQL
