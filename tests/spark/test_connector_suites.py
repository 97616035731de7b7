"""Built-in sources and sinks that need no server pass the suites of all connectors."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.batches import idempotent_delta_write
from penstock.errors import CheckpointError, FlowError
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.function import FunctionSink
from penstock.sources.delta.source import DeltaSource
from penstock.sources.files.source import AutoLoaderSource, FileSource
from penstock.testing import SinkSuite, SourceSuite
from penstock.testing.streams import flow_named

SCHEMA = "id BIGINT, name STRING"
Rows = Sequence[tuple[Any, ...]]


def in_table(path: str) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, read without a Spark job."""
    columns = DeltaTable(path).to_pyarrow_table(columns=["id", "name"]).to_pydict()
    return list(zip(columns["id"], columns["name"], strict=True))


def an_older_checkpoint_is_refused(
    suite: SinkSuite, spark: Any, folder: Path, *, newest: int = 1, ends: int = 0
) -> None:
    """A checkpoint whose next batch ids are known to the sink is refused."""
    options, checkpoint = suite.options(folder), folder / "first"
    suite._run(spark, folder, options, add=[(0, "a")])
    shutil.copytree(checkpoint, folder / "copy")
    for number in range(newest):
        suite._run(spark, folder, options, add=[(number + 1, "b")])
    shutil.rmtree(checkpoint)
    (folder / "copy").rename(checkpoint)
    refused = f"SINK_CHECKPOINT_LOST.* ends at batch {ends}, but .* has batches up to {newest},"
    with pytest.raises(Exception, match=refused):
        suite._run(spark, folder, options)


class TestFileSink(SinkSuite):
    sink = FileSink
    wrong_options = (
        {"path": None},
        {"path": " "},
        {"CheckpointLocation": "x"},
        {"partitionBy": "id"},
    )
    lost_checkpoint = "SINK_CHECKPOINT_LOST"

    def options(self, folder: Path) -> Mapping[str, str]:
        return {"path": str(folder / "out")}

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        return map(tuple, spark.read.schema(SCHEMA).json(options["path"]).collect())

    def test_an_older_checkpoint_is_refused(self, spark: Any, tmp_path: Path) -> None:
        an_older_checkpoint_is_refused(self, spark, tmp_path)

    def test_another_folder_is_refused_because_its_log_would_lack_batches(
        self, spark: Any, tmp_path: Path
    ) -> None:
        options = self.options(tmp_path)
        self._run(spark, tmp_path, options, add=[(1, "a")])
        with pytest.raises(CheckpointError, match=r"SINK_BEHIND.* finished batch 0, but .* empty"):
            self._run(spark, tmp_path, {"path": str(tmp_path / "moved")})

    def test_columnar_files_are_written(self, spark: Any, tmp_path: Path) -> None:
        for self.format in ("parquet", "orc"):
            folder = tmp_path / self.format
            folder.mkdir()
            options = self.options(folder)
            assert self._run(spark, folder, options, add=[(1, "a"), (2, None)]) == 2
            rows = spark.read.format(self.format).load(options["path"]).collect()
            assert sorted(tuple(row) for row in rows) == [(1, "a"), (2, None)]


class TestDeltaSink(SinkSuite):
    sink = DeltaSink
    failures: ClassVar[Mapping[str, str]] = {
        "[DELTA_METADATA_MISMATCH] A metadata mismatch\n\nTable schema:\nroot\n-- id: string "
        "(nullable = true)\n\n\nData schema:\nroot\n-- id: long (nullable = true)\n\n": (
            "SINK_SCHEMA_INCOMPATIBLE"
        )
    }
    wrong_options = ({"path": None}, {"path": ""}, {"checkpointlocation": "x"})

    def options(self, folder: Path) -> Mapping[str, str]:
        return {"path": str(folder / "out")}

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        return in_table(options["path"])

    def test_an_older_checkpoint_is_refused(self, spark: Any, tmp_path: Path) -> None:
        an_older_checkpoint_is_refused(self, spark, tmp_path)


class TestFunctionSink(SinkSuite):
    """A function that writes with the helper: the same id in another epoch is another batch."""

    sink = FunctionSink
    counts_rows = False

    def options(self, folder: Path) -> Mapping[str, str]:
        return {"target": str(folder / "out")}

    def function(self, options: Mapping[str, str]) -> Callable[..., object]:
        return lambda df, _: idempotent_delta_write(df, options["target"])

    def read_back(self, spark: Any, options: Mapping[str, str]) -> Iterable[tuple[Any, ...]]:
        return in_table(options["target"])

    def test_an_older_checkpoint_is_refused(self, spark: Any, tmp_path: Path) -> None:
        # Batch 1 is already planned when the function is called.
        an_older_checkpoint_is_refused(self, spark, tmp_path, newest=2, ends=1)


class TestFileSource(SourceSuite):
    source = FileSource
    schema = SCHEMA
    has_latest = True
    has_ranges = True
    has_lag = True

    def paths(self, folder: Path) -> tuple[str, ...]:
        return (str(folder / "in"),)

    def add_rows(self, spark: Any, folder: Path, rows: Rows) -> None:
        target = folder / "in" / f"{rows[0][0]}.json"
        target.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"id": number, "name": name}) for number, name in rows]
        target.write_text("\n".join(lines), encoding="utf-8")


class TestAutoLoaderSource(TestFileSource):
    source = AutoLoaderSource

    def options(self, folder: Path) -> Mapping[str, str]:
        return {"cloudFiles.format": "json"}


class TestDeltaSource(SourceSuite):
    source = DeltaSource
    has_latest = True
    has_ranges = True
    has_lag = True
    wrong_options = ({"maxFilesPerTriger": "1"}, {"endingVersion": "1"})
    failures: ClassVar[Mapping[str, str]] = {
        "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] a data update": "SOURCE_ROWS_CHANGED",
        "[DELTA_SOURCE_IGNORE_DELETE] deleted data": "SOURCE_ROWS_CHANGED",
        "[DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS] Detected": "SOURCE_SCHEMA_CHANGED",
        "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG]": "SOURCE_SCHEMA_CHANGED",
        "[DELTA_MISSING_CHANGE_DATA] Error getting change data for range": "FLOW_FAILED",
        "[DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT] Schema": "FLOW_FAILED",
    }

    def test_files_that_vacuum_deleted_are_lost_rows(self, spark: Any, tmp_path: Path) -> None:
        self.add_rows(spark, tmp_path, [(1, "a")])
        opened, flow, table = self._open(spark, tmp_path), flow_named("f"), tmp_path / "table"
        for text in (
            f"java.io.FileNotFoundException: {table}/part-1.parquet",
            f"[FAILED_READ_FILE.FILE_NOT_EXIST] while reading file file://{table}/part-1.parquet",
            f"[DELTA_LOG_FILE_NOT_FOUND] Unable to retrieve the log at file:{table}/_delta_log.",
        ):
            error = opened.explain(text, flow)
            assert error is not None, text
            assert (error.condition, error.retryable) == ("SOURCE_ROWS_LOST", False)
            assert "not mounted" in (error.hint or "")
        for name in ("table_quarantine/part-1.parquet", "table/_delta_log/_last_checkpoint"):
            text = f"java.io.FileNotFoundException: {tmp_path / name}"
            assert opened.explain(text, flow) is None

    def test_start_outside_of_the_log_is_not_retried(self, spark: Any, tmp_path: Path) -> None:
        self.add_rows(spark, tmp_path, [(1, "a")])
        text = "[DELTA_VERSION_NOT_FOUND] Cannot time travel. Available versions: [0, 0]."
        read = self._as_read(spark, tmp_path)
        opened = self.source().open(replace(read, options={"startingVersion": "9"}))
        error = opened.explain(text, flow_named("f"))
        assert error is not None
        assert (error.condition, error.retryable) == ("START_NOT_AVAILABLE", False)
        assert "Available versions: [0, 0]" in str(error)
        # The failure of another table of the query.
        assert self._open(spark, tmp_path).explain(text, flow_named("f")) is None

    def test_folder_without_a_table_is_named(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(FlowError, match=f"no Delta table at {tmp_path}/table") as caught:
            self._open(spark, tmp_path)
        assert (caught.value.condition, caught.value.retryable) == ("PATH_NOT_FOUND", True)

    def test_a_table_that_is_created_again_during_a_run_is_not_read(
        self, spark: Any, tmp_path: Path
    ) -> None:
        self.add_rows(spark, tmp_path, [(1, "a")])
        opened, path = self._open(spark, tmp_path), f"{tmp_path}/table"
        end = {"reservoirVersion": 1, "index": -1, "isStartingVersion": False}
        progress = {"description": f"DeltaSource[file:{path}]", "endOffset": end}
        opened.check_identity({}, flow_named("f"), "f")
        opened.check_batch("", 0)
        assert "problem" not in (opened.lag(progress, lambda: None) or {})
        shutil.rmtree(path)
        self.add_rows(spark, tmp_path, [(2, "b")])
        self.add_rows(spark, tmp_path, [(3, "c")])
        spark.read.format("delta").load(path)  # updates the snapshot like the query
        assert "created again" in (opened.lag(progress, lambda: None) or {})["problem"]
        with pytest.raises(FlowError) as caught:
            opened.check_batch("", 1)
        assert caught.value.condition == "SOURCE_TABLE_REPLACED"

    def paths(self, folder: Path) -> tuple[str, ...]:
        return (str(folder / "table"),)

    def add_rows(self, spark: Any, folder: Path, rows: Rows) -> None:
        ids, names = zip(*rows, strict=True)
        table = pyarrow.table({"id": list(ids), "name": pyarrow.array(names, pyarrow.string())})
        write_deltalake(folder / "table", table, mode="append")
