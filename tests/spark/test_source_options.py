"""Options of Spark's and Delta's sources: their documented behaviour."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.base import NOWHERE, OpenedSource, Position, Read, parse_start
from penstock.sources.kafka.event_hubs import as_events
from penstock.sources.registry import source_of


def stream(
    spark: Any, source: str, path: str | None = None, schema: str = "", **options: str
) -> Any:
    reader = spark.readStream.format(source)
    reader = reader.options(**source_of(source).check_options(options, is_stream=True))
    if schema:
        reader = reader.schema(schema)
    return reader.load(path) if path else reader.load()


def batches(df: Any, checkpoint: Path, *, column: str = "id") -> list[list[Any]]:
    """The values of a column per micro-batch, for all rows that are available now."""
    values: list[list[Any]] = []

    def take(rows: Any, _: int) -> None:
        values.append(sorted(row[column] for row in rows.select(column).collect()))

    writer = df.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return values


def test_delta_source_starts_at_a_version_and_skips_changes(spark, tmp_path: Path):
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, at TIMESTAMP) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    for statement in (
        f"INSERT INTO delta.`{path}` VALUES (1, '2026-01-03'), (2, '2026-01-01')",
        f"INSERT INTO delta.`{path}` VALUES (3, '2026-01-02')",
        f"UPDATE delta.`{path}` SET id = 20 WHERE id = 2",
        f"INSERT INTO delta.`{path}` VALUES (4, '2026-01-04')",
        f"DELETE FROM delta.`{path}` WHERE id = 3",
    ):
        spark.sql(statement)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("version = 2").head()
    cases: list[tuple[dict[str, str], list[int]]] = [
        ({}, [1, 4, 20]),
        ({"startingVersion": "2", "skipChangeCommits": "true"}, [3, 4]),
        ({"startingTimestamp": str(history.timestamp), "skipChangeCommits": "true"}, [3, 4]),
        ({"startingVersion": "latest"}, []),
        ({"readChangeFeed": "true", "startingVersion": "3"}, [2, 3, 4, 20]),
        ({"startingVersion": "4", "ignoreDeletes": "true"}, [4]),
    ]
    for number, (options, expected) in enumerate(cases):
        result = batches(stream(spark, "delta", path, **options), tmp_path / f"c{number}")
        assert sorted(x for batch in result for x in batch) == expected, options

    # Rows in the same file as a changed row are read again.
    rewritten = stream(spark, "delta", path, startingVersion="2", ignoreChanges="true")
    again = [x for batch in batches(rewritten, tmp_path / "again") for x in batch]
    assert set(again) - {1} == {3, 4, 20}

    ordered = stream(
        spark, "delta", path, withEventTimeOrder="true", maxFilesPerTrigger="1"
    ).withWatermark("at", "1 hour")
    assert sorted(x for batch in batches(ordered, tmp_path / "t") for x in batch) == [1, 4, 20]
    with pytest.raises(Exception, match="DELTA_SOURCE"):
        batches(stream(spark, "delta", path, startingVersion="1"), tmp_path / "refused")


def test_file_source_reads_files_in_order_and_archives_or_deletes_them(spark, tmp_path: Path):
    folder, archive = tmp_path / "in", tmp_path / "archive"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}\n')
        # With Spark's default `maxFileAge`, the oldest files would be skipped silently.
        time = 1_000_000_000 + number * 30 * 86_400
        os.utime(folder / f"{number}.json", (time, time))

    def files(**options: str) -> Any:
        return stream(spark, "json", str(folder), "id INT", maxFilesPerTrigger="1", **options)

    assert batches(files(), tmp_path / "a") == [[0], [1], [2]]
    assert batches(files(latestFirst="true"), tmp_path / "b") == [[2], [1], [0]]
    # A file that is added late and has an old timestamp.
    assert batches(files(maxFileAge="7d"), tmp_path / "d") == [[0], [1], [2]]
    late = folder / "late.json"
    late.write_text('{"id": 9}\n')
    os.utime(late, (1_000_000_000, 1_000_000_000))
    assert batches(files(maxFileAge="7d"), tmp_path / "d") == []
    assert batches(files(), tmp_path / "a") == [[9]]
    late.unlink()
    # A file with a timestamp in the future must not hide later files.
    wrong = folder / "wrong.json"
    wrong.write_text('{"id": 10}\n')
    os.utime(wrong, (7_258_118_400, 7_258_118_400))  # the year 2200
    assert batches(files(), tmp_path / "a") == [[10]]
    later = folder / "later.json"
    later.write_text('{"id": 11}\n')
    assert batches(files(), tmp_path / "a") == [[11]]
    wrong.unlink()
    later.unlink()
    cleaning = {"cleanSource": "archive", "sourceArchiveDir": str(archive)}
    assert batches(files(**cleaning), tmp_path / "c") == [[0], [1], [2]]
    (folder / "3.json").write_text('{"id": 3}\n')
    assert batches(files(**cleaning), tmp_path / "c") == [[3]]
    archived = {file.name for file in archive.rglob("*.json")}
    assert archived >= {"0.json", "1.json"}
    assert {file.name for file in folder.iterdir()} | archived >= {f"{n}.json" for n in range(4)}
    for number in (7, 8):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    deleted = batches(files(cleanSource="delete"), tmp_path / "e")
    assert {x for batch in deleted for x in batch} >= {3, 7, 8}
    # Files of the last micro-batch are deleted with the next one.
    assert len([file for file in folder.iterdir() if file.suffix == ".json"]) == 1


def test_last_header_of_a_name_is_the_property_of_an_event(spark):
    listed = "struct('a', binary('1')), struct('b', binary('2')), struct('a', null)"
    headers = f"CAST(array({listed}) AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    columns = "binary('x') key, binary('y') value, 0 partition, 1L offset, now() timestamp"
    rows = spark.sql(f"SELECT {columns}, {headers} headers UNION ALL SELECT {columns}, null")
    assert [row.properties for row in as_events(rows).collect()] == [{"a": None, "b": "2"}, {}]


def test_generated_rows_and_sockets_can_be_streamed(spark, tmp_path: Path):
    generated = stream(spark, "rate-micro-batch", rowsPerBatch="3", startTimestamp="0")
    assert batches(generated, tmp_path / "a", column="value") == [[0, 1, 2]]

    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server, b"one\ntwo\n"))
        sender.start()
        lines = stream(spark, "socket", host="127.0.0.1", port=str(server.getsockname()[1]))
        assert _until(lines, lambda rows: len(rows) == 2) == ["one", "two"]
        sender.join()
    rate = stream(spark, "rate", rowsPerSecond="50")
    assert _until(rate.selectExpr("value"), lambda rows: len(rows) > 0)[0] == 0


def _send(server: socket.socket, content: bytes) -> None:
    connection, _ = server.accept()
    connection.sendall(content)
    connection.recv(1)  # returns when Spark closes
    connection.close()


def _until(df: Any, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The first column of the rows of a running stream."""
    values: list[Any] = []
    done = threading.Event()

    def take(rows: Any, _: int) -> None:
        values.extend(row[0] for row in rows.collect())
        if enough(values):
            done.set()

    query = df.writeStream.foreachBatch(take).start()
    try:
        assert done.wait(60), query.exception() or query.lastProgress
    finally:
        query.stop()
    return sorted(values)


def test_jdbc_tables_are_read_in_partitions_with_pushdown_and_as_streams(spark, tmp_path: Path):
    url = f"jdbc:derby:memory:{tmp_path.name};create=true"
    options = {"url": url, "driver": "org.apache.derby.jdbc.EmbeddedDriver"}
    rows = spark.range(10).selectExpr("id", "id * 2 AS amount")
    rows.write.format("jdbc").options(**options, dbtable="orders").save()
    reader = spark.read.format("jdbc").options(
        **options, partitionColumn="id", lowerBound="0", upperBound="10", numPartitions="3"
    )
    df = reader.option("dbtable", "orders").load()
    assert df.rdd.getNumPartitions() == 3
    assert sorted(row.amount for row in df.where("id > 7").collect()) == [16, 18]
    newer = spark.read.format("jdbc").options(
        **options, query='SELECT "id" FROM orders WHERE "id" > 8'
    )
    assert [row[0] for row in newer.load().collect()] == [9]

    # A stream from any database with a driver.
    def opened(options: dict[str, str], position: Position = NOWHERE) -> OpenedSource:
        load = spark.readStream.format("jdbc").load
        read = Read(
            spark=spark,
            format="jdbc",
            options=options,
            load=lambda _: load(),
            flow="orders",
            position=position,
        )
        return source_of("jdbc").open(read)

    stream_options = {
        **options,
        "dbtable": "orders",
        "partitionColumn": "ID",
        "settlingDelay": "0 seconds",
        "maxRowsPerTrigger": "4",
        "numPartitions": "2",
    }
    result = batches(opened(stream_options).df, tmp_path / "stream")
    assert result == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    added = spark.range(10, 12).selectExpr("id", "id AS amount")
    added.write.format("jdbc").options(**options, dbtable="orders").mode("append").save()
    again = opened(stream_options).df.where("amount > 10").select("id")
    assert batches(again, tmp_path / "stream") == [[11]]
    first = opened({**stream_options, "startingKey": "9"}).df
    assert batches(first, tmp_path / "first") == [[9, 10, 11]]
    position, report = opened(stream_options).start(parse_start("key=10"), [], 0)
    assert (report.unit, report.again, report.skipped) == ("rows", 0, 10)
    moved = opened({**stream_options, "startingKey": "2"}, position).df
    assert batches(moved, tmp_path / "moved") == [[10, 11]]
