"""Each rule reports the bad example on its page, but not the good example."""

import contextlib
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock._lint.catalogue import RULES
from penstock._lint.project import LintReport, lint_project
from penstock._project.spec import load_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lint.md"
PRELUDE = "import penstock as dp\nfrom pyspark.sql import functions as F\n\n\n"
UPSTREAM = """
@dp.table
def orders():
    columns = "order_id STRING, customer STRING, status STRING, amount DOUBLE, ordered_at TIMESTAMP"
    return spark.readStream.schema(columns).json("/data/orders")


@dp.table
def payments():
    return spark.readStream.schema("order_id STRING, paid_at TIMESTAMP").json("/data/payments")
"""
EXAMPLE = re.compile(r"(?ms)^<!-- not run: (PSL\d+) finds (it|nothing) -->\n```python\n(.*?)^```$")


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LintReport:
    """Analyse all examples as one project, with a file for each example."""
    project = tmp_path_factory.mktemp("lint")
    (project / "upstream.py").write_text(PRELUDE + UPSTREAM, encoding="utf-8")
    for rule, kind, code in EXAMPLE.findall(PAGE.read_text(encoding="utf-8")):
        if rule.startswith("PSL7"):  # jobs: see tests/unit/_lint/test_lint_jobs.py
            continue
        (project / f"{rule}_{kind}.py").write_text(PRELUDE + code, encoding="utf-8")
    (project / "more.sql").write_text(
        """\
        CREATE STREAMING TABLE sql_hours AS
        SELECT window(ordered_at, '1 hour') AS w, count(*) AS n
        FROM STREAM(orders) GROUP BY window(ordered_at, '1 hour');

        -- penstock: ignore[PSL101] three of them, for ever
        CREATE STREAMING TABLE sql_accepted AS
        SELECT status, count(*) AS n FROM STREAM(orders) GROUP BY status;
        """,
        encoding="utf-8",
    )
    (project / "more.py").write_text(
        PRELUDE
        + """
@dp.temporary_view
def orders_of_today():
    return dp.read_stream("orders").withWatermark("ordered_at", "1 hour")


# penstock: ignore[PSL103] a few
@dp.table
def known():
    return dp.read_stream("orders_of_today").dropDuplicates(["status"])


@dp.table
def outer():
    left = dp.read_stream("orders").withWatermark("ordered_at", "1 hour").alias("a")
    right = dp.read_stream("orders").withWatermark("ordered_at", "1 hour").alias("b")
    bound = "a.order_id = b.order_id AND b.ordered_at >= a.ordered_at"
    return left.join(right, F.expr(bound)).select("a.order_id")


@dp.table
def by_time():
    return dp.read_stream("orders_of_today").groupBy("ordered_at").count()


@dp.table
def all_distinct():
    return dp.read_stream("orders").distinct()


@dp.table
@dp.expect("known_status", F.col("status").isin("new", "paid"))
@dp.expect("not_bad", "NOT (status <=> 'bad')")
@dp.expect("always", "1 = 1")
@dp.expect("defaulted", "coalesce(amount, 0) >= 0")
@dp.expect("two", "amount > 0 AND customer IS NOT NULL")
@dp.expect("a_number", "CAST(order_id AS INT) IS NOT NULL")
@dp.expect("a_time", "to_timestamp(customer, 'yyyy') IS NOT NULL")
@dp.expect("an_entry", "map('k', status)['k'] IS NULL OR true AND status > 'a'")
@dp.expect("a_field", "named_struct('id', order_id).id IS NOT NULL")
def checked():
    return dp.read_stream("orders")


@dp.table
def all_orders():
    return dp.read_stream("orders").groupBy().count()


@dp.table
def strictly_parsed():
    order = F.from_json("status", "id STRING", {"mode": "FailFast"}).alias("order")
    return dp.read_stream("orders").select(order)


@dp.table
def loaded():
    files = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    return files.schema("id STRING").load("landing")
""",
        encoding="utf-8",
    )
    try:
        with contextlib.chdir(project):
            return lint_project(load_settings(project, environ={}))
    finally:
        # One of the examples sets it in the session, which other tests use as well.
        spark.conf.unset("spark.sql.streaming.schemaInference")


def of_file(report: LintReport, name: str) -> list[tuple[str, int, str]]:
    return [
        (finding.rule.id, finding.origin.line, finding.message)
        for finding in report.findings
        if finding.origin.file == name
    ]


def test_every_rule_has_a_bad_and_a_good_example():
    examples = {(rule, kind) for rule, kind, _ in EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))}
    assert examples == {(rule, kind) for rule in RULES for kind in ("it", "nothing")}


def test_examples_are_valid_pipelines(report: LintReport):
    # Spark refuses exact distinct counts as well, as their rule reports.
    assert report.refused == ()
    assert set(report.unsure) == {"customers_per_hour"}


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.startswith("PSL7")])
def test_a_rule_reports_its_bad_example_and_not_its_good_one(report: LintReport, rule: str):
    bad = [rule_id for rule_id, _, _ in of_file(report, f"{rule}_it.py")]
    good = [rule_id for rule_id, _, _ in of_file(report, f"{rule}_nothing.py")]
    assert rule in bad
    assert rule not in good


def test_plan_rules_apply_to_views_and_sql(report: LintReport):
    assert of_file(report, "more.sql")[0][:2] == ("PSL101", 1)
    accepted = {(finding.rule.id, finding.origin.file) for finding in report.accepted}
    assert accepted >= {
        ("PSL101", "more.sql"),
        ("PSL103", "more.py"),
        ("PSL303", "PSL901_nothing.py"),
    }
    joins = [message for rule, _, message in of_file(report, "more.py") if rule == "PSL104"]
    assert len(joins) == 1  # one side of the bound is open
    assert not any("by_time" in message for _, _, message in of_file(report, "more.py"))
    # One group, the watermark of an inlined view, a failing parser, and Auto Loader.
    more = {rule for rule, _, _ in of_file(report, "more.py")}
    assert not more & {"PSL101", "PSL108", "PSL506"}


def test_null_values_are_traced_through_conditions(report: LintReport):
    rules = {rule: message for rule, _, message in of_file(report, "more.py") if rule > "PSL5"}
    assert rules["PSL503"] == "'always' is true for every row"
    assert rules["PSL502"] == "a row passes 'not_bad' when status is NULL"
    notes = [message for rule, _, message in of_file(report, "more.py") if rule == "PSL501"]
    assert notes == [
        "a row violates 'known_status' when status is NULL",
        "a row violates 'two' when amount is NULL",
    ]
