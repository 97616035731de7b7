"""Flows: inserts, auto CDC with clauses in any order, and flows in the statement of a table."""

import itertools
from unittest.mock import MagicMock

import pytest

from penstock._api.reading import reading
from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.dataset import DatasetKind


@pytest.mark.parametrize(
    ("text", "once", "where"),
    [
        ("INSERT INTO t BY NAME SELECT 1", False, None),
        ("INSERT INTO t SELECT 1", False, None),
        ("insert into table t by name select 1", False, None),
        ("INSERT INTO ONCE t BY NAME SELECT 1", True, None),
        ("INSERT ONCE INTO t SELECT 1", True, None),
        ("INSERT INTO t (SELECT 1)", False, None),
        ("INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x", False, None),
        ("INSERT INTO t REPLACE WHERE day >= '2020' AND k IN (SELECT 1) BY NAME SELECT 1", False,
         "day >= '2020' AND k IN (SELECT 1)"),
        ("INSERT INTO t REPLACE WHERE a IS DISTINCT FROM b SELECT 1", False,
         "a IS DISTINCT FROM b"),
        ("INSERT INTO t BY NAME REPLACE WHERE a > 1 SELECT 1", False, "a > 1"),
    ],
)  # fmt: skip
def test_an_append_flow_is_declared_when_it_inserts(sql, text, once, where):
    flow = sql(f"CREATE FLOW f COMMENT 'c' AS {text}").flow
    assert (flow.name, flow.target, flow.comment) == ("f", "t", "c")
    assert (flow.once, flow.replace_where, flow.cdc) == (once, where, None)
    assert not flow.implicit
    assert flow.language == "SQL"


def test_target_of_a_flow_may_look_like_a_keyword(sql):
    flows = sql(
        "CREATE FLOW a AS INSERT INTO once SELECT 1;"
        "CREATE FLOW b AS INSERT INTO ONCE once BY NAME SELECT 1;"
        "CREATE FLOW `c.d` AS INSERT INTO `table`.x BY NAME SELECT 1"
    ).flows
    assert [(flow.name, flow.target, flow.once) for flow in flows] == [
        ("a", "once", False),
        ("b", "once", True),
        ("c.d", "table.x", False),
    ]


CLAUSES = {
    "KEYS (id, `the key`)": {"keys": ("id", "the key")},
    'APPLY AS DELETE WHEN op = "DELETE" AND note <> "; KEYS (x)"': {
        "apply_as_deletes": 'op = "DELETE" AND note <> "; KEYS (x)"'
    },
    "SEQUENCE BY struct(ts, id)": {"sequence_by": "struct(ts, id)"},
    "COLUMNS * EXCEPT (op, ts)": {"except_columns": ("op", "ts")},
    "STORED AS SCD TYPE 2": {"scd_type": ScdType.TWO},
    "TRACK HISTORY ON * EXCEPT (city)": {"track_history": TrackHistory(except_columns=("city",))},
}


def test_change_clauses_may_be_in_any_order(sql):
    wanted = CdcSpec(
        source="src", **{key: value for part in CLAUSES.values() for key, value in part.items()}
    )
    for order in itertools.permutations(CLAUSES):
        text = "\n  -- between\n".join(order)
        assert sql(f"APPLY CHANGES INTO live.t FROM STREAM(LIVE.src) {text}").flow.cdc == wanted, (
            text
        )


@pytest.mark.parametrize(
    ("clause", "fields"),
    [
        ("apply as truncate when op = 'T'", {"apply_as_truncates": "op = 'T'"}),
        ("IGNORE NULL UPDATES", {"ignore_null_updates": True}),
        ("IGNORE NULL UPDATES ON (a, b)",
         {"ignore_null_updates": True, "ignore_null_columns": ("a", "b")}),
        ("IGNORE NULL UPDATES ON * EXCEPT (a)",
         {"ignore_null_updates": True, "ignore_null_except_columns": ("a",)}),
        ("COLUMNS (a, b)", {"columns": ("a", "b")}),
        ("COLUMNS a, b", {"columns": ("a", "b")}),
        ("COLUMNS *", {}),
        ("COLUMNS TO UPDATE changed", {"columns_to_update": "changed"}),
        ("STORED AS SCD TYPE 1", {}),
        ("STORED AS SCD TYPE 2 TRACK HISTORY ON (a)",
         {"scd_type": ScdType.TWO, "track_history": TrackHistory(columns=("a",))}),
        ("STORED AS SCD TYPE 2 TRACK HISTORY ON a, b",
         {"scd_type": ScdType.TWO, "track_history": TrackHistory(columns=("a", "b"))}),
    ],
)  # fmt: skip
def test_change_clause_is_parsed_before_and_after_others(sql, clause, fields):
    wanted = CdcSpec(source="s", keys=("k",), sequence_by="ts", **fields)
    for text in (f"KEYS (k) SEQUENCE BY ts {clause}", f"{clause} SEQUENCE BY ts KEYS (k)"):
        assert sql(f"APPLY CHANGES INTO t FROM STREAM s {text}").flow.cdc == wanted


@pytest.mark.parametrize(
    "condition",
    ["columns = 1", "columns IS NULL", "keys > 1", "track = history", "f(sequence, by)",
     "CASE WHEN keys THEN columns ELSE (SELECT 1) END", "a IS NOT DISTINCT FROM stored",
     "ts > now() - INTERVAL 1 DAY AND NOT key", "CASE key WHEN 1 THEN true END",
     "old IS DISTINCT FROM track_id", "a IN (SELECT k FROM x) OR b LIKE ANY ('y') AND key"],
)  # fmt: skip
def test_clause_keywords_are_columns_in_an_expression(sql, condition):
    flow = sql(
        f"APPLY CHANGES INTO t FROM STREAM(s) KEYS (k) APPLY AS DELETE WHEN {condition} "
        "SEQUENCE BY columns"
    ).flow
    assert flow.cdc.apply_as_deletes == condition
    assert flow.cdc.sequence_by == "columns"


REST = "KEYS (k) SEQUENCE BY ts"


@pytest.mark.parametrize(
    ("text", "source", "read"),
    [
        (f"AUTO CDC INTO t FROM STREAM(s) {REST}", "s", ("stream", "s")),
        (f"AUTO CDC INTO t FROM STREAM s {REST}", "s", ("stream", "s")),
        (f"AUTO CDC INTO t FROM s {REST}", "s", ("stream", "s")),
        (f"AUTO CDC ONCE INTO t FROM s {REST}", "s", ("batch", "s")),
        (f"AUTO CDC INTO ONCE t FROM STREAM(s) {REST}", "s", ("stream", "s")),
        (f"AUTO CDC INTO t FROM stream {REST}", "stream", ("stream", "stream")),
        (f"AUTO CDC INTO t FROM STREAM(c.s.`a b`) {REST}", "c.s.`a b`", ("stream", "c.s.`a b`")),
        (f"APPLY CHANGES INTO t FROM STREAM(IDENTIFIER('a.b')) {REST}", "a.b", ("stream", "a.b")),
    ],
)
def test_flow_of_changes_reads_its_source_by_name(sql, text, source, read):
    from test_create import call

    flow = sql(f"CREATE FLOW f AS {text}").flow
    assert flow.cdc.source == source
    assert flow.once == ("ONCE" in text)
    assert call(flow.function)[1] == [read]


def test_unnamed_flow_of_changes_has_the_name_of_its_target(sql):
    flows = sql(
        f"APPLY CHANGES INTO LIVE.t FROM STREAM(s) {REST};"
        f"AUTO CDC INTO gold.`a b` FROM STREAM(s) {REST};"
        f"CREATE FLOW named AS APPLY CHANGES INTO t FROM STREAM(s) {REST};"
    ).flows
    assert [(flow.name, flow.target, flow.implicit) for flow in flows] == [
        ("t", "t", False),
        ("gold.a b", "gold.`a b`", False),
        ("named", "t", False),
    ]


def test_flow_in_the_statement_of_a_table_writes_into_it(sql):
    declared = sql(
        f"""CREATE STREAMING TABLE a COMMENT 'x' FLOW AUTO CDC FROM STREAM(s) {REST};
        CREATE STREAMING TABLE b (id INT) FLOW INSERT ONCE BY NAME SELECT 1 AS id;
        CREATE STREAMING TABLE c FLOW REPLACE WHERE day > 1 BY NAME SELECT 1 AS day;
        CREATE TABLE d (id INT) TBLPROPERTIES (a = 1) FLOW INSERT BY NAME SELECT 1 AS id FROM x"""
    )
    assert {dataset.kind for dataset in declared.datasets} == {DatasetKind.STREAMING_TABLE}
    flows = {flow.name: flow for flow in declared.flows}
    assert all(flow.implicit and flow.target == name for name, flow in flows.items())
    assert flows["a"].cdc.keys == ("k",)
    assert flows["b"].once
    assert flows["c"].replace_where == "day > 1"
    assert flows["d"].function.query.text == "SELECT 1 AS id FROM x"


def test_rules_apply_to_the_target_of_an_auto_cdc_flow(sql):
    declared = sql(
        "CREATE OR REFRESH STREAMING TABLE t (CONSTRAINT ok EXPECT (id > 0) ON VIOLATION DROP ROW);"
        f"APPLY CHANGES INTO t FROM STREAM(s) {REST}"
    )
    assert [rule.name for rule in declared.dataset.expectations] == ["ok"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("CREATE FLOW f", "`AS` or `COMMENT`", None),
        ("CREATE FLOW f AS SELECT 1", "`INSERT INTO` or `AUTO CDC INTO`", None),
        ("CREATE FLOW f AS INSRT INTO t SELECT 1", "found `INSRT`", "`INSERT`"),
        ("CREATE FLOW f AS INSERT OVERWRITE t SELECT 1", "does not overwrite", None),
        ("CREATE FLOW f AS INSERT INTO t (a, b) SELECT 1, 2", "no list of columns", None),
        ("CREATE FLOW f AS INSERT INTO t", "a query after `INSERT INTO`", None),
        ("CREATE FLOW f AS INSERT INTO t BY NAME", "a query after `BY NAME`", None),
        ("CREATE FLOW f AS INSERT INTO t REPLACE WHERE BY NAME SELECT 1", "a condition", None),
        ("CREATE FLOW f AS INSERT INTO ONCE t REPLACE WHERE a > 1 SELECT 1", "not once", "`ONCE`"),
        ("CREATE STREAMING TABLE t FLOW MERGE INTO x", "after `FLOW`", None),
        (f"APPLY CHANGES INTO t {REST}", "expected `FROM STREAM(source)`", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) SEQUENCE BY ts", "needs `KEYS (...)`", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) KEYS (k)", "needs `SEQUENCE BY`", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} KEYS (k)", "`KEYS` is given twice", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) KEYS (t.k) SEQUENCE BY x", "without a table", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) KEYS (lower(k)) SEQUENCE BY x", "expressions", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) KEYS () SEQUENCE BY x", "a column name", None),
        ("APPLY CHANGES INTO t FROM STREAM(s) KEYS (k) SEQUENCE BY", "an expression", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} STORED AS SCD TYPE 3", "`1` or `2`", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} STORED AS SDC TYPE 2", "`SDC`", "`SCD`"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) COLUMNS {REST}", "`COLUMNS` takes names", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} STORD AS SCD TYPE 2", "`STORD`", "`STORED`"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST}\nTRAK HISTORY ON (a)", "`TRAK`", "`TRACK`"),
        (f"APPLY CHANGES INTO t FROM STREAM(SELECT 1) {REST}", "in parentheses", "without STREAM"),
        (f"APPLY CHANGES INTO t FROM SELECT 1 {REST}", "in parentheses", "without STREAM"),
        (f"AUTO CDC INTO t FROM s WITH ('a'='b') {REST}", "found `WITH`", None),
        (
            f"AUTO CDC INTO t FROM (SELECT 1) {REST} WHERE a",
            "`WHERE` after a query",
            "into the query",
        ),
        (f"AUTO CDC INTO t FROM STREAM s {REST} WHERE", "an expression after `WHERE`", None),
        (f"APPLY CHANGES t FROM STREAM(s) {REST}", "expected `INTO`", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s {REST}", "expected `)`", None),
        (f"APPLY CHANGES INTO t FROM STREAM(s) SEQENCE BY ts {REST}", "`SEQENCE`", "`SEQUENCE`"),
    ],
)
def test_error_names_the_clause_of_a_flow(sql, text, message, hint):
    error = sql(text).error
    assert error.condition == "SQL_SYNTAX"
    assert message in error.message
    assert (hint or "") in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} STORED AS BITEMPORAL",
         "FEATURE_NOT_AVAILABLE"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} SYSTEM SEQUENCE BY x",
         "FEATURE_NOT_AVAILABLE"),
        (f"AUTO CDC INTO t FROM SNAPSHOT s {REST}", "FEATURE_NOT_AVAILABLE"),
        ("CREATE TABLE t FLOW IMPORT CHECKPOINT '/x' INSERT BY NAME SELECT 1",
         "FEATURE_NOT_AVAILABLE"),
        ("CREATE FLOW f AS INSERT INTO t BY NAME REPLACE USING (k) SEQUENCE BY s SELECT 1",
         "FEATURE_NOT_AVAILABLE"),
        ("CREATE TABLE t FLOW REPLACE USING (k) SEQUENCE BY s SELECT 1", "FEATURE_NOT_AVAILABLE"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} TRACK HISTORY ON (a)",
         "CONFLICTING_PARAMETERS"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} STORED AS SCD TYPE 2 "
         "APPLY AS TRUNCATE WHEN a", "CONFLICTING_PARAMETERS"),
        (f"APPLY CHANGES INTO t FROM STREAM(s) {REST} IGNORE NULL UPDATES COLUMNS TO UPDATE c",
         "CONFLICTING_PARAMETERS"),
        ("CREATE FLOW a.b AS INSERT INTO t SELECT 1", "INVALID_NAME"),
    ],
)  # fmt: skip
def test_unsupported_clause_of_a_flow_is_refused(sql, text, condition):
    assert sql(text).error.condition == condition


@pytest.mark.parametrize(
    "query", ["SELECT a, (b) FROM STREAM(s)", "FROM STREAM(s) |> SELECT a, (b)"]
)
def test_query_in_parentheses_is_a_source_of_changes(sql, query):
    declared = sql(
        f"CREATE STREAMING TABLE t;\nAPPLY CHANGES INTO t FROM (\n  {query}\n) "
        "KEYS (a) SEQUENCE BY b"
    )
    assert declared.errors == ()
    assert declared.flow.function.query.text.strip() == query
    assert (declared.flow.cdc.source, declared.flow.cdc.keys) == ("a query", ("a",))


@pytest.mark.parametrize(
    "clauses", ["WHERE op <> 'X' AND keys > 1 KEYS (k) SEQUENCE BY ts",
                "KEYS (k) SEQUENCE BY ts WHERE op <> 'X' AND keys > 1"]
)  # fmt: skip
def test_only_events_that_match_the_condition_are_read(sql, clauses):
    flow = sql(f"APPLY CHANGES INTO t FROM STREAM(s) {clauses}").flow
    assert (flow.cdc.source, flow.cdc.sequence_by) == ("s", "ts")
    reader = MagicMock()
    with reading(reader):
        flow.function()
    reader.read_stream("s").where.assert_called_once_with("op <> 'X' AND keys > 1")


@pytest.mark.parametrize("source", ["STREAM a.s", "STREAM(a.s)"])
def test_a_source_with_options_is_a_query(sql, source):
    flow = sql(f"AUTO CDC INTO t\nFROM {source} WITH ('o' = 'x;') {REST}").flow
    assert flow.function.query.text == "SELECT * FROM STREAM a.s WITH ('o' = 'x;')"
    assert flow.cdc.source == "a query"


@pytest.mark.parametrize(
    "source", ["STREAM read_files('x', format => 'json')", "STREAM(read_files('x'))", "f(1)"]
)
def test_a_function_is_a_source_of_changes(sql, source):
    flow = sql(f"AUTO CDC INTO t FROM {source} {REST}").flow
    assert flow.function.query.text == f"SELECT * FROM {source}"
    assert flow.cdc.source == "a query"
