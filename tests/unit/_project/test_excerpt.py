"""The code of a declaration, as pages show it."""

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


def lines_of(root: Path, place: str) -> list[str]:
    found = excerpt(root, place)
    assert found is not None
    return [str(found["line"]), *found["text"].splitlines()]


def test_a_statement_is_shown_from_its_first_decorator_to_its_end(project):
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


def test_a_statement_of_sql_ends_at_its_semicolon_or_with_the_file(project):
    assert lines_of(project, "tables.sql:2") == ["2", SQL.splitlines()[1]]
    assert lines_of(project, "tables.sql:4") == ["4", *SQL.splitlines()[3:]]


def test_nothing_is_read_that_is_not_source_of_the_project(project, tmp_path):
    (project / "notes.txt").write_text("1", encoding="utf-8")
    (project / "link.py").symlink_to(tmp_path / "outside.py")
    (project / "bytes.py").write_bytes(b"\xff\xfe\x00")
    for place in (
        *("../outside.py:1", f"{tmp_path}/outside.py:1", "link.py:1", "notes.txt:1", "gone.py:1"),
        *("deep:1", "bytes.py:1", "deep/pipeline.py:0", "deep/pipeline.py:999", "x", "", ":1"),
        *("deep/pipeline.py:1e3", "\0.py:1"),
    ):
        assert excerpt(project, place) is None, place


def test_what_is_broken_is_not_shown_and_what_is_long_only_in_part(project):
    (project / "broken.py").write_text("def f(:\n" + "    x\n" * 400, encoding="utf-8")
    (project / "broken.sql").write_text("SELECT 'a", encoding="utf-8")
    assert excerpt(project, "broken.py:1") is excerpt(project, "broken.sql:1") is None
    (project / "long.py").write_text("def f():\n" + "    x = 1\n" * 400, encoding="utf-8")
    found = excerpt(project, "long.py:1")
    assert found is not None and found["is_cut"] and len(found["text"].splitlines()) == 120


def test_no_credential_is_in_code_that_is_shown():
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
    found = [one for one in (*secrets, *written.values()) if one in shown]
    assert found == []
    assert shown.count("\n") == code.count("\n")
    assert all(word in shown for word in ('"user"', '"bob"', '"port"', "it's"))
    sql = """SELECT `it's`, 'it''s' -- don't: password = 'w-ten'
    FROM read_files('/in', password => 'w-eleven', user => 'bob', token 'w-''twelve')
    /* isn't
       the secret: "w-thirteen" */ WHERE a = 'b'"""
    shown = without_secrets(sql, is_sql=True)
    assert [n for n in ("ten", "eleven", "twelve", "thirteen") if n in shown] == []
    assert all(word in shown for word in ("`it's`", "'it''s'", "'/in'", "'bob'", "a = 'b'"))


def test_a_credential_does_not_come_out_where_code_is_cut(project):
    text = 'x = connect(password="""' + "a\n" * 200 + 'hunter2""")\n'
    (project / "cut.py").write_text(text, encoding="utf-8")
    found = excerpt(project, "cut.py:1")
    assert found is not None and found["is_cut"]
    assert "[redacted]" in found["text"] and "hunter2" not in found["text"]
    assert (
        found["text"].removeprefix("x = connect(password").replace("[redacted]", "").strip('="\n')
        == ""
    )


@pytest.mark.timeout(60)
def test_long_texts_are_gone_through_once():
    code = "x = '" + "a,B1," * 100_000 + "'\ny = '" + "password " * 50_000 + "'"
    assert without_secrets(code).count("\n") == 1


def test_code_without_credentials_stays_as_it_is():
    assert without_secrets(PIPELINE) == PIPELINE
    assert without_secrets(SQL, is_sql=True) == SQL
