"""The PostgreSQL sink against a real server: written, refused and duplicated rows."""

from pathlib import Path

import pytest
from database_server import PASSWORD, CuttingProxy, DatabaseServer
from database_tables import Tables
from sink_writes import PLAIN, forget_last_commit, sink, sink_rows, writer
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.errors import CheckpointError, ConnectorError, FlowError

TYPES = """
@dp.append_flow(target="out")
def to_db():
    df = rows()
    return df.select(
        "id", "amount",
        F.col("id").cast("tinyint").alias("Tiny"),
        F.expr("CAST(IF(id % 2 = 0, 'NaN', '1.5') AS DOUBLE)").alias("d"),
        F.expr(
            "IF(id = 1, NULL, CAST(12345678901234567890.123456789 AS DECIMAL(38, 9)))"
        ).alias("n"),
        F.expr("TIMESTAMP '2024-03-31 01:30:00.123456Z'").alias("at"),
        F.expr("TIMESTAMP '1583-01-01 00:00:00.000001Z'").alias("old"),
        F.expr("TIMESTAMP_NTZ '2024-03-31 02:30:00.5'").alias("local"),
        F.expr("DATE '0001-01-01'").alias("day"),
        F.expr("DATE '+20000-01-01'").alias("far"),
        F.expr("array(TIMESTAMP '+12000-01-01 00:00:00Z')").alias("farther"),
        F.expr("id = 1").alias("flag"),
        F.expr("X'00FF'").alias("raw"),
        F.concat(F.lit("it's \\u20ac \\\\ \\""), F.col("id").cast("string")).alias("text"),
        F.expr("IF(id = 1, array(), array('a', NULL, 'b,\\"'))").alias("words"),
        F.expr("array(CAST('NaN' AS DOUBLE), 2.5D)").alias("floats"),
        F.expr("named_struct('a', id, 'b', map('k', NULL))").alias("nested"),
        F.expr("parse_json('{\\"x\\": [1, 2]}')").alias("free"),
    )
"""


def test_every_type_is_stored_exactly_and_a_replay_changes_nothing(
    project: Project, postgres_server: DatabaseServer, tables: Tables
):
    project.source(sink(postgres_server.url, "types") + TYPES)
    project.add("a.json", [{"id": 1, "amount": 10}, {"id": 2}])
    assert project.run().state is UpdateState.COMPLETED

    kinds = dict(
        tables.query(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'types'::regclass AND attnum > 0"
        )
    )
    assert kinds == {
        "id": "bigint",
        "amount": "integer",
        "Tiny": "smallint",
        "d": "double precision",
        "n": "numeric(38,9)",
        "at": "timestamp with time zone",
        "old": "timestamp with time zone",
        "local": "timestamp without time zone",
        "day": "date",
        "far": "date",
        "farther": "timestamp with time zone[]",
        "flag": "boolean",
        "raw": "bytea",
        "text": "text",
        "words": "text[]",
        "floats": "double precision[]",
        "nested": "jsonb",
        "free": "jsonb",
    }
    stored = tables.query("SELECT * FROM types ORDER BY id")
    same = (
        "2024-03-31 01:30:00.123456+00",
        "1583-01-01 00:00:00.000001+00",
        "2024-03-31 02:30:00.5",
        "0001-01-01",
        "20000-01-01",
        '{"12000-01-01 00:00:00+00"}',
    )
    assert stored == [
        ("1", "10", "1", "1.5", None, *same, "t", "\\x00ff", 'it\'s € \\ "1', "{}", "{NaN,2.5}",
         '{"a": 1, "b": {"k": null}}', '{"x": [1, 2]}'),
        ("2", None, "2", "NaN", "12345678901234567890.123456789", *same, "f", "\\x00ff",
         'it\'s € \\ "2', '{a,NULL,"b,\\""}', "{NaN,2.5}",
         '{"a": 2, "b": {"k": null}}', '{"x": [1, 2]}'),
    ]  # fmt: skip

    forget_last_commit(project, "to_db")
    project.add("b.json", [{"id": 3}])
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query("SELECT id FROM types ORDER BY id") == [("1",), ("2",), ("3",)]
    fence = tables.query(
        "SELECT flow, last_batch, last_rows FROM penstock_fence WHERE target = '\"types\"'"
    )
    assert fence == [("to_db", "1", "1")]
    assert tables.staging() == []
    assert sink_rows(project) == [2, 1]
    written = [path for path in (project.root / ".penstock").rglob("*") if path.is_file()]
    assert written
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []


UPSERT = """
@dp.append_flow(target="out")
def to_db():
    return rows().select("id", "amount", "ts")

dp.create_sink("totals", "jdbc", {{
    "url": "{url}", "dbtable": "public.totals", "user": "writer",
    "password": "${{secret:DB_PASSWORD}}", "mode": "upsert", "keys": "k",
}})

@dp.update_flow(target="totals")
def counted():
    return rows().groupBy((F.col("id") % 2).alias("k")).agg(F.count("*").alias("n"))
"""


def test_upserts_keep_the_newest_row_and_stateful_flows_continue_after_a_replay(
    project: Project, postgres_server: DatabaseServer, tables: Tables
):
    url = postgres_server.url
    tables.execute(
        "CREATE TABLE newest (id bigint PRIMARY KEY, amount integer, ts timestamptz, "
        "seen timestamptz DEFAULT now())"
    )
    out = sink(url, "newest", mode="upsert", keys="id", sequenceBy="ts")
    project.source(out + UPSERT.format(url=url))
    early, late = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"
    project.add(
        "a.json",
        [
            {"id": 1, "amount": 1, "ts": late},
            {"id": 1, "amount": 2, "ts": early},
            {"id": 2, "amount": 3, "ts": early},
        ],
    )
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query("SELECT id, amount FROM newest ORDER BY id") == [("1", "1"), ("2", "3")]
    assert tables.query("SELECT k, n FROM totals ORDER BY k") == [("0", "1"), ("1", "2")]

    forget_last_commit(project, "counted")
    project.add(
        "b.json",
        [{"id": 1, "amount": 9, "ts": early}, {"id": 2, "amount": 8, "ts": late}, {"id": 4}],
    )
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query("SELECT id, amount FROM newest ORDER BY id") == [
        ("1", "1"),
        ("2", "8"),
        ("4", None),
    ]
    assert tables.query("SELECT k, n FROM totals ORDER BY k") == [("0", "3"), ("1", "3")]


def test_rows_are_stored_once_when_connection_or_server_fails_around_a_commit(
    project: Project, postgres_server: DatabaseServer, proxy: CuttingProxy, tables: Tables
):
    project.source(sink(proxy.url, "cut") + PLAIN)
    in_fence, in_staging = b"SET last_batch", b'INTO "penstock_stage'
    moments = [
        # The response to the commit is lost: the fence is checked in the same batch.
        (in_fence, lambda: None, True),
        # The server dies between commit and response.
        (in_fence, postgres_server.restart, True),
        # The server dies after the rows are staged: then its unlogged tables are empty.
        (in_staging, postgres_server.restart, False),
    ]
    for at, (marker, act, cut) in enumerate(moments):
        proxy.arm(marker, act, cut=cut)
        project.add(f"{at}.json", [{"id": 10 * at + n, "amount": n} for n in range(3)])
        assert project.run().state is UpdateState.COMPLETED, at
        assert proxy.acted == at + 1
    stored = tables.query("SELECT id FROM cut ORDER BY id")
    assert [int(row[0]) for row in stored] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert tables.staging() == []


def test_connection_of_a_task_that_fails_is_an_unavailable_database(
    spark, proxy: CuttingProxy, tables: Tables
):
    broken = writer(spark, proxy, "unstable")
    df = spark.range(3)
    broken.start(df.schema)
    proxy.arm(b'INTO "penstock_stage')
    with pytest.raises(FlowError, match=r"127\.0\.0\.1") as caught:
        broken.write(df, 0)
    assert (caught.value.condition, caught.value.retryable) == ("SINK_UNAVAILABLE", True)
    broken.start(df.schema)
    assert tables.staging() == []
    assert broken.write(df, 0).rows == 3
    assert tables.query("SELECT count(*) FROM unstable") == [("3",)]


def test_only_the_newest_writer_may_commit_and_no_batch_may_be_missing(
    spark, postgres_server: DatabaseServer, tables: Tables, tmp_path: Path
):
    df = spark.createDataFrame([(1,), (2,)], "id INT")
    old = writer(spark, postgres_server, "owned")
    old.start(df.schema)
    assert old.write(df, 0).rows == 2
    new = writer(spark, postgres_server, "owned")
    new.start(df.schema)
    with pytest.raises(FlowError, match="SINK_FENCED") as caught:
        old.write(df, 1)
    assert not caught.value.retryable
    assert new.write(df, 0).replayed
    assert new.write(df.where("false"), 1).rows == 0
    assert new.write(df, 2).rows == 2
    with pytest.raises(FlowError, match="batch 7, but the last one"):
        new.write(df, 7)
    lost = writer(spark, postgres_server, "owned", epoch="another")
    with pytest.raises(CheckpointError, match="SINK_CHECKPOINT_LOST"):
        lost.start(df.schema)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "1").touch()
    older = writer(spark, postgres_server, "owned", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"ends at batch 1, but .* has batches up to 2"):
        older.start(df.schema)
    onwards = writer(spark, postgres_server, "owned", onGap="continue")
    onwards.start(df.schema)
    assert onwards.write(df, 7).rows == 2
    assert tables.query("SELECT count(*) FROM owned") == [("6",)]
    away = writer(spark, postgres_server, "owned", url="jdbc:postgresql://127.0.0.1:1/postgres")
    with pytest.raises(FlowError, match="SINK_UNAVAILABLE") as caught:
        away.start(df.schema)
    assert caught.value.retryable
    stranger = writer(spark, postgres_server, "owned", password="not-the-password")
    with pytest.raises(FlowError, match="password authentication failed") as caught:
        stranger.start(df.schema)
    assert not caught.value.retryable
    assert "not-the-password" not in str(caught.value)


def test_rows_that_cannot_be_stored_are_named_and_nothing_of_their_batch_is_written(
    spark, postgres_server: DatabaseServer, tables: Tables
):
    tables.execute(
        "CREATE TABLE strict (id integer NOT NULL UNIQUE, short varchar(3), mood uuid, note text, "
        "CHECK (id > 0))"
    )
    tables.execute(
        "CREATE FUNCTION refuse() RETURNS trigger AS "
        "$$ BEGIN RAISE EXCEPTION 'no sevens'; END $$ LANGUAGE plpgsql"
    )
    tables.execute(
        "CREATE TRIGGER no_sevens BEFORE INSERT ON strict FOR EACH ROW WHEN (NEW.id = 7) "
        "EXECUTE FUNCTION refuse()"
    )
    schema = "id INT, short STRING, mood STRING, note STRING"
    strict = writer(spark, postgres_server, "strict")
    good = "d290f1ee-6c54-4b01-90e6-d701748f0851"

    def df(*row):
        return spark.createDataFrame([(1, "ok", good, None), row], schema)

    strict.start(df(2, None, None, None).schema)
    for row, said in (
        ((None, "a", good, ""), "null value in column"),
        ((2, "long", good, ""), "value too long"),
        ((2, "a", "angry", ""), "invalid input syntax for type uuid"),
        ((-1, "a", good, ""), "check constraint"),
        ((1, "a", good, ""), "duplicate key"),
        ((7, "a", good, ""), "no sevens"),
        ((2, "a", good, "nul: \0"), "U+0000 in column note"),
    ):
        with pytest.raises(FlowError, match="SINK_ROWS_REFUSED") as caught:
            strict.write(df(*row), 0)
        assert said in str(caught.value)
        assert not caught.value.retryable
    assert tables.query("SELECT count(*) FROM strict") == [("0",)]

    huge = "x" * 3_000_000
    lenient = writer(spark, postgres_server, "strict", nulCharacters="replace")
    lenient.start(df(2, None, None, None).schema)
    assert lenient.write(df(2, "a\0", good, huge), 0).rows == 2
    assert tables.query("SELECT short, length(note) FROM strict WHERE id = 2") == [
        ("a\N{REPLACEMENT CHARACTER}", "3000000")
    ]
    assert tables.staging() == []

    twice = writer(spark, postgres_server, "strict", mode="upsert", keys="id")
    twice.start(df(2, None, None, None).schema)
    with pytest.raises(FlowError, match=r"same id, such as id = 1: their order is not defined"):
        twice.write(df(1, "b", good, None), 1)

    tables.execute(
        "CREATE COLLATION ci (provider=icu, locale='und-u-ks-level2', deterministic=false)"
    )
    tables.execute("CREATE TABLE folded (k text COLLATE ci PRIMARY KEY, at int)")
    folded = writer(spark, postgres_server, "folded", mode="upsert", keys="k", sequenceBy="at")
    rows = spark.createDataFrame([("a", 1), ("A", 2)], "k STRING, at INT")
    folded.start(rows.schema)
    assert folded.write(rows, 0).rows == 2
    assert tables.query("SELECT k, at FROM folded") == [("A", "2")]

    nested = spark.sql("SELECT array('a\\u0000') AS words")
    strict = writer(spark, postgres_server, "nested")
    strict.start(nested.schema)
    with pytest.raises(FlowError, match="SINK_ROWS_REFUSED") as caught:
        strict.write(nested, 0)
    assert "nulCharacters" in str(caught.value.hint)


def test_a_query_that_does_not_fit_the_table_is_refused_before_it_starts(
    project: Project, spark, postgres_server: DatabaseServer, tables: Tables
):
    tables.execute(
        "CREATE TABLE narrow (id smallint, amounts integer, made timestamptz NOT NULL, "
        "total numeric(5, 2) GENERATED ALWAYS AS (1) STORED)"
    )
    project.source(sink(postgres_server.url, "narrow") + PLAIN).add("a.json", [{"id": 1}])
    result = project.run()
    (failure,) = result.failures
    assert isinstance(failure, ConnectorError)
    text = str(failure)
    assert "column id: bigint does not fit into smallint" in text
    assert "no column amount (did you mean amounts?)" in text
    assert "column made is NOT NULL without a default" in text
    assert f"{Path('pipeline.py')}:" in text
    schema = spark.createDataFrame([], "id INT").schema
    for more, said in (
        ({"table": "absent", "createTable": "false"}, "SINK_TABLE_NOT_FOUND"),
        ({"table": "pg_catalog.pg_tables"}, "is not a table"),
        ({"table": "narrow", "mode": "upsert", "keys": "made"}, "no column made"),
    ):
        with pytest.raises(ConnectorError, match=said):
            writer(spark, postgres_server, **more).start(schema)
    tables.execute("CREATE TABLE keyless (id bigint)")
    twice = spark.range(1).selectExpr("id", "id").schema
    for table in ("keyless", "absent"):
        with pytest.raises(ConnectorError, match="two columns of the query are named id"):
            writer(spark, postgres_server, table).start(twice)
    with pytest.raises(ConnectorError, match="no primary key or unique index on exactly id"):
        writer(spark, postgres_server, "keyless", mode="upsert", keys="id").start(schema)
    assert not tables.exists("absent")


def test_rows_are_duplicated_when_the_fence_is_switched_off(
    project: Project, postgres_server: DatabaseServer, tables: Tables, monkeypatch
):
    # The negative control: the tests above would detect duplicated rows.
    project.source(sink(postgres_server.url, "unfenced") + PLAIN)
    project.add("a.json", [{"id": 1}, {"id": 2}])
    assert project.run().state is UpdateState.COMPLETED
    forget_last_commit(project, "to_db")
    monkeypatch.setenv("PENSTOCK_TEST_WITHOUT", "sink-fence")
    assert project.run().state is UpdateState.COMPLETED
    assert tables.query("SELECT id, count(*) FROM unfenced GROUP BY id ORDER BY id") == [
        ("1", "2"),
        ("2", "2"),
    ]
