"""Sink and source on a real MariaDB server: differences from PostgreSQL, no duplicated rows."""

import threading
from dataclasses import replace

import pytest
from database_server import PASSWORD, USER, CuttingProxy, DatabaseServer
from database_tables import Tables
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType
from sink_writes import PLAIN, forget_last_commit, sink, sink_rows, writer
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.errors import CheckpointError, ConnectorError, FlowError
from penstock.sources.base import Read
from penstock.sources.jdbc.source import JdbcSource


@pytest.fixture
def server(mariadb_server: DatabaseServer) -> DatabaseServer:
    return mariadb_server


TYPES = """
@dp.append_flow(target="out")
def to_db():
    df = rows()
    return df.select(
        "id", "amount",
        F.col("id").cast("tinyint").alias("Tiny"),
        F.expr("CAST(-32768 AS SMALLINT)").alias("small"),
        F.expr("CAST(3.4028235E38D AS FLOAT)").alias("f"),
        F.expr("IF(id = 1, 4.9E-324D, 1.7976931348623157E308D)").alias("d"),
        F.expr(
            "IF(id = 1, NULL, CAST(12345678901234567890.123456789 AS DECIMAL(38, 9)))"
        ).alias("n"),
        F.expr("TIMESTAMP '2024-03-31 01:30:00.123456Z'").alias("at"),
        F.expr("TIMESTAMP '0001-01-01 00:00:00.000001Z'").alias("old"),
        F.expr("TIMESTAMP '9999-12-31 23:59:59.999999Z'").alias("far"),
        F.expr("TIMESTAMP_NTZ '2024-03-31 02:30:00.5'").alias("local"),
        F.expr("DATE '0001-01-01'").alias("day"),
        F.expr("id = 1").alias("flag"),
        F.expr("X'00FF275C'").alias("raw"),
        F.concat(
            F.lit("it's \\U0001F600 \\\\ \\" ` \\0 "), F.col("id").cast("string")
        ).alias("a \\"` name"),
        F.expr("IF(id = 1, array(), array('a', NULL, 'b,\\"'))").alias("words"),
        F.expr("named_struct('a', id, 'b', map('k', NULL))").alias("nested"),
        F.expr("parse_json('{\\"x\\": [1, 2]}')").alias("free"),
    )
"""


def test_every_type_is_stored_exactly_and_a_replay_changes_nothing(
    project: Project, server: DatabaseServer, tables: Tables
):
    project.source(sink(server.url.replace("mariadb", "mysql"), "Types") + TYPES)
    project.add("a.json", [{"id": 1, "amount": 10}, {"id": 2}])
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query(
        "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS "
        "WHERE TABLE_NAME = 'Types' ORDER BY ORDINAL_POSITION"
    ) == [
        ("id", "bigint(20)"), ("amount", "int(11)"), ("Tiny", "tinyint(4)"),
        ("small", "smallint(6)"), ("f", "float"), ("d", "double"), ("n", "decimal(38,9)"),
        ("at", "datetime(6)"), ("old", "datetime(6)"), ("far", "datetime(6)"),
        ("local", "datetime(6)"), ("day", "date"), ("flag", "tinyint(1)"), ("raw", "longblob"),
        ('a "` name', "longtext"), ("words", "longtext"), ("nested", "longtext"),
        ("free", "longtext"),
    ]  # fmt: skip
    same = (
        "2024-03-31 01:30:00.123456", "0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999",
        "2024-03-31 02:30:00.500000", "0001-01-01",
    )  # fmt: skip
    text = "it's \U0001f600 \\ \" ` \0 "
    free = '{"x":[1,2]}'
    assert tables.query(
        "SELECT id, amount, Tiny, small, CAST(f AS DOUBLE), d, n, CAST(at AS CHAR), "
        "CAST(old AS CHAR), CAST(far AS CHAR), CAST(local AS CHAR), CAST(day AS CHAR), "
        'CAST(flag AS CHAR), HEX(raw), "a ""` name", words, nested, free FROM Types ORDER BY id'
    ) == [
        ("1", "10", "1", "-32768", "3.4028234663852886e38", "5e-324", None, *same, "1", "00FF275C",
         f"{text}1", "[]", '{"a":1,"b":{"k":null}}', free),
        ("2", None, "2", "-32768", "3.4028234663852886e38", "1.7976931348623157e308",
         "12345678901234567890.123456789", *same, "0", "00FF275C",
         f"{text}2", '["a",null,"b,\\""]', '{"a":2,"b":{"k":null}}', free),
    ]  # fmt: skip

    forget_last_commit(project, "to_db")
    project.add("b.json", [{"id": 3}])
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query("SELECT id FROM Types ORDER BY id") == [("1",), ("2",), ("3",)]
    fence = tables.query(
        "SELECT flow, last_batch, last_rows FROM penstock_fence WHERE target = '\"Types\"'"
    )
    assert fence == [("to_db", "1", "1")]
    assert tables.staging() == []
    assert sink_rows(project) == [2, 1]
    written = [path for path in (project.root / ".penstock").rglob("*") if path.is_file()]
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []


def test_rows_are_stored_once_when_connection_or_server_fails_around_a_commit(
    project: Project, server: DatabaseServer, proxy: CuttingProxy, tables: Tables
):
    project.source(sink(proxy.url, "cut") + PLAIN)
    in_fence, in_staging = b"SET last_batch", b'INTO "penstock_stage'
    cases = [
        # The response to the commit is lost: the fence is checked in the same batch.
        (in_fence, lambda: None, True),
        # The server dies between commit and response.
        (in_fence, server.restart, True),
        # The server dies after the rows are staged.
        (in_staging, server.restart, True),
    ]
    for at, (marker, act, cut) in enumerate(cases):
        proxy.arm(marker, act, cut=cut)
        project.add(f"{at}.json", [{"id": 10 * at + n, "amount": n} for n in range(3)])
        assert project.run().state is UpdateState.COMPLETED, at
        assert proxy.acted == at + 1
    ids = tables.query("SELECT id FROM cut ORDER BY id")
    assert [int(row[0]) for row in ids] == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_only_the_newest_writer_may_commit_and_no_batch_may_be_missing(
    spark, server: DatabaseServer, tables: Tables
):
    df = spark.createDataFrame([(1,), (2,)], "id INT")
    old = writer(spark, server, "owned")
    old.start(df.schema)
    assert old.write(df, 0).rows == 2
    new = writer(spark, server, "owned")
    new.start(df.schema)
    with pytest.raises(FlowError, match="SINK_FENCED"):
        old.write(df, 1)
    assert new.write(df, 0).replayed
    assert new.write(df.where("false"), 1).rows == 0
    assert new.write(df, 2).rows == 2
    with pytest.raises(FlowError, match="batch 7, but the last one"):
        new.write(df, 7)
    with pytest.raises(CheckpointError, match="SINK_CHECKPOINT_LOST"):
        writer(spark, server, "owned", epoch="another").start(df.schema)
    assert tables.query("SELECT count(*) FROM owned") == [("4",)]
    away = writer(spark, server, "owned", url="jdbc:mariadb://127.0.0.1:1/shop")
    with pytest.raises(FlowError, match="SINK_UNAVAILABLE") as caught:
        away.start(df.schema)
    assert caught.value.retryable
    stranger = writer(spark, server, "owned", password="not-the-password")
    with pytest.raises(FlowError, match="Access denied for user 'writer'") as caught:
        stranger.start(df.schema)
    assert not caught.value.retryable
    assert "not-the-password" not in str(caught.value)
    assert "`user` and `password`" in (caught.value.hint or "")


def test_upserts_compare_keys_as_the_table_does(spark, server: DatabaseServer, tables: Tables):
    tables.script(
        "CREATE TABLE newest (no int AUTO_INCREMENT PRIMARY KEY, who varchar(9) "
        "CHARACTER SET latin1 COLLATE latin1_swedish_ci UNIQUE, at timestamp(6) NULL, c0 int, "
        "seen int DEFAULT 7);\nCREATE TABLE plain (who varchar(9) COLLATE utf8mb4_general_ci "
        "PRIMARY KEY, n int) CHARACTER SET utf8mb4"
    )

    def df(*rows):
        return spark.createDataFrame(rows, "who STRING, at STRING, c0 INT").withColumn(
            "at", F.to_timestamp("at")
        )

    newest = writer(spark, server, "newest", mode="upsert", keys="who", sequenceBy="at")
    newest.start(df().schema)
    newest.write(df(("a", "2024-01-02", 1), ("A", "2024-01-03", 2), ("b", None, 3)), 0)
    content = "SELECT who, c0, seen FROM newest ORDER BY who"
    assert tables.query(content) == [("A", "2", "7"), ("b", "3", "7")]
    newest.write(df(("a", "2024-01-01", 9), ("b", "2024-01-01", 4)), 1)
    newest.write(df(("b", None, 9), ("c", None, None), (None, None, 1)), 2)
    assert tables.query(content) == [
        (None, "1", "7"), ("A", "2", "7"), ("b", "4", "7"), ("c", None, "7"),
    ]  # fmt: skip

    def pairs(*rows):
        return spark.createDataFrame(rows, "who STRING, n INT")

    plain = writer(spark, server, "plain", mode="upsert", keys="who")
    plain.start(pairs().schema)
    assert plain.write(pairs(("a", 1), ("b", 2)), 0).rows == 2
    # MariaDB itself would keep the last row without an error.
    with pytest.raises(FlowError, match=r"same who, such as who = \w: their order is not defined"):
        plain.write(pairs(("b", 3), ("B", 4)), 1)
    assert plain.write(pairs(("B", 5)), 1).rows == 1
    tables.execute("CREATE UNIQUE INDEX added ON plain (n)")
    with pytest.raises(ConnectorError, match="another unique index, added"):
        plain.write(pairs(("d", 5)), 2)
    assert tables.query("SELECT n FROM plain ORDER BY who") == [("1",), ("5",)]

    created = writer(spark, server, "keys_alone", mode="upsert", keys="who, n")
    created.start(pairs().schema)
    for batch in range(2):
        created.write(pairs(("a", 1), ("a ", 1), ("A", 1)), batch)
    assert tables.query("SELECT count(*) FROM keys_alone") == [("3",)]


def test_another_writer_of_the_same_rows_only_delays_a_batch(
    spark, server: DatabaseServer, tables: Tables
):
    df = spark.createDataFrame([(1, 10), (2, 20)], "id INT, n INT")
    upsert = writer(spark, server, "shared", mode="upsert", keys="id")
    upsert.start(df.schema)
    has_locks = threading.Event()

    def write_and_commit_later() -> None:
        with tables.session() as database, database.transaction():
            database.execute("INSERT INTO shared VALUES (2, 0), (3, 30)")
            has_locks.set()
            database.query("SELECT SLEEP(1)")

    other = threading.Thread(target=write_and_commit_later)
    other.start()
    assert has_locks.wait(60)
    assert upsert.write(df, 0).rows == 2
    other.join()
    assert tables.query("SELECT id, n FROM shared ORDER BY id") == [
        ("1", "10"), ("2", "20"), ("3", "30"),
    ]  # fmt: skip


def test_rows_that_cannot_be_stored_are_named_and_nothing_of_their_batch_is_written(
    spark, server: DatabaseServer, tables: Tables
):
    tables.execute(
        "CREATE TABLE strict (id int NOT NULL UNIQUE, short varchar(3) CHARACTER SET latin1, "
        "mood enum('calm'), note longtext, d double, positive tinyint unsigned, CHECK (id > 0))"
    )
    schema = "id INT, short STRING, mood STRING, note STRING, d DOUBLE, positive TINYINT"
    strict = writer(spark, server, "strict")

    def df(*row):
        good = (1, "ok", "calm", None, 1.0, 1)
        return spark.createDataFrame([good, (*row, *good[len(row) :])], schema)

    strict.start(df().schema)
    for row, said in (
        ((None,), "Column 'id' cannot be null"),
        ((2, "long"), "Data too long for column 'short'"),
        ((2, "\U0001f600"), "Incorrect string value"),
        ((2, "a", "angry"), "Data truncated for column 'mood'"),
        ((-1,), "CONSTRAINT"),
        ((1,), "Duplicate entry '1'"),
        ((2, "a", "calm", "", float("nan")), "NaN or Infinity in column d"),
        ((2, "a", "calm", "", -float("inf")), "NaN or Infinity in column d"),
        ((2, "a", "calm", "", 1.0, -1), "Out of range value for column 'positive'"),
        ((2, "a", "calm", "x" * 17_000_000), "max_allowed_packet in column note"),
    ):
        with pytest.raises(FlowError, match="SINK_ROWS_REFUSED") as caught:
            strict.write(df(*row), 0)
        assert said in str(caught.value)
        assert not caught.value.retryable
        is_of_sink = said.startswith(("NaN", "max_allowed_packet"))
        assert is_of_sink == ("keep such rows apart" not in str(caught.value.hint))
    assert tables.query("SELECT count(*) FROM strict") == [("0",)]
    assert strict.write(df(2, "a", "calm", "x" * 3_000_000), 0).rows == 2
    assert tables.query("SELECT length(note) FROM strict WHERE id = 2") == [("3000000",)]


def test_table_without_exactly_once_writes_is_refused_before_the_start(
    spark, server: DatabaseServer, tables: Tables
):
    tables.script(
        "CREATE TABLE narrow (id smallint, Amounts int, made datetime(6) NOT NULL, "
        "total decimal(5, 2) AS (1) STORED, at datetime);\n"
        "CREATE TABLE loose (id bigint) ENGINE=MyISAM;\nCREATE VIEW seen AS SELECT 1 AS id;\n"
        "CREATE TABLE mail (id bigint PRIMARY KEY, address varchar(9) UNIQUE);\n"
        "CREATE TABLE keyless (id bigint, KEY (id))"
    )
    schema = spark.createDataFrame(
        [], "id BIGINT, amount INT, total DECIMAL(5,2), at TIMESTAMP"
    ).schema
    with pytest.raises(ConnectorError, match="SINK_SCHEMA_INCOMPATIBLE") as caught:
        writer(spark, server, "narrow").start(schema)
    for problem in (
        "column id: bigint does not fit into smallint(6)",
        "no column amount (did you mean Amounts?)",
        "column total: the table computes it",
        "column at: timestamp does not fit into datetime",
        "column made is NOT NULL without a default",
    ):
        assert problem in str(caught.value)
    schema = spark.createDataFrame([], "id BIGINT, address STRING").schema
    upsert = {"mode": "upsert", "keys": "id"}
    for more, said in (
        ({"table": "absent", "createTable": "false"}, "SINK_TABLE_NOT_FOUND"),
        ({"table": "seen"}, "is not a table of the engine InnoDB"),
        ({"table": "loose"}, "is not a table of the engine InnoDB"),
        ({"table": "absent", "fenceTable": "loose"}, '"loose" .* is not a table of the engine'),
        ({"table": "mail", **upsert}, "has another unique index, address: an upsert would update"),
    ):
        with pytest.raises(ConnectorError, match=said):
            writer(spark, server, **more).start(schema)
    with pytest.raises(ConnectorError, match="no primary key or unique index on exactly id"):
        writer(spark, server, "keyless", **upsert).start(schema[:1])
    assert not tables.exists("absent")
    wide = StructType([StructField(f"c{n}", IntegerType()) for n in range(4097)])
    with pytest.raises(FlowError, match="Too many columns") as refused:
        writer(spark, server, "wide").start(wide)
    assert not refused.value.retryable


def test_rows_are_duplicated_when_the_fence_is_switched_off(
    spark, server: DatabaseServer, tables: Tables, monkeypatch
):
    # The negative control: the tests above would detect duplicated rows.
    df = spark.createDataFrame([(1,)], "id INT")
    unfenced = writer(spark, server, "unfenced")
    unfenced.start(df.schema)
    monkeypatch.setenv("PENSTOCK_TEST_WITHOUT", "sink-fence")
    for _ in range(2):
        unfenced.write(df, 0)
    assert tables.query("SELECT id, count(*) FROM unfenced GROUP BY id") == [("1", "2")]


def test_values_are_read_without_changes(spark, server: DatabaseServer, tables: Tables):
    tables.script(
        "CREATE TABLE users (id bigint PRIMARY KEY, `group` varchar(9), at timestamp(6));\n"
        "INSERT INTO users VALUES (1, 'admins', '2024-03-31 01:30:00.123456')"
    )
    options = {"url": server.url, "dbtable": "users", "user": USER, "password": PASSWORD}
    batch = Read(
        spark=spark,
        format="jdbc",
        options=options,
        load=lambda options: spark.read.format("jdbc").options(**options).load(),
        is_stream=False,
    )
    more = {"partitionColumn": "id", "settlingDelay": "0 seconds"}
    stream = replace(batch, options={**options, **more}, is_stream=True)
    query = JdbcSource().open(stream).df.writeStream.format("memory").queryName("users_read")
    query.trigger(availableNow=True).start().awaitTermination()
    for read in (JdbcSource().open(batch).df, spark.table("users_read")):
        (row,) = read.select("id", "group", F.col("at").cast("string")).collect()
        assert tuple(row) == (1, "admins", "2024-03-31 01:30:00.123456")

    tables.execute("ALTER TABLE users ADD COLUMN flags bit(12) DEFAULT 258")
    with pytest.raises(ConnectorError, match="'flags' of jdbc users is BIT") as caught:
        JdbcSource().open(batch)
    custom = {**options, "customSchema": "`flags` BIGINT"}
    assert custom["customSchema"] in (caught.value.hint or "")
    assert JdbcSource().open(replace(batch, options=custom)).df.first()["flags"] == 258
