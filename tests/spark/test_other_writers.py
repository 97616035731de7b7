"""Concurrent writers that follow Delta's protocol: no commit is overwritten."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from writer_harness import Harness, rule

from penstock._tables.write.fenced import FencedTable

ROUNDS = 200
LINK = "penstock.delta.LinkLogStore"


def log_store(spark: SparkSession, name: str = LINK) -> tuple[Any, Any]:
    """A log store with the Hadoop configuration of the session."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return getattr(jvm, name)(conf), conf


def publish(
    spark: SparkSession, path: Path, text: str, *, overwrite: bool = False, store: str = LINK
) -> None:
    log, conf = log_store(spark, store)
    jvm: Any = spark._jvm
    lines = jvm.java.util.ArrayList()
    for line in text.splitlines():
        lines.add(line)
    log.write(jvm.org.apache.hadoop.fs.Path(str(path)), lines.iterator(), overwrite, conf)


def test_commit_of_an_existing_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    version = tmp_path / "00000000000000000001.json"
    publish(spark, version, "a\nb")
    assert version.read_text() == "a\nb\n"
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        publish(spark, version, "c")
    assert version.read_text() == "a\nb\n"
    publish(spark, version, "d", overwrite=True)
    assert version.read_text() == "d\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_log_listing_equals_that_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20ü" / "_delta_log"
    (folder / "_sidecars").mkdir(parents=True)
    names = [f"{version:020d}.{kind}" for version in range(4) for kind in ("json", "crc")]
    names += [f"{2:020d}.checkpoint.parquet", f".{3:020d}.json.1.tmp", f".{3:020d}.json.crc"]
    for name in [*names, "_last_checkpoint"]:
        (folder / name).write_text(name)
    jvm: Any = spark._jvm
    ours, conf = log_store(spark)
    deltas = jvm.io.delta.storage.LocalLogStore(conf)

    def listed(store: Any, name: str) -> list[str]:
        start = jvm.org.apache.hadoop.fs.Path(folder.as_posix(), name)
        files = store.listFrom(start, conf)
        files_listed = []
        while files.hasNext():
            files_listed.append(str(files.next()))  # path, length and times
        return files_listed

    for name in (f"{0:020d}.json", f"{2:020d}.", f"{9:020d}.json", "_"):
        assert listed(ours, name) == listed(deltas, name), name
    assert len(listed(ours, f"{2:020d}.")) == 7
    with pytest.raises(Exception, match="FileNotFoundException"):
        ours.listFrom(jvm.org.apache.hadoop.fs.Path(str(tmp_path / "none" / "x")), conf)


@pytest.mark.parametrize(
    ("checkpoint", "whole"),
    [
        ({"version": 2, "size": 3}, False),
        ({"version": 4, "size": 3}, True),  # the version does not exist any more
        ({"version": 2, "size": 3, "parts": 2}, True),
        ({"version": 2, "v2Checkpoint": {"path": "x"}}, True),
        ({"size": 3}, True),
    ],
)
def test_log_listing_omits_the_folder_when_it_starts_at_the_last_checkpoint(
    spark: SparkSession, tmp_path: Path, checkpoint: dict[str, Any], whole: bool
) -> None:
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    names = [f"{v:020d}.{kind}" for v in range(2, 5) for kind in ("json", "crc")]
    extra = f"{2:020d}.{4:020d}.compacted.json"  # only in a listing of the folder
    for name in [*names, f"{2:020d}.checkpoint.parquet", f"{3:020d}.checkpoint.parquet", extra]:
        (folder / name).write_text(name)
    (folder / f"{4:020d}.crc").unlink()
    (folder / "_last_checkpoint").write_text(json.dumps(checkpoint))
    jvm: Any = spark._jvm
    ours, conf = log_store(spark)

    def listed(name: str) -> list[str]:
        files = ours.listFrom(jvm.org.apache.hadoop.fs.Path(folder.as_posix(), name), conf)
        files_listed = []
        while files.hasNext():
            files_listed.append(str(files.next().getPath().getName()))
        return [name for name in files_listed if not name.startswith("_")]

    def present(first: int) -> list[str]:
        return sorted(path.name for path in folder.glob("0*") if int(path.name[:20]) >= first)

    for version in range(2, 6):
        expected = present(version)
        if not whole:
            expected = [name for name in expected if name != extra]
        assert listed(f"{version:020d}.") == expected, version
    assert listed(f"{1:020d}.json") == present(1)  # before the checkpoint: lists the whole folder
    assert listed(f"{9:020d}.json") == []


def race(spark: SparkSession, folder: Path, store: str) -> tuple[list[int], list[int]]:
    """Versions that each of two writers committed: one with a log store, one like delta-rs.

    The other writer links its files at the same time or, in the worst case, as soon as a temporary
    file of the version exists.
    """
    theirs: list[int] = []
    ours: list[int] = []
    draft = folder / "other_writer"
    draft.write_text("other_writer\n")
    begin = threading.Barrier(2)

    def other_writer() -> None:
        for number in range(ROUNDS):
            version = folder / f"{number:020d}.json"
            begin.wait()
            deadline = time.monotonic() + number % 2 * 0.05
            while time.monotonic() < deadline:
                if any(version.name in path.name for path in folder.iterdir()):
                    break
            try:
                os.link(draft, version)
                theirs.append(number)
            except FileExistsError:
                pass

    thread = threading.Thread(target=other_writer)
    thread.start()
    for number in range(ROUNDS):
        begin.wait()
        try:
            publish(spark, folder / f"{number:020d}.json", "ours", store=store)
            ours.append(number)
        except Exception as error:
            assert "FileAlreadyExistsException" in str(error)
    thread.join()
    return ours, theirs


def test_exactly_one_of_two_concurrent_writers_commits_each_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = race(spark, tmp_path, LINK)
    assert sorted(theirs + ours) == list(range(ROUNDS))
    for number in range(ROUNDS):
        text = (tmp_path / f"{number:020d}.json").read_text()
        assert text == ("other_writer\n" if number in theirs else "ours\n")


def test_commits_are_overwritten_with_the_log_store_of_delta(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The negative control: the race detects overwritten commits."""
    ours, theirs = race(spark, tmp_path, "io.delta.storage.LocalLogStore")
    assert set(ours) & set(theirs)


def test_version_is_readable_when_a_checksum_of_a_deleted_file_remains(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / ".00000000000000000001.json.crc").write_bytes(b"crc\0\0\0\x02\0\1\2\3\4")
    publish(spark, tmp_path / "00000000000000000001.json", "a")
    store, conf = log_store(spark)
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "00000000000000000001.json"))
    assert store.read(path, conf).next() == "a"


@pytest.mark.parametrize("action", ["append", "delete", "optimize"])
def test_both_commits_are_kept_when_another_engine_commits_during_a_batch(
    spark: SparkSession, harness: Harness, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    df = harness.prepare(spark.range(20).coalesce(1), (rule("positive", "id % 10 <> 0"),))
    writer = harness.writer()
    writer.write(df, 0)
    writer.write(df, 1)
    actions: dict[str, Callable[[DeltaTable], Any]] = {
        "append": lambda table: write_deltalake(table, pa.table({"id": [100]}), mode="append"),
        "delete": lambda table: table.delete("id = 1"),
        "optimize": lambda table: table.optimize.compact(),
    }
    commit = FencedTable.commit

    def after_another(self: FencedTable, *args: Any, **kwargs: Any) -> int:
        if self.ref == harness.target:
            actions[action](DeltaTable(self.ref.path))
        return commit(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FencedTable, "commit", after_another)
        assert writer.write(df, 2).version == 4
    numbers = sorted(row[0] for row in harness.rows().collect())
    once = [number for number in range(20) if number % 10]
    expected = {
        "append": [*once * 3, 100],
        "delete": [*[n for n in once if n != 1] * 3, 1],
        "optimize": once * 3,
    }
    assert numbers == sorted(expected[action])
    assert writer.write(df, 2).replayed
    assert not writer.write(df, 3).replayed
