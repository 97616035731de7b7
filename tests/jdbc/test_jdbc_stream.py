"""A table of a real PostgreSQL as a stream: late commits, crashes, invalid input."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from database_tables import Tables
from postgres_server import PASSWORD, USER, PostgresServer
from test_postgresql_sink import forget_last_commit
from update_project import ContinuousRun, Project

from penstock._observe.events import UpdateState
from penstock.errors import ConnectorError, DefinitionErrors
from penstock.sinks.jdbc.connection import connected
from penstock.sinks.jdbc.options import jdbc_sink_options
from penstock.sources.base import Read
from penstock.sources.jdbc.failures import SourceFailure
from penstock.sources.jdbc.options import jdbc_source_options
from penstock.sources.jdbc.source import JdbcSource
from penstock.sources.jdbc.stream import JdbcStream

STREAM = """
def stream(**more):
    options = {{
        "url": "{url}", "dbtable": "{table}", "partitionColumn": "id", "user": "writer",
        "password": "${{secret:DB_PASSWORD}}", **more,
    }}
    return spark.readStream.format("jdbc").options(**options).load()
"""


def stream(url: str, table: str) -> str:
    return STREAM.format(url=url, table=table)


@contextmanager
def session(spark, server: PostgresServer):
    """Another session of the database, for transactions that stay open."""
    options = jdbc_sink_options(
        {"url": server.url, "dbtable": "x", "user": USER, "password": PASSWORD}
    )
    with connected(spark, options) as database:
        yield database


def source(spark, server: PostgresServer, table: str, **more: str) -> JdbcStream:
    all_options = {"url": server.url, "dbtable": table, "partitionColumn": "id", "user": USER}
    return JdbcStream(spark, jdbc_source_options({**all_options, "password": PASSWORD, **more}))


def last_key(query) -> str | None:
    return None if query is None else json.loads(query.json())["key"]


def test_stream_waits_for_keys_that_commit_late(
    spark, postgres_server: PostgresServer, tables: Tables
):
    tables.execute("CREATE TABLE late (id bigserial PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    tables.execute("CREATE TABLE late_1 PARTITION OF late FOR VALUES FROM (0) TO (100)")
    tables.execute("CREATE TABLE elsewhere (v int)")
    with session(spark, postgres_server) as slow, session(spark, postgres_server) as quick:
        made = source(spark, postgres_server, "late")
        viewed = source(spark, postgres_server, "(SELECT * FROM late) v")
        assert made.latestOffset(None, None) is None
        quick.execute("BEGIN")
        quick.execute("INSERT INTO elsewhere VALUES (1)")  # has the smaller transaction id
        slow.execute("BEGIN")
        slow.execute("INSERT INTO late (v) VALUES ('takes 1')")
        quick.execute("INSERT INTO late (v) VALUES ('takes 2')")
        quick.execute("COMMIT")
        assert tables.query("SELECT id FROM late") == [("2",)]
        # 2 is committed, but 1 may still commit: nothing is read from the table or the view.
        assert made.latestOffset(None, None) is None
        assert viewed.latestOffset(None, None) is None
        assert last_key(made.reportLatestOffset()) == "2"
        # Later transactions have greater keys and do not delay the stream.
        quick.execute("BEGIN")
        quick.execute("INSERT INTO late (v) VALUES ('takes 3')")
        slow.execute("COMMIT")
        assert last_key(made.latestOffset(None, None)) == "2"
        quick.execute("ROLLBACK")
        # A triggered update reads the rows up to its start when their transactions have ended.
        slow.execute("BEGIN")
        slow.execute("INSERT INTO late (v) VALUES ('takes 4')")
        quick.execute("INSERT INTO late (v) VALUES ('takes 5')")
        bounded = source(spark, postgres_server, "late")
        thread = threading.Thread(target=bounded.prepareForTriggerAvailableNow)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        slow.execute("COMMIT")
        thread.join(30)
        end = bounded.latestOffset(None, None)
        assert (last_key(end), json.loads(end.json())["rows"]) == ("5", 4)
        # A long transaction is a retryable error; the gap 3, left by a rollback, is no error.
        impatient = source(spark, postgres_server, "late", settleTimeout="1 second")
        slow.execute("BEGIN")
        slow.execute("UPDATE late SET v = '' WHERE id = 1")
        with pytest.raises(SourceFailure) as caught:
            impatient.prepareForTriggerAvailableNow()
        assert caught.value.condition == "JDBC_NOT_SETTLED"
        assert caught.value.retryable
        slow.execute("ROLLBACK")
    # Rows in the overlap may be deleted; if the greatest key is before the overlap, the flow fails.
    tables.execute("DELETE FROM late WHERE id > 2")
    assert source(spark, postgres_server, "late", overlap="3").latestOffset(end, None) is end
    with pytest.raises(SourceFailure, match="greatest key is 2") as caught:
        source(spark, postgres_server, "late", overlap="2").latestOffset(end, None)
    assert caught.value.condition == "JDBC_KEY_WENT_BACK"


def test_table_that_was_created_again_is_an_error(
    spark, postgres_server: PostgresServer, tables: Tables
):
    tables.execute("CREATE TABLE again AS SELECT generate_series(1, 3) AS id")
    end = source(spark, postgres_server, "again").latestOffset(None, None)
    tables.execute("DROP TABLE again")
    tables.execute("CREATE TABLE again AS SELECT generate_series(1, 5) AS id")
    with pytest.raises(SourceFailure, match="created again") as caught:
        source(spark, postgres_server, "again").latestOffset(end, None)
    assert caught.value.condition == "JDBC_KEY_WENT_BACK"
    accepting = source(spark, postgres_server, "again", onKeyBack="continue")
    end = accepting.latestOffset(end, None)
    assert source(spark, postgres_server, "again").latestOffset(end, None) is end


COPY = """
@dp.table
def copied():
    return stream(maxRowsPerTrigger="4", numPartitions="2")

@dp.table(deduplicate_by=["id"])
def later():
    return stream(maxRowsPerTrigger="2", startingKey="40", overlap="25")

@dp.table(output_mode="update", spark_conf={"penstock.growingState": "allow"})
def totals():
    return stream().groupBy("customer").agg(F.sum("amount").alias("amount"))
"""


def test_each_row_is_read_once_and_bad_input_is_named(
    project: Project, postgres_server: PostgresServer, tables: Tables
):
    tables.execute(
        'CREATE TABLE "Orders" (id bigint, customer text, amount numeric(10, 2), note text)'
    )
    tables.execute(
        "INSERT INTO \"Orders\" SELECT i * 10, 'c' || i % 2, i, NULL FROM generate_series(1, 10) i"
    )
    project.source(stream(postgres_server.url, '\\"Orders\\"') + COPY)
    assert project.run().state is UpdateState.COMPLETED
    ids = [row[0] for row in project.rows("copied", "id")]
    assert ids == [i * 10 for i in range(1, 11)]
    assert [row[0] for row in project.rows("later", "id")] == ids[3:]
    assert len([f for f in project.commits_folder("copied").iterdir() if f.name.isdigit()]) == 3
    progress = [
        event["details"]["flow_progress"]["metrics"]["num_input_rows"]
        for event in project.log("flow_progress")
        if event["origin"].get("flow_name") == "copied"
        and "num_input_rows" in event["details"]["flow_progress"].get("metrics", {})
    ]
    assert sorted(progress) == [2, 4, 4]

    # A crash between commit and response; then a batch of new rows.
    forget_last_commit(project, "copied")
    forget_last_commit(project, "totals")
    tables.execute("INSERT INTO \"Orders\" VALUES (110, 'c1', 11, 'new')")
    assert project.run().state is UpdateState.COMPLETED
    assert [row[0] for row in project.rows("copied", "id")] == [*ids, 110]
    totals = dict(project.rows("totals", "customer", "amount"))
    assert {name: int(amount) for name, amount in totals.items()} == {"c0": 30, "c1": 36}

    def fails(condition: str) -> str:
        result = project.run()
        assert result.state is UpdateState.FAILED
        assert {error.condition for error in result.failures} == {condition}, result.failures
        text = "\n".join(str(error) for error in result.failures)
        assert PASSWORD not in text
        return text

    tables.execute("INSERT INTO \"Orders\" VALUES (105, 'c9', 1, 'goes back'), (120, 'c0', 1, '')")
    text = fails("JDBC_KEY_WENT_BACK")
    assert "1 row with keys after" in text
    tables.execute('DELETE FROM "Orders" WHERE id = 105')
    tables.execute("INSERT INTO \"Orders\" VALUES (NULL, 'c0', 1, 'no key')")
    assert "id is NULL in " in fails("JDBC_KEY_NULL")
    tables.execute('DELETE FROM "Orders" WHERE id IS NULL')
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("copied", "id")[-1] == (120,)
    tables.execute('DELETE FROM "Orders" WHERE id > 50')
    assert "restored from a backup" in fails("JDBC_KEY_WENT_BACK")
    # Rows that were read are kept.
    assert len(project.rows("copied")) == 12


def test_unreadable_columns_are_reported_before_the_start(
    project: Project, postgres_server: PostgresServer, tables: Tables
):
    tables.execute("CREATE TABLE cached (id bigserial PRIMARY KEY, v text, at timestamptz)")
    tables.execute("ALTER SEQUENCE cached_id_seq CACHE 20")
    wrong = {
        'stream(password="wrong-password-of-mine")': ("JDBC_SOURCE_UNAVAILABLE", "28P01"),
        'stream(dbtable="nowhere")': ("JDBC_SOURCE_UNAVAILABLE", "nowhere"),
        'stream(partitionColumn="nothing")': ("JDBC_KEY_INVALID", "its columns: id, v, at"),
        'stream(partitionColumn="v")': ("JDBC_KEY_INVALID", "string"),
        'stream(partitionColumn="at")': ("JDBC_OPTION_INVALID", "overlap"),
        "stream()": ("JDBC_KEY_NOT_ORDERED", "CACHE"),
    }
    base = stream(postgres_server.url, "cached")
    flows = "".join(
        f"\n@dp.table(name='t{at}')\ndef f{at}():\n    return {query}\n"
        for at, query in enumerate(wrong)
    )
    project.source(base + flows)
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    for condition, says in wrong.values():
        assert condition in text
        assert says in text
    assert "wrong-password-of-mine" not in text
    assert "pipeline.py" in text


def test_decimals_that_spark_would_round_need_a_type(
    spark, postgres_server: PostgresServer, tables: Tables
):
    tables.execute(
        'CREATE TABLE wide (id bigint, "M m" numeric(50, 2), n numeric(9, 3), f numeric)'
    )
    with pytest.raises(ConnectorError, match=r"'M m'.* has scale 2.*decimal") as caught:
        source(spark, postgres_server, "wide")
    assert "`M m` DECIMAL(38,2)" in (caught.value.hint or "")
    source(spark, postgres_server, "wide", customSchema="`m m` DECIMAL(38,2)")

    options = {"url": postgres_server.url, "dbtable": "wide", "user": USER, "password": PASSWORD}
    reader = spark.read.format("jdbc").options(**options)
    batch = Read(
        spark=spark,
        format="jdbc",
        options=options,
        load=lambda options: reader.options(**options).load(),
        is_stream=False,
    )
    with pytest.raises(ConnectorError, match=r"'M m' of jdbc wide has scale 2"):
        JdbcSource().open(batch)
    custom = {**options, "customSchema": "`M m` STRING"}
    assert JdbcSource().open(replace(batch, options=custom)).df.columns == ["id", "M m", "n", "f"]


TIMED = """
OFTEN = {"pipelines.trigger.interval": "300 milliseconds"}

@dp.table(deduplicate_by=["id", "at"], spark_conf=OFTEN)
def versions():
    return stream(partitionColumn="at", overlap="1 hour", maxRowsPerTrigger="2")
"""


@pytest.mark.long
def test_stream_continues_when_the_server_was_restarted(
    project: Project, postgres_server: PostgresServer, tables: Tables
):
    tables.execute("CREATE TABLE live (id bigint PRIMARY KEY, note text, at timestamptz)")
    tables.execute(
        "INSERT INTO live SELECT i, 'first', timestamptz '2026-01-01 12:00Z' + (i / 3) * "
        "interval '1 minute' FROM generate_series(1, 5) i"
    )
    project.source(
        stream(postgres_server.url, "live")
        + TIMED
        + """
@dp.table(spark_conf=OFTEN)
def rows_once():
    return stream().drop("at", "note")
"""
    )
    run = ContinuousRun(project)
    run.wait_until(lambda: counts(project) == (5, 5))
    postgres_server.restart()
    # A late commit with an earlier timestamp is inside the overlap.
    tables.execute("INSERT INTO live VALUES (9, 'late', timestamptz '2026-01-01 11:59Z')")
    tables.execute("UPDATE live SET note = 'changed', at = '2026-01-01 12:30Z' WHERE id = 1")
    run.wait_until(
        lambda: len(project.rows("versions")) == 7 and len(project.rows("rows_once")) == 6
    )
    tables.execute("ALTER TABLE live DROP COLUMN note")
    tables.execute("INSERT INTO live VALUES (10, '2026-01-01 12:31Z')")
    run.wait_until(lambda: failed(project, "versions") and failed(project, "rows_once"))
    run.stop()
    assert [row[0] for row in project.rows("rows_once", "id")] == [1, 2, 3, 4, 5, 9]


def counts(project: Project) -> tuple[int, int]:
    return len(project.rows("versions")), len(project.rows("rows_once"))


def failed(project: Project, flow: str) -> bool:
    return any(
        "JDBC_COLUMN_CHANGED" in json.dumps(event)
        for event in project.log("flow_progress")
        if event["origin"].get("flow_name") == flow
    )
