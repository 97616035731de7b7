"""Rules about the text of sources and settings, and comments that accept findings."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._lint.project import LintReport, lint_project
from penstock._project.spec import load_settings
from penstock.errors import SpecError

Lint = Callable[..., LintReport]


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """Lints the source code of one file."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *, name: str = "orders.py", spec: str = "") -> LintReport:
        (tmp_path / name).write_text(textwrap.dedent(source), encoding="utf-8")
        (tmp_path / "pipeline.yaml").write_text(
            f"name: p\nlibraries:\n  - file: {{path: {name}}}\n{spec}", encoding="utf-8"
        )
        return lint_project(load_settings(tmp_path, environ={}), text_only=True)

    return run


def rules_and_lines(report: LintReport) -> list[tuple[str, int]]:
    return [(finding.rule.id, finding.origin.line) for finding in report.findings]


def lines_of(report: LintReport, rule: str) -> list[int]:
    return [finding.origin.line for finding in report.findings if finding.rule.id == rule]


@pytest.mark.parametrize(
    "line",
    [
        'TOKEN = "dapi0123456789abcdef0123456789abcdef"',
        'KEY = "AKIAABCDEFGHIJKLMNOP"',
        'EH = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKey=abcdefgh12"',
        'URL = "postgres://orders:pw@db:5432/orders"',
        'URL = "jdbc:postgresql://db/orders?user=a&password=pw"',
        'reader.option("password", "pw")',
        'reader.options(**{"kafka.ssl.keystore.password": "pw"})',
        'connect(api_key="0123")',
        'reader.option("awsSecretKey", "0123")',
        'spark.conf.set("fs.azure.account.key.x.dfs.core.windows.net", "abc")',
        "reader.option(\"kafka.sasl.jaas.config\", 'org.apache.PlainLoginModule required '\n"
        '    \'username="u" password="pw";\')',
        'SAS = "https://x.blob.core.windows.net/c?sv=1&sig=abcdefghijklmnopqrstuvwx%3D"',
    ],
)
def test_secret_is_reported_without_its_value(lint: Lint, line: str):
    report = lint(f"import dlt\n{line}\n")
    assert [rule for rule, _ in rules_and_lines(report)] == ["PSL601"]
    shown = " ".join(finding.message for finding in report.findings)
    assert not any(value in shown for value in ("pw", "abc", "0123", "AKIA", "dapi"))


@pytest.mark.parametrize(
    "line",
    [
        'PASSWORD = "${secret:kafka/password}"',
        'reader.option("password", dbutils.secrets.get("kafka", "password"))',
        'password = spark.conf.get("db.password")',
        'reader.option("kafka.sasl.jaas.config", f\'LoginModule required password="{pw}";\')',
        'PASSWORD = ""',
        'PASSWORD = "<your password>"',
        'PASSWORD = "YOUR_PASSWORD"',
        'EH = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKey=<key>"',
        'STORE = "AccountName=a;AccountKey=<your-account-key>"',
        'STORE = "AccountName=a;AccountKey=YOUR_KEY"',
        'URL = "postgresql://<user>:<password>@h"',
        'COLUMNS = {"user": "STRING", "password": "STRING"}',
        'schema = "password STRING, token STRING"',
        'reader.option("secretScope", "kafka")',
        'URL = "https://example.org:8080/path@2"',
    ],
)
def test_secret_reference_is_not_reported(lint: Lint, line: str):
    assert rules_and_lines(lint(f"import dlt\n{line}\n")) == []


def test_secret_in_the_settings_is_reported_with_its_line(lint: Lint):
    report = lint(
        "import dlt\n",
        spec="configuration:\n  db.password_file: /x\n  db.password: hunter2\n"
        "  a.password: ${secret:a/b}\n",
    )
    (finding,) = report.findings
    assert (finding.rule.id, finding.origin.file, finding.origin.line) == (
        "PSL601",
        "pipeline.yaml",
        6,
    )
    assert "hunter2" not in finding.message


def test_secrets_of_exports_and_of_the_metastore_are_reported(lint: Lint):
    report = lint(
        "import dlt\n",
        spec="catalog:\n  type: hive\n  options:\n"
        "    javax.jdo.option.ConnectionPassword: hunter2\n"
        "lineage:\n  transport:\n    type: http\n    url: http://localhost\n"
        "    auth: {type: api_key, apiKey: hunter2}\n"
        "opentelemetry:\n  headers:\n    api-key: hunter2\n    x-api-key: ${secret:a/b}\n",
    )
    assert sorted(finding.message for finding in report.findings) == [
        "the value of api-key is a secret",
        "the value of apiKey is a secret",
        "the value of javax.jdo.option.ConnectionPassword is a secret",
    ]


def test_secrets_of_alerts_are_reported(lint: Lint):
    report = lint(
        "import dlt\n",
        spec="alerts:\n  to:\n  - webhook: https://hooks.slack.com/services/T0/B0/abc\n"
        "  - email:\n      to: [a@example.org]\n      password: hunter2\n"
        "  - email:\n      to: [a@example.org]\n      password: ${secret:mail}\n",
    )
    assert [(finding.message, finding.origin.line) for finding in report.findings] == [
        ("the value of webhook is a Slack webhook", 6),
        ("the value of password is a secret", 9),
    ]


def test_actions_in_query_functions_are_reported_and_transformations_are_not(lint: Lint):
    report = lint(
        """\
        import dlt as d
        from pyspark.sql import functions as F

        @d.table
        def counted():
            df = spark.read.table("orders")
            groups = df.groupBy("status")
            tables = spark.conf.get("tables").split(",")
            if tables.count("x") or spark.catalog.listTables().count("x"):
                groups = df.groupBy("customer")
            n = df.count()
            first = df.orderBy("id").first()
            names = {"a": 1}.get("a")
            rows = [len(x) for x in df.collect()]
            return groups.count().withColumn("n", F.lit(n)).select(F.first("n"), F.count("n"))

        @d.table
        def plain():
            return spark.read.table("orders").groupBy("a").pivot("b").count()

        def not_a_query_function():
            return spark.read.table("orders").count()
        """
    )
    assert rules_and_lines(report) == [("PSL307", 11), ("PSL307", 12), ("PSL307", 14)]


def test_count_distinct_is_reported_on_streams_only(lint: Lint):
    report = lint(
        """\
        import penstock as dp
        from pyspark.sql import functions as F

        @dp.table
        def joined():
            orders = dp.read_stream("orders")
            users = spark.read.table("users").groupBy("id").agg(F.countDistinct("name"))
            return orders.join(users, "id").select("id")

        @dp.table
        def counted():
            orders = dp.read_stream("orders")
            by_day = orders.groupBy("day")
            return by_day.agg(F.countDistinct("name"))
        """
    )
    assert rules_and_lines(report) == [("PSL107", 14)]


def test_query_that_is_started_through_a_variable_is_reported(lint: Lint):
    report = lint("import dlt\nw = df.writeStream.format('console')\nw.start()\nother.start()\n")
    assert rules_and_lines(report) == [("PSL304", 3)]


def test_batch_functions_are_checked_when_decorated_or_passed_to_foreach_batch(lint: Lint):
    report = lint(
        """\
        import penstock as dp

        def logged_only(df, batch_id):
            print(f"batch {batch_id}")
            df.write.mode("append").saveAsTable("copy")

        def merged(df, batch_id):
            target.merge(df, "t.id = s.id").whenNotMatchedInsertAll().execute()

        stream.writeStream.foreachBatch(logged_only)
        stream.writeStream.foreachBatch(merged)

        def merged_and_appended(df, batch_id):
            target.merge(df, "t.id = s.id").whenNotMatchedInsertAll().execute()
            log = spark.createDataFrame([{"batch": batch_id, "rows": 1}])
            df.withColumn("batch", F.lit(batch_id)).write.mode("append").save("/log")

        stream.writeStream.foreachBatch(merged_and_appended)

        @dp.foreach_batch_sink(name="twice")
        def twice(rows, number):
            good = rows.where("a > 0")
            good.write.format("delta").option("txnVersion", number).save("/a")
            rows.write.format("delta").option("txnVersion", number).save("/b")

        @dp.foreach_batch_sink
        def only_looks(rows, number):
            print(rows.count())

        @dp.foreach_batch_sink
        def shown(rows, number):
            text = f"batch {number}"
            print(text)
            rows.write.parquet("/a")
            rows.write.json("/b")

        @dp.foreach_batch_sink
        def by_key(rows, number):
            rows.write.format("org.apache.spark.sql.cassandra").mode("append").save()

        def copied(rows, number, path):
            rows.write.mode("append").save(path)

        stream.writeStream.foreachBatch(partial(copied, path="/c"))
        stream.writeStream.foreachBatch(lambda b, i: b.write.mode("append").saveAsTable("d"))
        stream.writeStream.foreachBatch(lambda b, i: b.write.mode("append").save(f"/d/{i}"))
        """
    )
    assert rules_and_lines(report) == [
        *[("PSL305", 3), ("PSL305", 13), ("PSL306", 16), ("PSL306", 24)],
        *[("PSL305", 31), ("PSL306", 35), ("PSL305", 41), ("PSL305", 45)],
    ]


def test_shared_checkpoint_of_two_queries_is_reported(lint: Lint):
    report = lint(
        """\
        import dlt
        a = df.writeStream.option("checkpointLocation", BASE + "/a")
        b = df.writeStream.options(checkpointLocation=BASE + "/a")
        c = df.writeStream.option("checkpointLocation", BASE + "/c")
        def d(checkpoint): return df.writeStream.option("checkpointLocation", checkpoint)
        def e(checkpoint): return df.writeStream.option("checkpointLocation", checkpoint)
        """
    )
    assert lines_of(report, "PSL301") == [2, 3]
    assert lines_of(report, "PSL302") == [2, 3, 4, 5, 6]


def test_long_call_chain_is_parsed(lint: Lint):
    chain = ".withColumn('a', f(1))" * 600
    report = lint(f"df = spark.read.table('x'){chain}\npassword = 'hunter22'\n")
    assert rules_and_lines(report) == [("PSL601", 2)]


def test_sql_findings_name_the_line_of_their_statement(lint: Lint):
    report = lint(
        """\
        -- COUNT(DISTINCT a) in a comment; STREAM(x)
        CREATE MATERIALIZED VIEW ok AS SELECT count(DISTINCT a) FROM t;

        CREATE STREAMING TABLE bad AS
        SELECT status,
               count(DISTINCT customer) FROM STREAM(orders) GROUP BY status;
        CREATE STREAMING TABLE k AS SELECT * FROM STREAM read_kafka(
          subscribe => 'a;b',
          `kafka.ssl.key.password` => 'pw'
        );
        SET spark.sql.streaming.checkpointLocation = /here;
        CREATE MATERIALIZED VIEW streams AS SELECT stream AS s, count(DISTINCT u) FROM t;
        CREATE TEMPORARY VIEW v AS SELECT coalesce(access_token, 'missing'),
          regexp_replace(password, '.', '*') FROM t;
        CREATE TEMPORARY VIEW w AS SELECT f(a, map('user', 'u(1)', 'password', 'pw')) FROM t;
        CREATE STREAMING TABLE worse AS SELECT count(DISTINCT a) FROM STREAM orders;
        """,
        name="orders.sql",
    )
    assert rules_and_lines(report) == [
        *[("PSL107", 6), ("PSL601", 9), ("PSL302", 11), ("PSL601", 15), ("PSL107", 16)]
    ]


def test_ignore_comment_covers_a_sql_statement_with_a_semicolon_in_a_string(lint: Lint):
    report = lint(
        """\
        -- penstock: ignore[PSL601] of the test system
        CREATE STREAMING TABLE k AS SELECT * FROM STREAM read_kafka(
          subscribe => "a;b",
          `kafka.ssl.key.password` => 'pw'
        );
        """,
        name="orders.sql",
    )
    assert rules_and_lines(report) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("df.trigger(once=True)  # penstock: ignore[PSL303] a test", []),
        ("# penstock: ignore[PSL303]: a test\ndf.trigger(once=True)", []),
        ("# penstock: ignore-file[PSL303]\n\n\ndf.trigger(once=True)", []),
        ("df.trigger(once=True)  # penstock: ignore[PSL302, PSL303]", [("PSL901", 2)]),
        (
            "# penstock: ignore[PSL303]\n\nx = 1\ndf.trigger(once=True)",
            [("PSL901", 2), ("PSL303", 5)],
        ),
        ("df.trigger(once=True)  # penstock: ignore[PSL999]", [("PSL303", 2), ("PSL901", 2)]),
        ('x = "# penstock: ignore[PSL303]"; df.trigger(once=True)', [("PSL303", 2)]),
        # These rules do not run here, so it is unknown whether the comments are unused.
        ("x = 1  # penstock: ignore[PSL101]", []),
        ("x = 1  # penstock: ignore[PSL203, PSL310]", []),
    ],
)
def test_ignore_comment_accepts_findings_of_its_line(
    lint: Lint, text: str, expected: list[tuple[str, int]]
):
    assert rules_and_lines(lint(f"import dlt\n{text}\n")) == expected


def test_ignore_comment_covers_a_decorator_of_several_lines(lint: Lint):
    report = lint(
        """\
        import penstock as dp

        # penstock: ignore[PSL305] the target has a key
        @dp.foreach_batch_sink(
            name="sink",
        )
        def write(df, batch_id):
            df.write.jdbc(url, "t")
        """
    )
    assert rules_and_lines(report) == []
    assert [finding.rule.id for finding in report.accepted] == ["PSL305"]


def test_ignore_comment_above_a_function_covers_its_body(lint: Lint):
    report = lint(
        """\
        import penstock as dp

        # penstock: ignore[PSL307] a small table
        @dp.materialized_view
        def counted():
            rows = spark.read.table("orders")
            return spark.createDataFrame([(rows.count(),)], "n LONG")

        # penstock: ignore[PSL306, PSL311] a few rows
        @dp.foreach_batch_sink
        def write(df, batch_id):
            rows = df.persist()
            rows.write.mode("overwrite").save("/a")

        @dp.materialized_view
        def counted_again():
            return spark.createDataFrame([(spark.read.table("orders").count(),)], "n LONG")
        """
    )
    assert rules_and_lines(report) == [("PSL901", 9), ("PSL307", 17)]
    assert [finding.rule.id for finding in report.accepted] == ["PSL307", "PSL311"]


def test_lint_ignore_in_the_settings_accepts_a_rule_in_all_files(lint: Lint):
    code = "import dlt\ndf.trigger(once=True)\n"
    report = lint(code, spec="lint:\n  ignore: [psl303]\n")
    assert (report.findings, [finding.rule.id for finding in report.accepted]) == ((), ["PSL303"])
    with pytest.raises(SpecError) as error:
        lint(code, spec="lint:\n  ignore: [PSL3]\n")
    assert error.value.condition == "LINT_RULE_UNKNOWN"
    with pytest.raises(SpecError, match="did you mean `ignore`"):
        lint(code, spec="lint:\n  ignored: [PSL303]\n")


def test_findings_have_the_line_in_the_notebook_file(lint: Lint):
    report = lint(
        """\
        # Databricks notebook source
        import dlt

        # COMMAND ----------

        x = 1
        df.trigger(once=True)
        # COMMAND ----------
        # MAGIC %sql
        # MAGIC CREATE STREAMING TABLE a AS
        # MAGIC SELECT count(DISTINCT b) FROM STREAM(c)
        """
    )
    assert rules_and_lines(report) == [("PSL303", 7), ("PSL107", 11)]
