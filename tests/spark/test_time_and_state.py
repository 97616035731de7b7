"""Watermarks, windows, joins and state in whole updates; kills are in test_time_kills."""

import json
import os
import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from update_project import ContinuousRun, Project

from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._repair.reading import read_flow_state
from penstock._tables.session_conf import session_conf
from penstock.errors import CheckpointError, DefinitionErrors, PlanError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("two_partitions")]

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def add_in_order(project: Project, folder: str, batches: list[list[dict]]) -> None:
    """Files that the file source reads one by one in this order."""
    (project.root / folder).mkdir(exist_ok=True)
    for number, rows in enumerate(batches):
        path = project.root / folder / f"{number:03}.json"
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


WRONG = {
    "no_watermark": (
        'rows().groupBy("id").count()',
        'output_mode="append"',
        "withWatermark on the event time",
    ),
    "sorted_rows": ('rows().orderBy("id")', "", "sort in the query that reads it"),
    "distinct_count": (
        'rows().groupBy("id").agg(F.countDistinct("amount"))',
        "",
        "approx_count_distinct",
    ),
    "limited": ("rows().limit(3)", 'output_mode="update"', "remove the limit"),
    "two_steps": (
        'rows().withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count()'
        '.groupBy(F.window(F.window_time("window"), "1 hour")).count()',
        'output_mode="update"',
        "append mode only",
    ),
    "growing_sessions": (
        'rows().withWatermark("ts", "1 minute")'
        '.groupBy(F.session_window("ts", "1 minute"), "id").count()',
        'output_mode="update"',
        "session windows run in append mode",
    ),
    "whole_table": ("rows()", 'output_mode="complete"', "complete mode needs an aggregation"),
    "ranked": (
        'rows().withColumn("r", F.row_number().over(Window.partitionBy("id").orderBy("ts")))',
        "",
        "a stream never has all rows of a partition",
    ),
    "outer_join": (
        'rows().join(rows("more").select("id", F.col("ts").alias("other")), "id", "left")',
        "",
        "give both sides withWatermark",
    ),
    "only_appends": (
        'rows().groupBy("id").count()',
        'output_mode="update", table_properties={"delta.appendOnly": "true"}',
        "remove the property",
    ),
    "nested": (
        'rows().withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count()',
        'partition_cols=["window.start"]',
        "partition by 'window_start'",
    ),
    "repeated_hour": (
        "rows()",
        'partition_cols=["ts"]',
        "partition by a date, such as to_date(ts)",
    ),
    "late_of_nothing": ("rows()", 'late_rows="quarantine"', "keep them in a separate table"),
    "late_of_two": (
        'rows().withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["id"])'
        '.groupBy(F.window("ts", "1 minute")).count()',
        'late_rows="quarantine"',
        "keep them in a separate table",
    ),
    "late_of_all": (
        'rows().groupBy("id").count()',
        'late_rows="quarantine"',
        "keep them in a separate table",
    ),
    "unknown_key": ("rows()", 'deduplicate_by=["idd"]', "columns: id, amount, ts"),
    "merged_twice": (
        'rows().groupBy("id").count()',
        'output_mode="update", deduplicate_by=["id"]',
        None,
    ),
}


def test_impossible_queries_are_refused_with_hints_before_the_start(project):
    source = "from pyspark.sql import Window\n"
    for name, (query, arguments, _) in WRONG.items():
        source += f"\n@dp.table({arguments})\ndef {name}():\n    return {query}\n"
    source += """
dp.create_sink("topic", "kafka", {"kafka.bootstrap.servers": "localhost:1", "topic": "t"})
dp.create_sink("files", "json", {"path": "out"})

@dp.append_flow(target="topic", output_mode="complete")
def resends():
    return rows().groupBy("id").count().select(F.to_json(F.struct("*")).alias("value"))

@dp.append_flow(target="files")
def rewrites():
    return rows().groupBy("id").count()
"""
    project.source(source)
    (project.root / "more").mkdir()
    conf = {"spark.sql.session.timeZone": "Europe/Berlin"}
    with session_conf(project.spark, conf), pytest.raises(DefinitionErrors) as caught:
        project.run()
    hints = {str(error.origin): (error.condition, error.hint) for error in caught.value.errors}
    assert len(hints) == len(WRONG) + 2
    by_flow = {}
    for error in caught.value.errors:
        by_flow[next(n for n in [*WRONG, "resends", "rewrites"] if n in error.message)] = error
    for name, (_, _, words) in WRONG.items():
        assert name in by_flow, hints
        assert words is None or words in by_flow[name].hint, (name, str(by_flow[name]))
    assert "sends the groups that changed" in by_flow["resends"].hint
    assert "json sink takes rows in append mode only" in by_flow["rewrites"].hint
    assert not (project.root / ".penstock" / "tables").exists()


GROWING = """
@dp.table(output_mode="update")
def forever():
    return rows().groupBy("id").count()

@dp.table
def each_once():
    return rows().dropDuplicates(["id"])

@dp.table
def pairs():
    right = rows().select(F.col("id").alias("other"), F.col("ts").alias("seen"))
    return rows().join(right, F.expr("id = other AND ts >= seen"))

@dp.table
def bounded():
    left = rows().withWatermark("ts", "1 minute")
    right = rows().withWatermark("ts", "1 minute")
    right = right.select(F.col("id").alias("other"), F.col("ts").alias("seen"))
    return left.join(right, F.expr("id = other AND ts BETWEEN seen AND seen + INTERVAL 1 MINUTE"))

@dp.table
def bounded_too():
    return rows().withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["id"])
"""


def test_unbounded_state_is_a_warning_or_an_error(project):
    project.source(GROWING).add("a.json", [{"id": 1, "amount": 1, "ts": at(0)}])
    assert project.run().state is UpdateState.COMPLETED
    warned = [event.message for event in project.events if event.event_type == "plan_warning"]
    assert [text.split(":")[0] for text in warned] == ["forever", "each_once", "pairs"]
    assert "every group of (id)" in warned[0]
    assert "left and right side" in warned[2]
    (project.root / "penstock.yaml").write_text(
        "name: p\nconfiguration:\n  penstock.growingState: error\n"
        "libraries:\n  - file:\n      path: pipeline.py\n"
    )
    with pytest.raises(PlanError, match="STATE_GROWS"):
        project.run()


def test_update_mode_equals_the_batch_result_for_200_arrival_orders(project):
    """200 groups, each with a different arrival order, in one stream.

    No operator combines rows of different groups: aggregations and merges work by key. So each
    group is an independent history, and one stream tests 200 of them. All groups share the
    watermark; its delay is long enough that no row is late.
    """
    choose = random.Random(20260101)
    batches: list[list[dict]] = [[] for _ in range(6)]
    for group in range(200):
        events = [
            {"id": group, "amount": choose.randint(-50, 50), "ts": at(choose.randint(0, 900))}
            for _ in range(choose.randint(1, 12))
        ]
        choose.shuffle(events)
        for event in events:
            choose.choice(batches).append(event)
    project.source(
        """
from penstock.timing import window_columns

@dp.table(output_mode="update", late_rows="quarantine")
def windows():
    rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
    return (
        rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "5 minutes"), "id")
        .agg(F.sum("amount").alias("total"), F.count("*").alias("n"), F.max("amount").alias("most"))
        .transform(window_columns)
    )

@dp.table(late_rows="quarantine")
def ticks():
    # A source of the second version of Spark's API, as Kafka is one.
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    return rows.withWatermark("timestamp", "1 second").dropDuplicates(["value", "timestamp"])
"""
    )
    add_in_order(project, "data", batches)
    assert project.run().state is UpdateState.COMPLETED
    rows = [row for batch in batches for row in batch]
    expected = duckdb.sql(
        """
        SELECT epoch(time_bucket(INTERVAL 5 MINUTE, CAST(ts AS TIMESTAMPTZ)))::BIGINT AS start, id,
               sum(amount)::BIGINT, count(*)::BIGINT, max(amount)::INT
        FROM (SELECT unnest($rows, recursive := true)) GROUP BY ALL
        """,
        params={"rows": rows},
    ).fetchall()
    actual = [
        (int(row["window_start"].replace(tzinfo=UTC).timestamp()), *row[2:])
        for row in project.table("windows").collect()
    ]
    assert sorted(actual) == sorted(expected)
    assert len(project.log("flow_progress")) > 6
    assert project.table("windows_quarantine").count() == 0


def test_late_rows_are_quarantined_for_any_names_of_columns(project):
    project.source(
        """
def events():
    rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
    return rows.withWatermark("ts", "10 seconds")

@dp.table(late_rows="quarantine")
def quoted():
    return events().withColumnRenamed("amount", "a`b").dropDuplicates(["id", "ts"])

@dp.table(late_rows="quarantine")
def repeated():
    rows = events().withColumn("amount_2", F.col("amount") + 1)
    rows = rows.select("*", (F.col("amount") + 2).alias("amount"))
    return rows.groupBy(F.window("ts", "5 seconds")).count()
"""
    )
    batches = [
        [{"id": n, "amount": n, "ts": at(seconds)}] for n, seconds in ((1, 99), (2, 99), (3, 0))
    ]
    add_in_order(project, "data", batches)
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("quoted_quarantine", "id", "`a``b`") == [(3, 3)]
    names = ("amount", "amount_2", "amount_3")
    values = (f"get_json_object(_row, '$.{name}')" for name in names)
    assert project.rows("repeated_quarantine", *values) == [("3", "4", "5")]


def test_rows_that_belong_to_no_window_are_quarantined(project):
    project.source(
        """
@dp.table(late_rows="quarantine")
def sessions():
    gap = F.expr("CASE WHEN amount > -9 THEN amount || ' seconds' END")
    rows = rows_of_time().withColumn("session", F.session_window("ts", gap)).where("id > 0")
    return rows.groupBy("session", "id").count()

def rows_of_time():
    return rows().withWatermark("ts", "10 seconds")
"""
    )
    times = [(1, at(0)), (0, at(0)), (-1, at(0)), (-9, at(0)), (1, None), (-9, None)]
    project.add("1.json", [{"id": 1, "amount": gap, "ts": time} for gap, time in times])
    assert project.run().state is UpdateState.COMPLETED
    amount = "CAST(get_json_object(_row, '$.amount') AS INT)"
    assert project.rows("sessions_quarantine", "_failed_rules[0]", amount) == [
        ("no_event_time", -9),
        ("no_event_time", 1),
        ("no_session_gap", -9),
        ("no_session_gap", -1),
        ("no_session_gap", 0),
    ]


def test_late_rows_are_counted_before_the_last_of_several_stateful_operations(project):
    project.source(
        """
@dp.table
def counted():
    rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
    unique = rows.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["id"])
    return unique.groupBy(F.window("ts", "5 seconds")).count()
"""
    )
    batches = [
        [{"id": n, "amount": n, "ts": at(seconds)}] for n, seconds in ((1, 99), (2, 99), (3, 0))
    ]
    add_in_order(project, "data", batches)
    assert project.run().state is UpdateState.COMPLETED
    quality = [
        event["details"]["flow_progress"].get("data_quality", {})
        for event in project.log("flow_progress")
    ]
    assert [each["late_records"] for each in quality if "late_records" in each] == [1]


def test_next_batch_reads_the_new_version_of_a_static_table(project):
    prices = project.root / "prices"

    def set_price(amount):
        project.spark.createDataFrame([(1, amount)], "id BIGINT, price INT").write.format(
            "delta"
        ).mode("overwrite").save(str(prices))

    set_price(10)
    project.source(
        f"""
@dp.table(spark_conf={{"pipelines.trigger": "default"}})
def priced():
    prices = spark.read.format("delta").load("{prices}")
    return rows().join(prices, "id", "left").select("amount", "price")

dp.create_sink("nowhere", "noop", {{}})

@dp.append_flow(target="nowhere", spark_conf={{"pipelines.trigger": "continuous=1 second"}})
def measured():
    return spark.readStream.format("rate").option("rowsPerSecond", 5).option(
        "numPartitions", 1  # each occupies a core permanently
    ).load()
"""
    )
    project.add("a.json", [{"id": 1, "amount": 1, "ts": at(0)}])
    run = ContinuousRun(project)
    run.wait_until(lambda: project.rows("priced") == [(1, 10)])
    set_price(20)
    project.add("b.json", [{"id": 1, "amount": 2, "ts": at(0)}])
    run.wait_until(lambda: project.rows("priced") == [(1, 10), (2, 20)])
    # A query without micro-batches stops immediately as well.
    assert run.stop().failures == ()


def test_state_can_be_read_when_the_pipeline_is_stopped(project):
    project.source(
        """
@dp.table
def plain():
    return rows()

@dp.table(output_mode="update")
def sums():
    return rows().groupBy("id").agg(F.sum("amount").alias("s"))

@dp.table
def pairs():
    return rows().select("id", "ts").join(rows().select("id", "amount"), "id")
"""
    )
    project.add("a.json", [{"id": n, "amount": n or None, "ts": at(n)} for n in range(5)])
    settings = load_settings(project.root)
    with pytest.raises(PlanError, match="FLOW_NEVER_RAN"):
        read_flow_state(settings, "sums", operator=None, limit=3)
    project.run()
    (section,) = read_flow_state(settings, "sums", operator=None, limit=3)
    assert (section.operator_name, section.total, len(section.rows)) == ("stateStoreSave", 5, 3)
    assert {row["key"]["id"] for row in section.rows} <= set(range(5))
    copy = shutil.copytree(project.root / ".penstock", project.root / "a b%20")
    copied = replace(settings, storage=f"file://{copy}")
    assert read_flow_state(copied, "sums", operator=None, limit=3)[0].total == 5
    left, right = read_flow_state(settings, "pairs", operator=None, limit=9)
    assert {tuple(row["value"]) for row in left.rows} == {("id", "ts")}
    assert sorted(row["value"]["amount"] or 0 for row in right.rows) == [0, 1, 2, 3, 4]
    with pytest.raises(PlanError, match="keeps no state"):
        read_flow_state(settings, "plain", operator=None, limit=3)
    with pytest.raises(PlanError, match="no operator 7"):
        read_flow_state(settings, "sums", operator=7, limit=3)
    for file in (project.root / ".penstock" / "checkpoints" / "sums").rglob("*.changelog"):
        file.unlink()
    with pytest.raises(CheckpointError, match="the state of flow 'sums' cannot be read"):
        read_flow_state(settings, "Sums", operator=None, limit=3)
