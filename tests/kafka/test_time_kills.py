"""Joins, sessions and unique rows over Kafka equal those of DuckDB over the log after crashes.

In `make test` every flow crashes in this process: in one update before it writes, and in another
update after its commit. In `make test-long` the process is killed with SIGKILL: PENSTOCK_TIME_KILLS
is the number of kills (2), and PENSTOCK_TEST_SEED repeats the times of a run.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crashes import crashing
from made_events import details
from pipeline_process import PipelineProcess
from update_project import Project

from penstock._local.broker import BrokerHandle, ensure_topic
from penstock._observe.events import UpdateState

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("PENSTOCK_TIME_KILLS", "2"))
START = datetime(2026, 1, 1, tzinfo=UTC)
FAR = 100_000.5
SECONDS = 240.0

SOURCE = """
from penstock.timing import window_columns


def stream(topic, schema):
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{servers}")
    # Small batches, so that a kill meets one; the watermark follows them.
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", 40).load()
    value = F.from_json(F.col("value").cast("string"), schema)
    return rows.select(value.alias("row")).select("row.*")


def impressions():
    rows = stream("{impressions}", "ad INT, seen TIMESTAMP")
    return rows.withWatermark("seen", "1 hour")


def all_clicks():
    return stream("{clicks}", "click INT, clicked_ad INT, clicked TIMESTAMP")


def clicks():
    return all_clicks().withWatermark("clicked", "1 hour")


WITHIN = F.expr(
    "ad = clicked_ad AND clicked >= seen AND clicked <= seen + INTERVAL 5 MINUTES"
)


@dp.table
def pairs():
    return impressions().join(clicks(), WITHIN)


@dp.table(late_rows="quarantine")
def all_impressions():
    return impressions().join(clicks(), WITHIN, "left")


@dp.table(late_rows="quarantine")
def sessions():
    return (
        clicks().groupBy(F.session_window("clicked", "10 minutes"), "clicked_ad")
        .agg(F.count("*").alias("n")).transform(window_columns)
    )


@dp.table
def seen_once():
    return clicks().dropDuplicatesWithinWatermark(["click"])


dp.create_streaming_table("unique_clicks", deduplicate_by=["click"])


@dp.append_flow(target="unique_clicks")
def one():
    return all_clicks()


@dp.append_flow(target="unique_clicks")
def other():
    return all_clicks()
"""

ORACLE = {
    "pairs": """
        SELECT ad, click FROM impressions JOIN clicks ON ad = clicked_ad
        AND clicked >= seen AND clicked <= seen + INTERVAL 5 MINUTES
    """,
    "all_impressions": """
        SELECT ad, click FROM impressions LEFT JOIN clicks ON ad = clicked_ad
        AND clicked >= seen AND clicked <= seen + INTERVAL 5 MINUTES
    """,
    "sessions": """
        WITH marked AS (
            SELECT *, coalesce(clicked > lag(clicked) OVER w + INTERVAL 10 MINUTES, true) AS first
            FROM clicks WINDOW w AS (PARTITION BY clicked_ad ORDER BY clicked)
        ), numbered AS (
            SELECT *, count(*) FILTER (first) OVER (PARTITION BY clicked_ad ORDER BY clicked
            ROWS UNBOUNDED PRECEDING) AS session FROM marked
        )
        SELECT clicked_ad, count(*) FROM numbered GROUP BY clicked_ad, session
    """,
    "seen_once": "SELECT DISTINCT click FROM clicks",
    # NULL is no key: both flows keep all rows with NULL.
    "unique_clicks": """
        SELECT DISTINCT click FROM clicks WHERE click IS NOT NULL
        UNION ALL SELECT click FROM clicks, range(2) WHERE click IS NULL
    """,
}
COLUMNS = {"pairs": "ad, click", "all_impressions": "ad, click", "sessions": "clicked_ad, n"}


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


class Topics:
    """The two topics: one partition each, because the row that moves the watermark must be last."""

    def __init__(self, broker: BrokerHandle, prefix: str) -> None:
        self.servers = broker.bootstrap_servers
        self.names = {name: f"{prefix}-{name}" for name in ("impressions", "clicks")}
        self._producer = Producer({"bootstrap.servers": self.servers, "acks": "all"})
        for topic in self.names.values():
            ensure_topic(self.servers, topic, 1)

    def add(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self._producer.produce(self.names[name], json.dumps(row))
        assert self._producer.flush(30) == 0

    def log(self, name: str) -> Iterator[dict[str, Any]]:
        """All rows of a topic, read from Kafka."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "oracle"})
        place = TopicPartition(self.names[name], 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        try:
            read = 0
            while read < end:
                message = consumer.poll(30)
                assert message is not None
                assert message.error() is None
                yield json.loads(message.value() or b"")
                read += 1
        finally:
            consumer.close()


def _rows(dice: random.Random, runs: int) -> dict[str, list[dict[str, Any]]]:
    """Enough rows for each run, all within the watermark delay of one hour."""
    impressions = [
        {"ad": dice.randint(1, 12), "seen": at(dice.uniform(0, 3000))} for _ in range(30 * runs)
    ]
    clicks: list[dict[str, Any]] = [
        {"click": number, "clicked_ad": dice.randint(1, 12), "clicked": at(dice.uniform(0, 3000))}
        for number in range(1, 40 * runs + 1)
    ]
    clicks += [dict(dice.choice(clicks)) for _ in range(8 * runs)]
    clicks += [{"click": None, "clicked_ad": 99, "clicked": at(10)}]
    dice.shuffle(clicks)
    return {"impressions": impressions, "clicks": clicks}


def _found(project: Project, table: str) -> Counter[Any]:
    names = COLUMNS.get(table, "click").split(", ")
    rows = [tuple(row) for row in project.table(table).select(*names).collect()]
    return Counter(row for row in rows if row[0] not in (0, -1))


def _expected(topics: Topics) -> dict[str, Counter[Any]]:
    oracle = duckdb.connect()
    for name, times in (("impressions", "seen"), ("clicks", "clicked")):
        oracle.execute(
            f"CREATE TABLE {name} AS SELECT * REPLACE (CAST({times} AS TIMESTAMPTZ) AS {times}) "
            "FROM (SELECT unnest($rows, recursive := true))",
            {"rows": list(topics.log(name))},
        )
    oracle.execute("DELETE FROM impressions WHERE ad = 0; DELETE FROM clicks WHERE click = -1")
    return {table: Counter(oracle.execute(query).fetchall()) for table, query in ORACLE.items()}


def _kill_at_random_moment(project: Project, dice: random.Random) -> None:
    """Kill shortly after a commit of a random flow, or at a random time after the start."""
    table = dice.choice(["pairs", "seen_once", "unique_clicks", None])

    def version() -> int:
        # The first version is the empty table.
        log = project.path(table or "none") / "_delta_log"
        return max((int(file.stem) for file in log.glob("*.json")), default=0)

    before = version()
    process = PipelineProcess(project.root, "--continuous")
    try:
        met = process.wait_until(lambda: table is None or version() > before, SECONDS)
        assert met, process.output
        process.wait_until(lambda: False, dice.uniform(0.0, 12.0 if table is None else 3.0))
    finally:
        process.kill_group()


FLOWS = {"pairs", "all_impressions", "sessions", "seen_once", "one", "other"}


@pytest.mark.long
def test_joins_sessions_and_unique_rows_equal_an_oracle_when_every_flow_has_crashed(
    kafka_broker: BrokerHandle,
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    points = ("after_target_commit", "before_write")
    dice = _dice()
    monkeypatch.chdir(tmp_path)
    topics, project = _start(kafka_broker, tmp_path, spark)
    rows = _rows(dice, len(points))
    for turn, point in enumerate(points):
        for name, every in rows.items():
            topics.add(name, every[turn :: len(points)])
        with crashing(point) as crashed:
            assert project.run().state is UpdateState.FAILED
        assert crashed == FLOWS, point
    _compare(project, topics)


@pytest.mark.long
def test_joins_sessions_and_unique_rows_equal_an_oracle_over_the_log_after_kills(
    kafka_broker: BrokerHandle, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
):
    dice = _dice()
    monkeypatch.chdir(tmp_path)
    topics, project = _start(kafka_broker, tmp_path, spark)
    rows = _rows(dice, KILLS)
    for turn in range(KILLS):
        for name, every in rows.items():
            topics.add(name, every[turn::KILLS])
        _kill_at_random_moment(project, dice)
    _compare(project, topics)


def _dice() -> random.Random:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", time.time_ns()))
    print(f"PENSTOCK_TEST_SEED={seed}")
    return random.Random(seed)


def _start(broker: BrokerHandle, root: Path, spark: Any) -> tuple[Topics, Project]:
    # Each run of a test has its own topics.
    topics = Topics(broker, root.name)
    project = Project(root, spark)
    return topics, project.source(SOURCE.format(servers=topics.servers, **topics.names))


def _compare(project: Project, topics: Topics) -> None:
    """Process the remaining rows; then every table equals the oracle, also after late rows."""
    # The last rows move the watermark past all other rows.
    topics.add("impressions", [{"ad": 0, "seen": at(FAR)}])
    topics.add("clicks", [{"click": -1, "clicked_ad": 0, "clicked": at(FAR)}])
    result = project.run()
    assert result.state is UpdateState.COMPLETED, result.failures
    expected = _expected(topics)
    for table in ORACLE:
        assert _found(project, table) == expected[table], table

    # Both sides of a join and the session window drop late rows.
    topics.add("impressions", [{"ad": 5, "seen": at(1)}])
    topics.add("clicks", [{"click": 7, "clicked_ad": 5, "clicked": at(2)}])
    assert project.run().state is UpdateState.COMPLETED
    for table in ORACLE:
        assert _found(project, table) == expected[table], table
    assert project.table("sessions_quarantine").count() == 1
    refused = project.table("all_impressions_quarantine").collect()
    assert sorted("click" in json.loads(row["_row"]) for row in refused) == [False, True]
    assert {tuple(row["_failed_rules"]) for row in refused} == {("late",)}
    # Late rows are counted if there is no quarantine.
    counted = [
        details(event)["data_quality"]["late_records"]
        for event in project.events
        if event.event_type == "flow_progress"
        and event.origin.flow_name == "pairs"
        and "late_records" in details(event).get("data_quality", {})
    ]
    assert counted == [2]
