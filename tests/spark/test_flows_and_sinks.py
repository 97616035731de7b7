"""Whole updates: sinks written as functions, event hooks, dependencies, rules about tables."""

import json
from threading import Event, Lock, Thread
from typing import Any

import pytest
from crashes import crashing
from pyspark.sql.streaming.listener import StreamingQueryListener
from update_project import Project

from penstock._execution import tables
from penstock._observe.events import FlowProgress, UpdateState
from penstock._tables.kill_points import step_callback
from penstock.errors import DefinitionErrors, ExpectationFailedError

pytestmark = pytest.mark.spark


def amounts(*values: int, start: int = 0) -> list[dict]:
    return [{"id": start + at, "amount": value} for at, value in enumerate(values)]


def test_sinks_hooks_and_dependencies_work_together_in_one_update(project: Project):
    project.source(
        """
import json
from pathlib import Path

@dp.on_event_hook(max_allowable_consecutive_failures=2)
def remember(event):
    with Path("events.jsonl").open("a") as out:
        out.write(json.dumps([event["event_type"], event["message"]]) + "\\n")

@dp.on_event_hook
def broken(event):
    raise ValueError("the hook is broken")

@dp.table
def bronze():
    return rows()

@dp.table
def second():
    return rows()

@dp.foreach_batch_sink
def archive(df, batch_id):
    df.write.mode("append").json(f"archive/{batch_id}")
    df.write.mode("append").saveAsTable("main.logs.archived")
    assert spark.table("main.logs.archived").count() > 0

@dp.append_flow(target="archive", depends_on=["second"])
def to_archive():
    return dp.read_stream("bronze")

@dp.foreach_batch_sink(name="totals")
def keep_totals(df, batch_id):
    counts = [[row.k, row.n] for row in df.collect()]
    Path("totals.json").write_text(json.dumps(sorted(counts)))

@dp.update_flow(target="totals")
def counted():
    return dp.read_stream("bronze").groupBy((F.col("id") % 2).alias("k")).agg(
        F.count("*").alias("n")
    )
"""
    ).add("a.json", amounts(1, 2, 3))
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    archived = project.spark.read.json(str(project.root / "archive" / "*"))
    assert sorted(row.id for row in archived.collect()) == [0, 1, 2]
    assert json.loads((project.root / "totals.json").read_text()) == [[0, 2], [1, 1]]
    received = [json.loads(line) for line in (project.root / "events.jsonl").open()]
    types = [kind for kind, _ in received]
    assert types[0] == "create_update"
    assert received[-1] == ["update_progress", received[-1][1]]
    assert "hook_progress" not in types
    first, last = project.log("hook_progress")
    assert "the hook is broken" in first["message"]
    assert last["message"].endswith(f"raised for {len(received)} events")

    project.add("b.json", amounts(4, start=10))
    project.run()
    assert json.loads((project.root / "totals.json").read_text()) == [[0, 3]]


def test_table_rules_are_checked_when_a_view_is_refreshed(project: Project):
    project.source(
        """
@dp.materialized_view
@dp.expect_unique("one row per id", ["id"], on_violation="quarantine")
@dp.expect_row_count("enough", minimum=2)
def people():
    return spark.read.schema(ROWS).json("data")

@dp.materialized_view
@dp.expect_unique("no twins", "amount", on_violation="warn")
@dp.expect_row_count("few", maximum=1, on_violation="warn")
def counted():
    return spark.read.schema(ROWS).json("data")
"""
    ).add("a.json", amounts(1, 2, 2) + amounts(5))
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("people", "id") == [(1,), (2,)]
    duplicates = project.rows("people_quarantine", "id", "_failed_rules")
    assert duplicates == [(0, ["one row per id"])] * 2
    assert project.table("counted").count() == 4
    rules = {
        rule["name"]: (rule["passed_records"], rule["failed_records"])
        for event in project.log("flow_progress")
        for rule in event["details"]["flow_progress"]
        .get("data_quality", {})
        .get("expectations", ())
    }
    assert rules == {
        "one row per id": (2, 2),
        "enough": (1, 0),
        "no twins": (2, 2),
        "few": (0, 1),
    }

    project.add("b.json", amounts(7, start=1) + amounts(8, start=2))
    result = project.run()
    assert result.state is UpdateState.FAILED
    (failure,) = result.failures
    assert isinstance(failure, ExpectationFailedError)
    assert "has 0 rows, but 'enough' requires at least 2 rows" in str(failure)
    assert project.rows("people", "id") == [(1,), (2,)]


def test_table_rules_are_refused_when_a_dataset_never_has_all_rows(project: Project):
    project.source(
        """
@dp.table
@dp.expect_unique("one", ["idd"])
def bronze():
    return rows()

@dp.temporary_view
@dp.expect_unique("allowed", ["id"])
@dp.expect_row_count("some", minimum=1)
def view():
    return spark.range(1)

@dp.table(replace_where="id > 5")
@dp.expect_row_count("enough", minimum=1)
@dp.expect_unique("single", ["id"])
def window():
    return spark.range(9)
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    assert "which a stream never has" in text
    assert "there is no column 'idd'" in text
    assert "did you mean 'id'?" in text
    assert "'some' cannot be used: it needs the number of rows, and a temporary view" in text
    for name in ("enough", "single"):
        assert f"'{name}' cannot be used: it needs all rows of a table, and each batch" in text
    assert "'allowed'" not in text


def test_column_types_are_merged_when_flows_have_narrower_or_void_types(project: Project):
    project.source(
        """
@dp.append_flow(target="ids", once=True)
def narrow():
    return spark.range(1).select(F.lit(99).alias("id"), F.lit(None).alias("note"))

@dp.table
def ids():
    return rows().select("id")

@dp.materialized_view
def shown():
    return dp.read("ids").select("id", "note", F.lit(None).alias("nothing"))
"""
    ).add("a.json", amounts(1, 2))
    assert project.run().state is UpdateState.COMPLETED
    assert project.table("ids").schema.simpleString() == "struct<id:bigint,note:string>"
    assert project.rows("ids", "id") == [(0,), (1,), (99,)]
    assert project.rows("shown") == [(0, None, None), (1, None, None), (99, None, None)]


def declare_fill(project: Project, *, once: bool, name: str = "fill") -> None:
    """Declare a table of ids up to 100, filled by a one-time flow or a stream of the same name."""
    project.source(
        f"""
dp.create_streaming_table("ids", expect_all_or_drop={{"low": "id <= 100"}})

@dp.append_flow(target="ids"{", once=True" if once else ""},
    spark_conf={{"pipelines.maxFlowRetryAttempts": "0"}})
def {name}():
    return {"spark.range(100, 102)" if once else 'rows().select("id")'}
"""
    )


def test_no_row_is_missing_when_a_flow_changes_between_one_time_and_stream(project: Project):
    project.add("a.json", amounts(1, 2))
    ids: list[int] = []
    for once in (True, False, True):
        declare_fill(project, once=once)
        ids += [100] if once else [0, 1]
        for _ in range(2):
            assert project.run().state is UpdateState.COMPLETED
            assert project.rows("ids", "id") == [(number,) for number in sorted(ids)]


def test_a_stream_does_not_complete_the_batch_of_a_one_time_flow(project: Project):
    declare_fill(project, once=True)
    with crashing("after_quarantine_commit"):
        assert project.run().state is UpdateState.FAILED
    declare_fill(project.add("a.json", amounts(1, 2)), once=False)
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("ids", "id") == [(0,), (1,)]
    # A flow with another name starts from the beginning.
    declare_fill(project, once=False, name="refill")
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("ids", "id") == [(0,), (0,), (1,), (1,)]
    warned = [event.message for event in project.events if event.event_type == "plan_warning"]
    assert "ids keeps the rows of flow fill, which is not declared any more" in warned[-1]


def test_counts_of_a_one_time_flow_are_reported_when_it_was_killed_after_its_commit(
    project: Project,
):
    project.source(
        """
dp.create_streaming_table("ids")

@dp.append_flow(
    target="ids", once=True, spark_conf={"pipelines.maxFlowRetryAttempts": "0"}
)
def fill():
    return spark.range(3)
"""
    )

    def counts() -> list[int]:
        bodies = [event.body for event in project.events]
        progress = [body for body in bodies if isinstance(body, FlowProgress)]
        return [body.metrics.num_output_rows for body in progress if body.table_version]

    with crashing("after_target_commit"):
        assert project.run().state is UpdateState.FAILED
    assert counts() == []
    for reported in ([3], []):
        assert project.run().state is UpdateState.COMPLETED
        assert counts() == reported
    assert project.rows("ids", "id") == [(0,), (1,), (2,)]


def test_append_batches_lock_a_table_that_another_flow_upserts(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    project.source(
        """
dp.create_streaming_table("sums")

@dp.append_flow(target="sums", output_mode="update")
def merged():
    return rows("none").groupBy("id").agg(F.sum("amount").alias("amount"))

@dp.append_flow(target="sums")
def added():
    return rows().select("id", F.col("amount").cast("bigint").alias("amount"))
"""
    ).add("a.json", amounts(1))
    (project.root / "none").mkdir()
    locks: list[Any] = []
    monkeypatch.setattr(tables, "Lock", lambda: locks.append(Lock()) or locks[-1])
    steps = []

    def on_step(point: str, flow: str, _: int | None) -> None:
        steps.append((flow, locks[-1].locked()))

    with step_callback(on_step):
        assert project.run().state is UpdateState.COMPLETED
    assert set(steps) == {("added", True)}


def test_null_and_empty_string_are_different_groups_when_they_are_partitions(
    project: Project,
):
    project.source(
        """
@dp.table
def bronze():
    return rows()

@dp.materialized_view(partition_cols=["p"], refresh_policy="incremental")
def sums():
    p = F.element_at(F.array(F.lit(None), F.lit(""), F.lit("x")), F.col("id").cast("int") + 1)
    return spark.read.table("bronze").groupBy(p.alias("p")).agg(F.sum("amount").alias("n"))
"""
    )
    for number, sums in enumerate(([1, 2, 3], [2, 4, 6])):
        project.add(f"{number}.json", amounts(1, 2, 3))
        assert project.run().state is UpdateState.COMPLETED
        assert project.rows("sums", "n") == [(total,) for total in sums]


def test_declared_columns_stay_when_the_query_does_not_return_them(project: Project):
    project.source(
        """
SCHEMA = "id BIGINT, amount BIGINT, note STRING, twice BIGINT GENERATED ALWAYS AS (amount * 2)"

@dp.table
def bronze():
    return rows()

@dp.expect("no note", "note IS NULL")
@dp.materialized_view(schema=SCHEMA)
def copied():
    return spark.read.table("bronze").select("id", "amount")

@dp.materialized_view(schema=SCHEMA, refresh_policy="incremental")
def grouped():
    return spark.read.table("bronze").groupBy("id").agg(F.sum("amount").alias("amount"))

@dp.table(schema="id BIGINT, amount BIGINT, note STRING", output_mode="update")
def upserted():
    return spark.readStream.table("bronze").groupBy("id").agg(F.sum("amount").alias("amount"))
"""
    )
    for name in ("a.json", "b.json"):
        project.add(name, amounts(1, 2))
        result = project.run()
        assert result.state is UpdateState.COMPLETED, result.failures
        factor = 1 if name == "a.json" else 2
        copied = sorted([(0, 1, None, 2), (1, 2, None, 4)] * factor)
        assert project.rows("copied", "id", "amount", "note", "twice", key=str) == copied
        sums = [(0, factor, None), (1, 2 * factor, None)]
        assert project.rows("upserted", "id", "amount", "note", key=str) == sums
        grouped = [(*row, 2 * row[1]) for row in sums]
        assert project.rows("grouped", "id", "amount", "note", "twice", key=str) == grouped


class Started(StreamingQueryListener):
    def __init__(self) -> None:
        self.names: set[str | None] = set()

    def onQueryStarted(self, event: Any) -> None:
        self.names.add(event.name)

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def test_jobs_of_other_code_continue_when_an_update_is_interrupted(project: Project, spark):
    slow = "reflect('java.lang.Thread', 'sleep', 100L) IS NOT NULL"
    project.add("a.json", amounts(1))
    project.source(
        f"""
@dp.materialized_view
def endless():
    return spark.range(0, 3000, 1, 3000).where("{slow}")


@dp.table
def stream():
    return rows().where("reflect('java.lang.Thread', 'sleep', 300000L) IS NOT NULL")


@dp.temporary_view
def changes():
    return rows().where("reflect('java.lang.Thread', 'sleep', 300000L) IS NOT NULL")


dp.create_streaming_table("filled")
dp.create_auto_cdc_flow(
    name="fill", target="filled", source="changes", keys=["id"], sequence_by="amount", once=True
)
"""
    )
    listener = Started()
    spark.streams.addListener(listener)
    failures: list[Exception] = []

    def other_code() -> None:
        try:
            spark.range(0, 60, 1, 60).where(slow).count()
        except Exception as error:
            failures.append(error)

    tracker, other = spark.sparkContext.statusTracker(), Thread(target=other_code)

    def interrupt(update: Any) -> None:
        pause = Event()
        while len(tracker.getActiveJobsIds()) < 3:
            pause.wait(0.1)
        other.start()
        while len(tracker.getActiveJobsIds()) < 4:
            pause.wait(0.1)
        update.request_stop()
        update.request_stop()

    result = project.run(
        on_running=lambda update: Thread(target=interrupt, args=(update,), daemon=True).start()
    )
    assert result.state is UpdateState.CANCELED
    other.join(60)
    spark.streams.removeListener(listener)
    assert not failures
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()  # it notifies the tracker
    assert not tracker.getActiveJobsIds()
    assert listener.names == {"stream", "fill"}
    (state,) = (project.root / ".penstock" / "state" / "flows").glob("fill*.json")
    assert json.loads(state.read_text())["once_done"] is False
