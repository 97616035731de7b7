"""Sinks written as functions by users: their rows after a batch is repeated."""

import pytest
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.batches import current_batch
from penstock.errors import DefinitionError

pytestmark = pytest.mark.spark


def forget_last_commits(project: Project, *flows: str) -> None:
    for flow in flows:
        commits = [f for f in project.commits_folder(flow).iterdir() if f.name.isdigit()]
        newest = max(commits, key=lambda f: int(f.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


FUNCTION = """
from pathlib import Path
from penstock.batches import current_batch, idempotent_delta_write, once_per_batch

def note(text):
    with Path("notes").open("a") as out:
        out.write(text + "\\n")

@dp.foreach_batch_sink
def audit(df, batch_id):
    assert current_batch().batch_id == batch_id
    wrote = idempotent_delta_write(df, "audit/all", partition_by=["k"])
    wrote &= idempotent_delta_write(df.where("n > 1"), "audit/all", name="again")
    note(f"{current_batch().flow} {batch_id} {wrote}")
    once_per_batch(lambda: note(f"once {batch_id}"), name="note")
    df.write.format("delta").mode("append").save("audit/plain")

@dp.append_flow(target="audit", output_mode="update")
def counted():
    return rows().groupBy((F.col("id") % 2).alias("k")).agg(F.count("*").alias("n"))
"""


def test_helpers_make_writes_of_a_function_idempotent_and_state_continues(project: Project):
    project.source(FUNCTION).add("a.json", [{"id": 1}, {"id": 2}, {"id": 3}])
    assert project.run().state is UpdateState.COMPLETED
    forget_last_commits(project, "counted")
    project.add("b.json", [{"id": 5}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures

    def rows(name: str) -> list[tuple[int, int]]:
        df = project.spark.read.format("delta").load(str(project.root / "audit" / name))
        return sorted((row.k, row.n) for row in df.collect())

    assert rows("all") == [(0, 1), (1, 2), (1, 2), (1, 3), (1, 3)]
    # Without the helper, the rows of the repeated batch are duplicated.
    assert rows("plain") == [(0, 1), (0, 1), (1, 2), (1, 2), (1, 3)]
    assert (project.root / "notes").read_text().splitlines() == [
        "counted 0 True",
        "once 0",
        "counted 0 False",
        "counted 1 True",
        "once 1",
    ]


def test_function_that_raises_or_misuses_the_helpers_is_an_error(project: Project):
    project.source(
        """
import asyncio
from penstock.batches import idempotent_delta_write

@dp.foreach_batch_sink
def twice(df, batch_id):
    idempotent_delta_write(df, "t")
    idempotent_delta_write(df, "./t/")

@dp.foreach_batch_sink
def raises(df, batch_id):
    df.selectExpr("no_such_column")

@dp.foreach_batch_sink
def cancelled(df, batch_id):
    raise asyncio.CancelledError  # no subclass of Exception

@dp.append_flow(target="cancelled")
def third():
    return rows()

@dp.append_flow(target="twice")
def one():
    return rows()

@dp.append_flow(target="raises")
def other():
    return rows()
"""
    ).add("a.json", [{"id": 1}])
    result = project.run()
    repeated, invalid, cancelled = sorted(result.failures, key=lambda failure: failure.message)
    assert repeated.condition == "BATCH_WRITE_REPEATED"
    assert "pipeline.py:" in str(repeated)
    assert (invalid.condition, cancelled.condition) == ("FLOW_FAILED", "FLOW_FAILED")
    assert "no_such_column" in str(invalid)
    assert "CancelledError" in str(cancelled)
    with pytest.raises(DefinitionError, match="OUTSIDE_MICRO_BATCH"):
        current_batch()
