"""Values from settings and earlier statements: `${key}`, `:name`, `SET` and `USE`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._api.registry import Registry, registration
from penstock._model.missing import missing_values_assumed
from penstock._sql.declare import SqlContext, declare_sql

# -- ${key} -------------------------------------------------------------------------------------


def test_variables_are_substituted_everywhere_except_in_comments(sql):
    declared = sql(
        """-- not ${here}
        CREATE OR REFRESH STREAMING TABLE ${catalog}.${ schema }.`${name}` /* nor ${here} */
        COMMENT "of ${name}" LOCATION '${root}/x' TBLPROPERTIES ('k' = '${hiveconf:name}')
        AS SELECT '${spark:name}' AS n -- ${here}
        FROM STREAM(${source}) /*+ HINT(${name}) */ WHERE ${condition}""",
        variables={
            "catalog": "main", "schema": "silver", "name": "t", "root": "s3://b",
            "source": "LIVE.raw", "condition": "a > 0\n AND b = ';'",
        },
    )  # fmt: skip
    dataset = declared.dataset
    assert dataset.name == "main.silver.t"
    assert dataset.comment == "of t"
    assert dataset.path == "s3://b/x"
    assert dataset.table_properties == {"k": "t"}
    assert "'t' AS n -- ${here}" in declared.query
    assert "FROM STREAM(LIVE.raw) /*+ HINT(t) */ WHERE a > 0\n AND b = ';'" in declared.query


def test_line_numbers_are_those_of_the_file_when_values_have_newlines(sql):
    declared = sql("CREATE VIEW ${x} AS\nSELECT (1;", variables={"x": "v\n\n\n"})
    assert declared.error.origin.line == 2


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("CREATE VIEW v AS\nSELECT '${catalgo}'", 2, "did you mean `${catalog}`?"),
        ("CREATE VIEW v AS SELECT ${zzz.zzz}", 1, "configuration: {zzz.zzz: ...}"),
        ("CREATE VIEW ${} AS SELECT 1", 1, "write a key"),
        ("${zzz}", 1, "SET zzz = ..."),
    ],
)
def test_error_about_an_unknown_variable_has_a_hint(sql, text, line, hint):
    error = sql(text, variables={"catalog": "c"}).error
    assert error.condition == "SQL_VARIABLE_UNKNOWN"
    assert error.origin.line == line
    assert hint in error.hint


def test_secrets_in_a_query_are_resolved_by_the_reader_of_the_option(sql):
    text = "SELECT * FROM STREAM read_kafka(password => '${secret:kafka/pw}')"
    assert sql(f"CREATE STREAMING TABLE t AS {text}").query == text


def test_value_with_a_semicolon_gives_several_statements(sql):
    declared = sql(
        "${all}", variables={"all": "CREATE VIEW a AS SELECT 1; CREATE VIEW b AS SELECT 2"}
    )
    assert [dataset.name for dataset in declared.datasets] == ["a", "b"]


def test_substituted_values_are_not_substituted_again(sql):
    declared = sql("CREATE VIEW v AS SELECT '${a}'", variables={"a": "${b}", "b": "x"})
    assert declared.query == "SELECT '${b}'"


# -- :name --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "filled"),
    [
        ("SELECT :p", "SELECT 'it\\'s'"),
        ("SELECT a=:p, f(:p,:P), m[:p], x -> :p", None),
        ("SELECT CASE WHEN :p THEN :p ELSE :p END WHERE a LIKE :p AND b BETWEEN :p AND :p", None),
        ("SELECT * FROM t WHERE a > :p LIMIT :p OFFSET :p", None),
        ("SELECT * FROM read_files(:p, format => :p)", None),
        ("SELECT * FROM t WHERE a = 1 OR NOT :p", None),
    ],
)
def test_parameters_become_string_literals(sql, query, filled):
    text = sql(f"CREATE VIEW v AS {query}", parameters={"p": "it's"}).query
    assert text == (filled or query.replace(":p", "'it\\'s'").replace(":P", "'it\\'s'"))


def test_blank_parameter_is_a_value_in_any_case_of_its_name(sql):
    declared = sql("CREATE VIEW v AS SELECT :env, :ENV", parameters={"Env": ""})
    assert declared.query == "SELECT '', ''"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a:p, a:p.q[0], a:p:q, `a`:p, f(x):p, x[0]:p, a :p",
        "SELECT a::p, a :: int, ':p', \":p\", `:p` /* :p */ -- :p",
        "SELECT CAST(a AS STRUCT<p:INT, limit:p, by: STRUCT<date:DATE>>)",
        "SELECT a::STRUCT<x:p>",
        "SELECT limit:p FROM t",
    ],
)
def test_paths_casts_and_types_are_not_parameters(sql, query):
    text = sql(f"CREATE VIEW v AS {query}\n", parameters={"p": "x"}).query
    assert text == query.removesuffix(" -- :p").removesuffix(" /* :p */")


def test_parameters_give_names_in_identifier(sql):
    declared = sql(
        "USE CATALOG IDENTIFIER(:catalog); USE SCHEMA IDENTIFIER(:schema);"
        "CREATE MATERIALIZED VIEW IDENTIFIER(:name) AS"
        " SELECT IDENTIFIER(:column) FROM IDENTIFIER(:catalog || '.x.' || :name), IDENTIFIER(y)",
        parameters={"catalog": "main", "schema": "gold", "name": "t", "column": "`a b`"},
    )
    assert declared.dataset.name == "main.gold.t"
    assert declared.query == "SELECT `a b` FROM `main`.`x`.`t`, IDENTIFIER(y)"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CREATE VIEW v AS SELECT 1\nWHERE day = :dya", "did you mean `:day`?"),
        ("CREATE VIEW v AS SELECT 1\nWHERE day = :zzz", "parameters: {zzz: ...}"),
    ],
)
def test_error_about_an_unknown_parameter_has_a_hint(sql, text, hint):
    error = sql(text, parameters={"day": "2020"}).error
    assert error.condition == "SQL_PARAMETER_UNKNOWN"
    assert error.origin.line == 2
    assert hint in error.hint


# -- SET ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("SET a = b", "a", "b"),
        ("set spark.sql.shuffle.partitions=10", "spark.sql.shuffle.partitions", "10"),
        ("SET pipelines.trigger.interval = 10 seconds", "pipelines.trigger.interval", "10 seconds"),
        ("SET a = 'x; -- y'", "a", "x; -- y"),
        ('SET a.b-c:d = "x"', "a.b-c:d", "x"),
        ("SET `a.b` = 'x' -- note", "a.b", "x"),
        ("SET path = s3://bucket/x*/y.json", "path", "s3://bucket/x*/y.json"),
        ("SET list = 'a', 'b'", "list", "'a', 'b'"),
        ("SET eq = a = b", "eq", "a = b"),
        ("SET empty =", "empty", ""),
        ("SET catalog = main", "catalog", "main"),
        ("SET time.x = 1", "time.x", "1"),
    ],
)
def test_set_gives_a_value_to_later_statements(sql, text, key, value):
    declared = sql(f"CREATE VIEW a AS SELECT 1;\n{text}\n;CREATE VIEW b AS SELECT 1")
    assert declared.context.variables[key] == value
    first, second = declared.flows
    assert first.spark_conf == {}
    assert second.spark_conf == {key: value}
    assert declared.datasets[1].spark_conf == {key: value}


def test_set_overrides_the_configuration_and_can_use_it(sql):
    declared = sql(
        "SET root = ${root}/x; SET root = ${root}/y; CREATE VIEW v AS SELECT '${root}'",
        variables={"root": "/r", "other": "o"},
    )
    assert declared.query == "SELECT '/r/x/y'"
    assert declared.flow.spark_conf == {"root": "/r/x/y"}


def test_set_is_refused_when_it_has_no_key(sql):
    assert sql("SET = 1").error.condition == "SQL_SYNTAX"
    assert "expected `=`" in sql("SET pipelines.trigger.interval 10 seconds").error.message


@pytest.mark.parametrize("text", ["SET", "SET a", "SET shop.source"])
def test_set_without_a_value_declares_nothing(sql, text):
    declared = sql(f"{text}; CREATE VIEW v AS SELECT 1")
    assert declared.query == "SELECT 1"
    assert declared.flow.spark_conf == {}


@pytest.mark.parametrize("text", ["SET VARIABLE x = 1", "SET VAR x = 1", "SET TIME ZONE 'UTC'"])
def test_other_forms_of_set_are_refused_by_name(sql, text):
    assert sql(text).error.condition == "SQL_STATEMENT_NOT_SUPPORTED"


# -- USE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uses", "names"),
    [
        ("", ["t", "s.t", "c.s.t"]),
        ("USE SCHEMA x", ["x.t", "s.t", "c.s.t"]),
        ("use database x", ["x.t", "s.t", "c.s.t"]),
        ("USE NAMESPACE `x y`", ["`x y`.t", "s.t", "c.s.t"]),
        ("USE x", ["x.t", "s.t", "c.s.t"]),
        ("USE k.x", ["k.x.t", "k.s.t", "c.s.t"]),
        ("USE SCHEMA k.x", ["k.x.t", "k.s.t", "c.s.t"]),
        ("USE CATALOG k; USE SCHEMA x", ["k.x.t", "k.s.t", "c.s.t"]),
        ("USE SCHEMA x; USE CATALOG k", ["k.main.t", "k.s.t", "c.s.t"]),
        ("USE CATALOG 'k'", ["k.main.t", "k.s.t", "c.s.t"]),
        ("SET CATALOG k", ["k.main.t", "k.s.t", "c.s.t"]),
        ("USE schema", ["schema.t", "s.t", "c.s.t"]),
        ("USE SCHEMA catalog", ["catalog.t", "s.t", "c.s.t"]),
    ],
)
def test_use_qualifies_later_names(sql, uses, names):
    declared = sql(
        f"{uses};\nCREATE STREAMING TABLE t; CREATE STREAMING TABLE s.t;"
        "CREATE STREAMING TABLE c.s.t; CREATE STREAMING TABLE LIVE.own;"
        "CREATE TEMPORARY VIEW v AS SELECT 1",
        pipeline_schema="main",
    )
    assert [dataset.name for dataset in declared.datasets] == [*names, "own", "v"]


def test_use_qualifies_targets_and_sources_of_flows(sql):
    declared = sql(
        "USE c.s; CREATE FLOW f AS INSERT INTO t SELECT 1;"
        "APPLY CHANGES INTO x.t FROM STREAM(u) KEYS (k) SEQUENCE BY b;"
        "APPLY CHANGES INTO LIVE.t FROM STREAM(LIVE.u) KEYS (k) SEQUENCE BY b"
    )
    assert [(flow.name, flow.target) for flow in declared.flows] == [
        ("f", "c.s.t"),
        ("c.x.t", "c.x.t"),
        ("t", "t"),
    ]
    assert [flow.cdc.source for flow in declared.flows[1:]] == ["c.s.u", "u"]


def test_use_and_set_apply_to_later_cells_of_a_context(sql):
    declared = sql("USE SCHEMA s; SET k = v").add("CREATE VIEW ${k} AS SELECT 1")
    assert declared.dataset.name == "s.v"
    assert declared.flow.spark_conf == {"k": "v"}


@pytest.mark.parametrize("text", ["USE", "USE CATALOG", "USE CATALOG a.b", "USE a.b.c", "USE a b"])
def test_use_without_a_valid_name_is_refused(sql, text):
    declared = sql(text)
    if text == "USE CATALOG":  # `CATALOG` is a valid name of a schema
        assert declared.context.schema == "CATALOG"
    else:
        assert declared.error.condition == "SQL_SYNTAX"


# -- arbitrary text -----------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        *("CREATE", "OR REFRESH", "STREAMING", "LIVE", "TABLE", "MATERIALIZED", "VIEW", "FLOW"),
        *("t", "a.b", "`c d`", "AS", "SELECT 1", "FROM STREAM(x)", "(", ")", "<", ">", ",", ";"),
        *("CONSTRAINT", "EXPECT", "ON VIOLATION", "DROP ROW", "COMMENT", "'x'", '"y"', "INT"),
        *("TBLPROPERTIES", "=", "PARTITIONED BY", "CLUSTER BY", "USING", "AUTO CDC", "INTO"),
        *("APPLY CHANGES", "KEYS", "SEQUENCE BY", "COLUMNS", "* EXCEPT", "STORED AS SCD TYPE 2"),
        *("SET", "USE", "CATALOG", "INSERT", "ONCE", "BY NAME", "REPLACE WHERE", "'", "--", "/*"),
        *("*/", "\n", "${k}", "${", "}", ":p", ":q", "IDENTIFIER(", "IF NOT EXISTS", "GENERATED"),
        *("DEFAULT", "NOT NULL", "SCHEDULE", "EVERY 1 DAY", "INTERVAL", "DELAY OF", "\x00", "é"),
    ]
)


def _declares(text: str) -> None:
    registry = Registry()
    context = SqlContext(variables={"k": "v"}, parameters={"p": "x"})
    with registration(registry):
        declare_sql(text, file="any.sql", context=context)
    for error in registry.errors:
        assert error.condition
        assert 1 <= error.origin.line <= text.count("\n") + text.count("\r") + 1


@settings(deadline=None, max_examples=400)
@given(st.lists(_WORDS, max_size=30))
def test_words_in_any_order_raise_no_exception(words):
    _declares(" ".join(words))


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_raises_no_exception(text):
    _declares(text)


def test_file_with_many_statements_is_split_quickly(sql):
    text = "CREATE VIEW v%d AS SELECT * FROM t WHERE a IN (%s);\n"
    values = ", ".join(f"'{number}'" for number in range(50))
    declared = sql("".join(text % (number, values) for number in range(500)))
    assert len(declared.datasets) == 500
    assert declared.datasets[-1].origin.line == 500


def test_missing_values_are_assumed_when_allowed(sql):
    with missing_values_assumed(lambda key: f"some_{key}"):
        declared = sql("SET a = 1; CREATE VIEW v AS SELECT '${a}', '${b}', :c")
    assert declared.query == "SELECT '1', 'some_b', 'some_c'"
