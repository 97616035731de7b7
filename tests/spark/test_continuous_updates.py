"""Continuous updates: they run until they are stopped, and flows fail independently."""

import itertools

from update_project import ContinuousRun

from penstock._observe.events import UpdateState

CHAIN = """
@dp.table
def bronze():
    return rows()


@dp.table(comment="checked", table_properties={"quality": "silver"})
@dp.expect_or_drop("positive", "amount > 0")
@dp.expect("small", "amount < 100")
def silver():
    return dp.read_stream("bronze")


@dp.materialized_view
def gold():
    return dp.read("silver").groupBy((F.col("id") % 2).alias("k")).agg(F.sum("amount").alias("s"))
"""


def orders(*amounts: "int | None", start: int = 0) -> list[dict]:
    return [
        {"id": start + i, "amount": amount, "ts": f"2026-01-01T00:{i:02d}:00Z"}
        for i, amount in enumerate(amounts)
    ]


def test_continuous_update_processes_new_rows_and_stops_cleanly(project):
    project.source(
        CHAIN.replace(
            "@dp.materialized_view",
            '@dp.materialized_view(spark_conf={"pipelines.trigger.interval": "1 second"})',
        )
    )
    project.add("a.json", orders(1))
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("silver")) == 1)
    project.add("b.json", orders(2, -2, start=10))
    run.wait_until(lambda: len(project.rows("silver")) == 2)
    run.wait_until(lambda: project.rows("gold") == [(0, 3)])
    result = run.stop()
    assert result.failures == ()
    assert not result.interrupted
    planned = [e.body for e in project.events if e.event_type == "planning_information"]
    unchanged = [body.technique == "NO_OP" for body in planned]
    assert not any(a and b for a, b in itertools.pairwise(unchanged))
    assert project.run().state is UpdateState.COMPLETED
    assert len(project.rows("bronze")) == 3


def test_other_flows_continue_when_a_flow_fails_in_a_continuous_update(project):
    project.source(
        """
@dp.table
@dp.expect_or_fail("ok", "amount > 0")
def strict():
    return rows()

@dp.table
def free():
    return rows()
"""
    ).add("a.json", orders(1))
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("strict")) == 1 and len(project.rows("free")) == 1)
    project.add("b.json", orders(-1, start=5))
    run.wait_until(lambda: len(project.rows("free")) == 2)
    project.add("c.json", orders(8, start=6))
    run.wait_until(lambda: len(project.rows("free")) == 3)
    result = run.stop()
    assert result.state is UpdateState.FAILED
    assert [f.condition for f in result.failures] == ["EXPECTATION_VIOLATED"]
    assert len(project.rows("strict")) == 1
