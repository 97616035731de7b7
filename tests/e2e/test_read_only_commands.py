"""Every read-only command, as text and as JSON, on one finished project.

The project has a view, a materialized view, an auto CDC table, a table with state, a sink, a
quarantine and a flow that failed.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import penstock

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SOURCE = """\
import penstock as dp
from pyspark.sql import functions as F


@dp.table
@dp.expect_or_drop("positive", "amount > 0")
def orders():
    return spark.readStream.schema("id BIGINT, name STRING, amount INT").json("in")


@dp.temporary_view
def changes():
    return dp.read_stream("orders")


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers", source="changes", keys=["id"], sequence_by="amount", stored_as_scd_type=2
)


@dp.table(output_mode="update", spark_conf={"penstock.growingState": "allow"})
def totals():
    return dp.read_stream("orders").groupBy("name").agg(F.sum("amount").alias("total"))


@dp.materialized_view
def revenue():
    return dp.read("orders").agg(F.sum("amount").alias("revenue"))


dp.create_sink("exported", "delta", {"path": "exported"})


@dp.append_flow(target="exported")
def export():
    return dp.read_stream("orders")


@dp.table
@dp.expect_or_fail("small", "amount < 100")
def small_orders():
    return dp.read_stream("orders")
"""
ROWS = [(1, "ada", 5), (1, "ada", 7), (2, "bob", 120), (3, "eve", -1)]


class Case(NamedTuple):
    """A command, strings of its text output, and a value of its JSON output with its path."""

    arguments: str
    text: tuple[str, ...]
    pick: Callable[[Any], Any]
    value: Any
    code: int = 0
    lines: bool = False


def flow(body: dict[str, Any], name: str) -> dict[str, Any]:
    (chosen,) = [each for each in body["flows"] if each["flow"] == name]
    return chosen


CASES = [
    Case(
        "status",
        ("pipeline shop: FAILED", "revenue", "customers", "export", "[EXPECTATION_VIOLATED]"),
        lambda body: {each["flow"]: each["state"] for each in body["flows"]},
        {
            "orders": "COMPLETED",
            "customers": "COMPLETED",
            "totals": "COMPLETED",
            "revenue": "COMPLETED",
            "export": "COMPLETED",
            "small_orders": "FAILED",
        },
        code=1,
    ),
    Case(
        "status --flow orders",
        (
            "flow orders into spark_catalog.default.orders: COMPLETED",
            "1 quarantined",
            "rule positive: 3 passed",
        ),
        lambda body: (flow(body, "orders")["quarantined"], flow(body, "orders")["rows"]),
        (1, 3),
        code=1,
    ),
    Case(
        "status --flow revenue",
        ("flow revenue into spark_catalog.default.revenue: COMPLETED",),
        lambda body: [each["flow"] for each in body["flows"]],
        ["revenue"],
        code=1,
    ),
    Case(
        "history",
        ("FAILED", "started"),
        lambda body: [each["state"] for each in body],
        ["FAILED"],
    ),
    Case(
        "quality",
        ("orders", "positive"),
        lambda rows: [(row["flow"], row["passed"], row["failed"]) for row in rows],
        [("orders", 3, 1)],
        lines=True,
    ),
    Case(
        "events --level ERROR",
        ("ExpectationFailedError", "small_orders"),
        lambda rows: {row["level"] for row in rows},
        {"ERROR"},
        lines=True,
    ),
    Case(
        "graph",
        ("orders", "customers", "exported"),
        lambda body: "exported" in json.dumps(body),
        True,
    ),
    Case(
        "graph --update latest",
        ("orders", "customers", "exported"),
        lambda body: "FAILED" in json.dumps(body),
        True,
    ),
    Case(
        "explain orders",
        ("positive", "amount > 0"),
        lambda body: (body["kind"], [rule["name"] for rule in body["rules"]]),
        ("streaming table", ["positive"]),
    ),
    Case(
        "explain exported",
        ("exported", "export"),
        lambda body: (body["name"], body["kind"]),
        ("exported", "sink"),
    ),
    Case(
        "preview revenue", ("132", "1 of 1 row of revenue"), lambda body: body, [{"revenue": "132"}]
    ),
    Case(
        "preview customers -n 1",
        ("1 of 3 rows of customers", "__END_AT"),
        lambda body: len(body),
        1,
    ),
    Case(
        "quarantine list",
        ("orders", "positive"),
        lambda body: body,
        [{"table": "orders", "rows": 1, "by_rule": {"positive": 1}}],
    ),
    Case(
        "quarantine show orders",
        ("eve", "1 of 1 row of the quarantine of orders"),
        lambda body: [json.loads(row["_row"])["name"] for row in body],
        ["eve"],
    ),
    Case(
        "checkpoint list",
        ("orders", "customers", "totals", "export"),
        lambda body: {each["flow"] for each in body},
        {"orders", "customers", "totals", "export", "small_orders"},
    ),
    Case(
        "checkpoint inspect totals",
        ("flow totals, epoch", "stateful operator 0"),
        lambda body: (body["used"], body["finished_batch"], len(body["state"])),
        (True, 0, 1),
    ),
    Case("checkpoint doctor orders", ("no problems found",), lambda body: body, []),
    Case(
        "checkpoint doctor",
        ("note small_orders batch-open: batch 0 is planned and not finished",),
        lambda body: [(trouble["flow"], trouble["kind"]) for trouble in body],
        [("small_orders", "batch-open")],
    ),
    Case(
        "state show totals",
        ("operator 0", "ada", "bob"),
        lambda body: [section["total"] for section in body],
        [2],
    ),
    Case(
        "metrics",
        ("# TYPE penstock_", 'pipeline="shop"'),
        lambda body: all(each["name"].startswith("penstock_") for each in body),
        True,
    ),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, spark) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "shop"
    (folder / "in").mkdir(parents=True)
    (folder / "shop.py").write_text(SOURCE, encoding="utf-8")
    rows = [dict(zip(("id", "name", "amount"), row, strict=True)) for row in ROWS]
    (folder / "in" / "a.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    answer = penstock(folder, "run")
    assert answer.code == 1, answer.text
    assert answer.err.count("EXPECTATION_VIOLATED") >= 1, answer.text
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Hashes of all files of the project, except locks and logs of Spark."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix not in (".lock", ".log", ".pyc")
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.arguments)
def test_commands_print_text_and_change_nothing(finished: Path, case: Case) -> None:
    before = contents(finished)
    answer = penstock(finished, *case.arguments.split())
    assert answer.code == case.code, answer.text
    assert [part for part in case.text if part not in answer.out] == [], answer.out
    assert contents(finished) == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.arguments)
def test_commands_print_the_same_as_json(finished: Path, case: Case) -> None:
    answer = penstock(finished, *case.arguments.split(), "--output", "json")
    assert answer.code == case.code, answer.text
    if case.lines:
        body = [json.loads(line) for line in answer.out.splitlines()]
    else:
        body = json.loads(answer.out)
    assert case.pick(body) == case.value, answer.out
