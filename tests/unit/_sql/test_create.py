"""`CREATE` of tables and views: kinds, columns, clauses."""

import itertools

import pytest

from penstock._model.dataset import DatasetKind
from penstock._model.expectation import OnViolation

ST = DatasetKind.STREAMING_TABLE
MV = DatasetKind.MATERIALIZED_VIEW
TV = DatasetKind.TEMPORARY_VIEW


@pytest.mark.parametrize(
    ("head", "kind", "private"),
    [
        ("CREATE STREAMING TABLE", ST, False),
        ("CREATE OR REFRESH STREAMING TABLE", ST, False),
        ("create or replace streaming table", ST, False),
        ("CREATE OR REFRESH PRIVATE STREAMING TABLE", ST, True),
        ("CREATE TEMPORARY STREAMING TABLE", ST, True),
        ("CREATE STREAMING TABLE IF NOT EXISTS", ST, False),
        ("CREATE OR REFRESH STREAMING LIVE TABLE", ST, False),
        ("CREATE INCREMENTAL LIVE TABLE", ST, False),
        ("Create Temporary Streaming Live Table", ST, True),
        ("CREATE OR REFRESH TEMPORARY LIVE TABLE", MV, True),
        ("CREATE LIVE TABLE", MV, False),
        ("CREATE MATERIALIZED VIEW", MV, False),
        ("CREATE OR REFRESH PRIVATE MATERIALIZED VIEW", MV, True),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS", MV, False),
        ("CREATE LIVE VIEW", TV, True),
        ("CREATE TEMPORARY LIVE VIEW", TV, True),
        ("CREATE STREAMING LIVE VIEW", TV, True),
        ("CREATE TEMPORARY STREAMING LIVE VIEW", TV, True),
        ("CREATE TEMPORARY VIEW", TV, True),
        ("CREATE OR REPLACE TEMP VIEW", TV, True),
        ("CREATE VIEW IF NOT EXISTS", TV, False),
        ("CREATE VIEW", TV, False),
        ("CREATE/* a */OR\n-- b ;\nREFRESH\r\nSTREAMING\tTABLE", ST, False),
    ],
)
def test_datasets_have_their_kind_in_all_syntax_versions(sql, head, kind, private):
    declared = sql(f"{head} orders AS SELECT 1 AS id")
    assert (declared.dataset.kind, declared.dataset.private) == (kind, private)
    assert declared.flow.implicit
    assert declared.flow.language == "SQL"
    assert declared.flow.target == declared.dataset.name == "orders"
    assert declared.query == "SELECT 1 AS id"


CLAUSES = {
    "COMMENT 'it''s ; -- here'": {"comment": "it's ; -- here"},
    'TBLPROPERTIES ("quality" = "silver", delta.appendOnly = TRUE, \'n\' 1, x.y-z=\'\')': {
        "table_properties": {
            "quality": "silver", "delta.appendOnly": "true", "n": "1", "x.y-z": "",
        },
    },
    "PARTITIONED BY (day, `a b`)": {"partition_cols": ("day", "a b")},
    "LOCATION 's3://bucket/;x'": {"path": "s3://bucket/;x"},
    "USING DELTA": {"format": "delta"},
    "SCHEDULE EVERY 1 HOUR": {},
    "WITH ROW FILTER main.f ON (a, b)": {"row_filter": "ROW FILTER main.f ON (a, b)"},
}  # fmt: skip


def test_clauses_may_be_in_any_order(sql):
    expected = {key: value for part in CLAUSES.values() for key, value in part.items()}
    for number, order in enumerate(itertools.permutations(CLAUSES)):
        if number % 7:  # every seventh of the 5040 orders: each clause is in each position
            continue
        text = "\n-- between\n".join(order)
        dataset = sql(f"CREATE OR REFRESH STREAMING TABLE t {text} AS SELECT 1").dataset
        actual = {key: getattr(dataset, key) for key in expected}
        assert actual == expected, text


@pytest.mark.parametrize(
    ("clause", "field", "value"),
    [
        ("CLUSTER BY AUTO", "cluster_by_auto", True),
        ("CLUSTER BY NONE", "cluster_by", ()),
        ("cluster by (a, b.c)", "cluster_by", ("a", "b.c")),
        ("REFRESH POLICY AUTO", "refresh_policy", "auto"),
        ("REFRESH POLICY INCREMENTAL", "refresh_policy", "incremental"),
        ("REFRESH POLICY INCREMENTAL STRICT", "refresh_policy", "incremental_strict"),
        ("REFRESH POLICY FULL", "refresh_policy", "full"),
        ("DEFAULT COLLATION UTF8_BINARY", "comment", None),
        ("SCHEDULE REFRESH CRON '0 0 * * * ?' AT TIME ZONE 'UTC'", "comment", None),
        ("SCHEDULE CRON '0 0 * * * ?' COMMENT 'x'", "comment", "x"),
        ("SCHEDULE REFRESH EVERY 2 DAYS COMMENT 'x'", "comment", "x"),
        ("TRIGGER ON UPDATE", "comment", None),
        ("TRIGGER ON UPDATE AT MOST EVERY INTERVAL 1 HOUR COMMENT 'x'", "comment", "x"),
        ("TRIGGER ON UPDATE AT MOST EVERY INTERVAL '1' HOUR COMMENT 'x'", "comment", "x"),
        ("TRIGGER ON UPDATE AT MOST EVERY INTERVAL '1 hour' COMMENT 'x'", "comment", "x"),
        ('COMMENT "double"', "comment", "double"),
        ("COMMENT ''", "comment", ""),
        ("TBLPROPERTIES ()", "table_properties", {}),
        ("TBLPROPERTIES ('a' = -1.5)", "table_properties", {"a": "-1.5"}),
        ("TBLPROPERTIES (pipelines.reset.allowed = false)", "table_properties",
         {"pipelines.reset.allowed": "false"}),
        ("TBLPROPERTIES (quality = Gold)", "table_properties", {"quality": "Gold"}),
        ("USING parquet", "format", "parquet"),
    ],
)  # fmt: skip
def test_each_clause_is_parsed_alone(sql, clause, field, value):
    assert getattr(sql(f"CREATE MATERIALIZED VIEW t {clause} AS SELECT 1").dataset, field) == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("LIVE.orders", "orders"),
        ("live.`odd name`", "`odd name`"),
        ("silver.orders", "silver.orders"),
        ("main . silver . orders", "main.silver.orders"),
        ("`a.b`.`c``d`", "`a.b`.`c``d`"),
        ("2020_sales", "2020_sales"),
        ("größe", "größe"),
        ("comment", "comment"),
        ("IDENTIFIER('main.silver.' || 'orders')", "main.silver.orders"),
        ("IDENTIFIER(concat('main', '.silver.', 'orders'))", "main.silver.orders"),
        (
            "IDENTIFIER(concat_ws('.', 'main', lower('SILVER'), 'or' || trim(' ders ')))",
            "main.silver.orders",
        ),
        ("IDENTIFIER(('main.silver.') || concat('orders'))", "main.silver.orders"),
        ("live", "live"),
    ],
)
def test_names_keep_the_backticks_that_they_need(sql, text, name):
    assert sql(f"CREATE OR REFRESH STREAMING TABLE {text} AS SELECT 1").dataset.name == name


# -- columns ------------------------------------------------------------------------------------


def test_rules_keep_their_order_in_a_list_of_constraints(sql):
    dataset = sql(
        """CREATE OR REFRESH STREAMING LIVE TABLE clean (
  CONSTRAINT valid_id EXPECT (id IS NOT NULL AND note <> ');--'), -- kept and counted
  constraint `in range` expect ( (amount > 0) and amount < abs(-10) /* c */ ) on violation drop row,
  CONSTRAINT day EXPECT (day >= "2020-01-01") ON VIOLATION FAIL UPDATE
)
AS SELECT * FROM STREAM(LIVE.raw)"""
    ).dataset
    assert dataset.schema is None
    assert [(rule.name, rule.condition, rule.on_violation) for rule in dataset.expectations] == [
        ("valid_id", "id IS NOT NULL AND note <> ');--'", OnViolation.WARN),
        ("in range", "(amount > 0) and amount < abs(-10)", OnViolation.DROP),
        ("day", 'day >= "2020-01-01"', OnViolation.FAIL),
    ]
    assert [rule.origin.line for rule in dataset.expectations] == [2, 3, 4]


@pytest.mark.parametrize(
    ("clause", "action"),
    [("FAIL", OnViolation.FAIL), ("fail", OnViolation.FAIL), ("DROP", OnViolation.DROP),
     ("WARN", OnViolation.WARN), ("WARN ROW", OnViolation.WARN)],
)  # fmt: skip
def test_action_of_a_rule_can_omit_its_second_word(sql, clause, action):
    text = f"CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (a) ON VIOLATION {clause}, b INT)"
    (rule,) = sql(text).dataset.expectations
    assert rule.on_violation == action


def test_typed_columns_give_a_ddl_schema(sql):
    dataset = sql(
        """CREATE STREAMING TABLE t (
  id BIGINT NOT NULL COMMENT 'a, b)' PRIMARY KEY,
  `the day` DATE GENERATED ALWAYS AS (CAST(ts AS DATE)) COMMENT "d", -- x
  amount DECIMAL(10, 2) NULL,
  n INT DEFAULT 1 NOT NULL CONSTRAINT fk FOREIGN KEY REFERENCES u (a, b) NOT ENFORCED,
  k BIGINT GENERATED BY DEFAULT AS IDENTITY (START WITH 1 INCREMENT BY 1),
  s STRING COLLATE UTF8_BINARY,
  deep ARRAY<STRUCT<a: INT, `b c`: MAP<STRING, STRUCT<d: ARRAY<INT>>>>>,
  i INTERVAL DAY TO SECOND,
  constraint STRING,
  CONSTRAINT ok EXPECT (a < b AND c > d),
  CONSTRAINT pk PRIMARY KEY (id, n) RELY,
  FOREIGN KEY (n) REFERENCES u (n),
  CONSTRAINT positive CHECK (amount > 0)
)"""
    ).dataset
    assert dataset.schema.split(",\n") == [
        "id BIGINT NOT NULL COMMENT 'a, b)'",
        '`the day` DATE GENERATED ALWAYS AS (CAST(ts AS DATE)) COMMENT "d"',
        "amount DECIMAL(10, 2)",
        "n INT DEFAULT 1 NOT NULL",
        "k BIGINT GENERATED BY DEFAULT AS IDENTITY (START WITH 1 INCREMENT BY 1)",
        "s STRING COLLATE UTF8_BINARY",
        "deep ARRAY<STRUCT<a: INT, `b c`: MAP<STRING, STRUCT<d: ARRAY<INT>>>>>",
        "i INTERVAL DAY TO SECOND",
        "constraint STRING",
    ]
    assert [rule.name for rule in dataset.expectations] == ["ok"]


class _Frame:
    """A stand-in for a DataFrame, which has only the names of columns."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def toDF(self, *names: str) -> "_Frame":
        return _Frame(*names)


class _Reader:
    """A reader that returns the same columns for all queries, and records its calls."""

    def __init__(self, *columns: str) -> None:
        self.frame = _Frame(*columns)
        self.reads: list[tuple[object, ...]] = []

    def query(self, text, *, catalog, schema):
        self.reads.append((text, catalog, schema))
        return self.frame

    def read_stream(self, name):
        self.reads.append(("stream", name))
        return self.frame

    def read(self, name):
        self.reads.append(("batch", name))
        return self.frame


def call(function, *columns):
    from penstock._api.reading import reading

    reader = _Reader(*columns)
    with reading(reader):
        return function(), reader.reads


def test_columns_of_the_query_are_renamed_when_listed_names_have_no_types(sql):
    declared = sql(
        "CREATE MATERIALIZED VIEW v (a, `b c`, CONSTRAINT x EXPECT (a > 0))\nAS SELECT 1, 2"
    )
    assert declared.dataset.schema is None
    frame, _ = call(declared.flow.function, "x", "y")
    assert frame.columns == ["a", "b c"]


def test_query_is_run_at_its_line_with_the_current_defaults(sql):
    declared = sql("USE c.s;\nCREATE VIEW v AS\n  SELECT 1;")
    frame, reads = call(declared.flow.function, "x")
    assert frame.columns == ["x"]
    assert reads == [("\n\n  SELECT 1", "c", "s")]


def test_equal_statements_have_distinct_query_functions(sql):
    flows = sql("CREATE VIEW a AS SELECT 1; CREATE VIEW s.`b c` AS SELECT 1").flows
    assert flows[0].function is not flows[1].function
    assert [flow.function.__name__ for flow in flows] == ["a", "s.b c"]


def test_table_without_a_query_declares_no_flow(sql):
    declared = sql("CREATE OR REFRESH STREAMING TABLE target COMMENT 'fed by flows';")
    assert declared.dataset.kind is ST
    assert declared.flows == ()


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("CREATE OR REFRESH\nSTREAMNG TABLE t", 2, "found `STREAMNG`", "`STREAMING`"),
        ("CREATE LIVE TABLE t\nCOMENT 'x' AS SELECT 1", 2,
         "expected `AS` or `FLOW` or a clause of a table, but found `COMENT`", "`COMMENT`"),
        ("CREATE VIEW v TABLEPROPERTIES ('a'='b') AS SELECT 1", 1, "found `TABLEPROPERTIES`",
         "`TBLPROPERTIES`"),
        ("CREATE LIVE TABLE t\nCLUSTER BYE (a) AS SELECT 1", 2, "found `BYE`", None),
        ("CREATE OR STREAMING TABLE t", 1, "`REFRESH` after `OR`", None),
        ("CREATE", 1, "but the statement ends", None),
        ("CREATE VIEW", 1, "expected the name of a view, but the statement ends", None),
        ("CREATE VIEW v", 1, "expected `AS` and a query, but the statement ends", None),
        ("CREATE VIEW v AS", 1, "expected a query after `AS`, but the statement ends", None),
        ("CREATE VIEW v AS SELCT 1", 1, "a query after `AS`, but found `SELCT`", "`SELECT`"),
        ("CREATE VIEW v AS\nSELECT (1,\n [2)", 3, "`[` here is never closed", None),
        ("CREATE VIEW v AS\nSELECT 1)", 2, "nothing opens the `)`", None),
        ("CREATE VIEW v AS SELECT ((1)", 1, "never closed", None),
        ("CREATE MATERIALIZED VIEW v FLOW INSERT BY NAME SELECT 1", 1, "`AS` and a query", None),
        ("CREATE STREAMING MATERIALIZED VIEW v AS SELECT 1", 1, "not both", None),
        ("CREATE STREAMING VIEW v AS SELECT 1", 1, "`TABLE` after `STREAMING`", None),
        ("CREATE MATERIALIZED TABLE v AS SELECT 1", 1, "`MATERIALIZED VIEW`", None),
        ("CREATE VIEW v (a INT) AS SELECT 1", 1, "no types", "casts"),
        ("CREATE VIEW v PARTITIONED BY (a) AS SELECT 1", 1, "not stored", "MATERIALIZED"),
        ("CREATE STREAMING TABLE t (a INT, b) AS SELECT 1", 1, "column 'b' has no type", None),
        ("CREATE STREAMING TABLE t (a, b)", 1, "column 'a' has no type", None),
        ("CREATE STREAMING TABLE t (a NOT NULL COMMENT 'x', b) AS SELECT 1", 1,
         "column 'a' needs a type for `NOT NULL`", None),
        ("CREATE STREAMING TABLE t (a, b GENERATED ALWAYS AS IDENTITY) AS SELECT 1", 1,
         "column 'b' needs a type for `GENERATED ALWAYS AS IDENTITY`", None),
        ("CREATE MATERIALIZED VIEW t (a DEFAULT 1) AS SELECT 1", 1, "type for `DEFAULT 1`", None),
        ("CREATE VIEW v (a COLLATE UTF8_LCASE) AS SELECT 1", 1,
         "type for `COLLATE UTF8_LCASE`", None),
        ("CREATE STREAMING TABLE t (a INT,\n A INT)", 2, "column 'A' is listed twice", None),
        ("CREATE STREAMING TABLE t ()", 1, "expected a column or `CONSTRAINT`", None),
        ("CREATE STREAMING TABLE t (a INT,)", 1, "expected a column or `CONSTRAINT`", None),
        ("CREATE STREAMING TABLE t (a INT b INT)", 1, "expected `,` or `)`", None),
        ("CREATE STREAMING TABLE t (a INT COMMNT 'x')", 1, "expected `,` or `)`", "`COMMENT`"),
        ("CREATE STREAMING TABLE t (a ARRAY<INT)", 1, "never closed", None),
        ("CREATE STREAMING TABLE t (a INT", 1, "the statement ends", None),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECTS (a))", 1, "constraint 'x'", "`EXPECT`"),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT a > 1)", 1, "expected `(`", None),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (a) ON VIOLATION SKIP)", 1,
         "`DROP ROW` or `FAIL UPDATE`", None),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (a) ON VIOLATION DROP UPDATE)", 1,
         "expected `,` or `)`", None),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (a) ON VIOLATON DROP ROW)", 1,
         "`VIOLATION`", "`VIOLATION`"),
        ("CREATE STREAMING TABLE t (CONSTRAIT x EXPECT (a))", 1, "`CONSTRAINT name`", None),
        ("CREATE STREAMING TABLE t COMMENT 'it's' AS SELECT 'a", 1, "found `s`",
         "a quote inside of a string"),
        ("CREATE STREAMING TABLE t\nCOMMENT 'it's' AS\nSELECT 'a'", 2,
         "ends before `s`, and one on line 3 is not closed", "inside of a string, write `''`"),
        ("CREATE STREAMING TABLE t COMMENT x AS SELECT 1", 1, "a quoted string", None),
        ("CREATE STREAMING TABLE t COMMENT 'a' COMMENT 'b'", 1, "`COMMENT` is given twice", None),
        ("CREATE STREAMING TABLE t SCHEDULE EVERY 1 DAY SCHEDULE EVERY 2 DAYS", 1, "twice", None),
        ("CREATE STREAMING TABLE t SCHEDULE DAILY", 1, "`EVERY` or `CRON`", None),
        ("CREATE STREAMING TABLE t TBLPROPERTIES ('a'='b' 'c'='d')", 1, "`,` or `)`", None),
        ("CREATE STREAMING TABLE t TBLPROPERTIES ('a'=)", 1, "the property `a`", None),
        ("CREATE STREAMING TABLE t TBLPROPERTIES ('a'='1', 'a'='2')", 1, "given twice", None),
        ("CREATE STREAMING TABLE t PARTITIONED BY (years(ts))", 1, "not expressions", None),
        ("CREATE STREAMING TABLE t PARTITIONED BY (a, A)", 1, "column 'A' more than once", None),
        ("CREATE STREAMING TABLE t PARTITIONED BY (a.b)", 1, "without a table or a field", None),
        ("CREATE STREAMING TABLE t LOCATION ' '", 1, "is blank", None),
        ("CREATE STREAMING TABLE t REFRESH POLICY OFTEN", 1, "`INCREMENTAL STRICT`", None),
        ("CREATE STREAMING TABLE t REFRESH POLICY FULL", 1, "no `REFRESH POLICY`", "materialized"),
        ("CREATE STREAMING TABLE my-table AS SELECT 1", 1, "needs backticks", "`my-name`"),
        ("CREATE STREAMING TABLE a.b.c.d AS SELECT 1", 1, "at most three parts", None),
        ('CREATE STREAMING TABLE "t" AS SELECT 1', 1, "found a string", None),
        ("CREATE STREAMING TABLE `` AS SELECT 1", 1, "expected the name", None),
        ("CREATE STREAMING TABLE a. AS SELECT 1", 1, "found `SELECT`", None),
        ("CREATE STREAMING TABLE IDENTIFIER(md5('X')) AS SELECT 1", 1, "only strings", None),
        ("CREATE STREAMING TABLE IDENTIFIER(lower('X', 'Y')) AS SELECT 1", 1, "only strings", None),
        ("CREATE STREAMING TABLE IDENTIFIER(concat('X', y)) AS SELECT 1", 1, "only strings", None),
        ("CREATE STREAMING TABLE IDENTIFIER('') AS SELECT 1", 1, "only strings", None),
        ("CRATE VIEW v AS SELECT 1", 1, "expected a statement", "`CREATE`"),
        ("CREATE OR REFRESH FLOW f AS INSERT INTO t SELECT 1", 1, "`CREATE FLOW`", None),
    ],
)  # fmt: skip
def test_error_has_position_problem_and_alternatives(sql, text, line, message, hint):
    error = sql(text).error
    assert error.condition == "SQL_SYNTAX"
    assert str(error.origin) == f"orders.sql:{line}"
    assert message in error.message
    assert (hint or "") in (error.hint or "")
    assert hint is None or error.hint is not None


@pytest.mark.parametrize(
    ("text", "condition", "named"),
    [
        ("CREATE TABLE t AS SELECT 1", "SQL_STATEMENT_NOT_SUPPORTED", "`CREATE TABLE t`"),
        ("CREATE TABLE t (a INT)", "SQL_STATEMENT_NOT_SUPPORTED", "`CREATE TABLE t`"),
        ("CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1", "SQL_STATEMENT_NOT_SUPPORTED",
         "`CREATE FUNCTION`"),
        ("CREATE WIDGET TEXT x DEFAULT 'y'", "SQL_STATEMENT_NOT_SUPPORTED", "`CREATE WIDGET`"),
        ("CREATE SCHEMA s", "SQL_STATEMENT_NOT_SUPPORTED", "`CREATE SCHEMA`"),
        ("CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1", "SQL_STATEMENT_NOT_SUPPORTED", "GLOBAL"),
        ("OPTIMIZE t ZORDER BY (a)", "SQL_STATEMENT_NOT_SUPPORTED", "`OPTIMIZE`"),
        ("ALTER TABLE t OWNER TO me", "SQL_STATEMENT_NOT_SUPPORTED", "`ALTER TABLE`"),
        ("comment on table t is 'x'", "SQL_STATEMENT_NOT_SUPPORTED", "`COMMENT ON`"),
        ("INSERT INTO t SELECT 1", "SQL_STATEMENT_NOT_SUPPORTED", "`INSERT INTO`"),
        ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
         "SQL_STATEMENT_NOT_SUPPORTED", "`MERGE INTO`"),
        ("DROP TABLE t", "SQL_STATEMENT_NOT_SUPPORTED", "`DROP TABLE`"),
        ("DECLARE x INT", "SQL_STATEMENT_NOT_SUPPORTED", "`DECLARE`"),
        ("BEGIN SELECT 1; END;", "SQL_STATEMENT_NOT_SUPPORTED", "`BEGIN`"),
        ("GRANT SELECT ON t TO me", "SQL_STATEMENT_NOT_SUPPORTED", "`GRANT`"),
        ("CREATE STREAMING TABLE t (a INT MASK f USING COLUMNS (b))", "COLUMN_MASK_NOT_SUPPORTED",
         "column 'a'"),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT ())", "INVALID_EXPECTATION", "'x'"),
        ("CREATE STREAMING TABLE t (CONSTRAINT x EXPECT (a), CONSTRAINT x EXPECT (b))",
         "DUPLICATE_EXPECTATION", "'x'"),
        ("CREATE STREAMING TABLE t DEFAULT COLLATION UNICODE_CI", "FEATURE_NOT_AVAILABLE",
         "COLLATION"),
    ],
)  # fmt: skip
def test_unsupported_clauses_are_refused_by_name(sql, text, condition, named):
    error = sql(text).error
    assert error.condition == condition
    assert named in error.message
    assert error.origin.line == 1


def test_known_secret_is_not_shown_in_an_error(sql):
    from penstock._model.redaction import forget_secrets, remember_secret

    remember_secret("hunter2hunter2")
    try:
        error = sql("CREATE VIEW v ${key} AS SELECT 1", variables={"key": "hunter2hunter2"}).error
        assert "hunter2" not in str(error)
    finally:
        forget_secrets()


@pytest.mark.parametrize(
    "text",
    [
        "CREATE LIVE TABLE t COMMENT 'c' SELECT 1 AS a",
        "CREATE OR REFRESH STREAMING TABLE t (CONSTRAINT r EXPECT (a > 0)) SELECT 1 AS a",
        "CREATE TEMPORARY VIEW t SELECT 1 AS a",
    ],
)
def test_as_is_optional_before_select(sql, text):
    assert sql(text).query == "SELECT 1 AS a"
