"""The contract of sources as tests that subclasses inherit."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from penstock._tables.files import StorageFiles
from penstock._tables.read.checkpoint_files import Checkpoint, read_checkpoint
from penstock.errors import PlanError
from penstock.sources.base import (
    EARLIEST,
    OpenedSource,
    Position,
    Range,
    Read,
    Source,
    StartKind,
    StartPosition,
)
from penstock.sources.memory import FolderMemory
from penstock.testing.streams import (
    Finished,
    Row,
    check_refusals,
    flow_named,
    forget_last_commit,
    hidden_values,
    run_to_end,
)

FIRST: list[Row] = [(1, "a"), (2, None), (3, "c")]
SECOND: list[Row] = [(4, "d"), (5, "e")]


class SourceSuite:
    """Contract tests of a source, with one stream. They require a fixture `spark`.

    Each test has a separate folder, with which it calls `options` and `paths`.

    Attributes:
        source: The class under test.
        format: Format as in `spark.readStream.format`; by default the first format of the class.
        schema: Argument of `schema()`; `None` if it is not called.
        wrong_options: Changes to `options` that must be refused; `None` leaves an option out.
        secrets: Names of options whose values must not be in messages.
        has_latest: Whether the stream can start at the latest position.
        has_ranges: Whether a range that was read can be read again.
        has_lag: Whether the lag is available.
        failures: Texts of failures, mapped to the conditions of their errors.
    """

    source: ClassVar[type[Source]]
    format: ClassVar[str] = ""
    schema: ClassVar[str | None] = None
    wrong_options: ClassVar[Sequence[Mapping[str, str | None]]] = ()
    secrets: ClassVar[tuple[str, ...]] = ()
    has_latest: ClassVar[bool] = False
    has_ranges: ClassVar[bool] = False
    has_lag: ClassVar[bool] = False
    failures: ClassVar[Mapping[str, str]] = {}

    # -- overridden by subclasses --------------------------------------------------------------

    def options(self, folder: Path) -> Mapping[str, str]:
        """Options of a reader that starts at the earliest position."""
        return {}

    def paths(self, folder: Path) -> tuple[str, ...]:
        """The arguments of `load`."""
        return ()

    def add_rows(self, spark: SparkSession, folder: Path, rows: Sequence[Row]) -> None:
        """Write rows, pairs of `id` and `name`, to the system."""
        raise NotImplementedError

    def query(self, rows: DataFrame) -> DataFrame:
        """The rows as `id` and `name`."""
        return rows.select("id", "name")

    # -- options -------------------------------------------------------------------------------

    def test_wrong_options_are_refused_and_no_secret_is_shown(self, tmp_path: Path) -> None:
        """Valid options are accepted; invalid ones are refused."""
        source, options = self.source(), self.options(tmp_path)
        source.check_options(options, is_stream=True)
        shown = f"{source.endpoints(options)}"
        assert hidden_values(options, self.secrets, shown) == []
        check = partial(source.check_options, is_stream=True)
        check_refusals(check, options, self.wrong_options, self.secrets)

    # -- rows ----------------------------------------------------------------------------------

    def test_every_row_is_read_once_over_restarts_and_the_same_ones_when_a_batch_is_repeated(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """A batch that is run again after a crash has the same rows."""
        self.add_rows(spark, tmp_path, FIRST)
        first = self._read(spark, tmp_path)
        assert _all_of(first) == _sorted(FIRST)
        forget_last_commit(tmp_path / "checkpoint")
        self.add_rows(spark, tmp_path, SECOND)
        again = self._read(spark, tmp_path)
        repeated = max(number for number, rows in first.items() if rows)
        assert again.pop(repeated) == first[repeated]
        assert _all_of(again) == _sorted(SECOND)
        assert _all_of(self._read(spark, tmp_path)) == []

    def test_the_name_shows_no_secret_and_failures_are_explained(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Only failures that the source causes are explained."""
        self.add_rows(spark, tmp_path, FIRST)
        opened = self._open(spark, tmp_path)
        shown = f"{opened.name} {self.source().describe(self._as_read(spark, tmp_path))}"
        assert shown.strip()
        assert hidden_values(self.options(tmp_path), self.secrets, shown) == []
        for text, condition in self.failures.items():
            error = opened.explain(text, flow_named("f"))
            assert error is not None, text
            assert error.condition == condition
        assert opened.explain("java.lang.IllegalStateException: other", flow_named("f")) is None
        assert not opened.lost({"description": "another source"})
        assert opened.lag({"description": "another source"}, lambda: None) is None

    # -- positions and lag ---------------------------------------------------------------------

    def test_a_start_position_decides_what_is_read(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """As after `checkpoint reset`, which determines the position."""
        self.add_rows(spark, tmp_path, FIRST)
        self._read(spark, tmp_path)
        now_ms = _now_ms()
        opened, done = self._open(spark, tmp_path), self._checkpoint(tmp_path)
        earliest, report = opened.start(EARLIEST, [done], now_ms)
        assert report.again is None or report.again > 0
        latest: Position | None = None
        try:
            latest, report = opened.start(StartPosition(kind=StartKind.LATEST), [done], now_ms)
        except PlanError as error:
            assert (error.condition, self.has_latest) == ("START_NOT_AVAILABLE", False)
        else:
            assert self.has_latest
            assert not report.again
        self.add_rows(spark, tmp_path, SECOND)
        rows = self._read(spark, tmp_path, earliest, checkpoint="earliest")
        assert _all_of(rows) == _sorted(FIRST + SECOND)
        if latest is not None:
            rows = self._read(spark, tmp_path, latest, checkpoint="latest")
            assert _all_of(rows) == _sorted(SECOND)

    def test_a_range_has_the_rows_that_were_read(self, spark: SparkSession, tmp_path: Path) -> None:
        """As in `backfill`: rows that the flow has not read yet are not in the range."""
        self.add_rows(spark, tmp_path, FIRST)
        self._read(spark, tmp_path)
        opened, done = self._open(spark, tmp_path), self._checkpoint(tmp_path)
        wanted = Range(flow="f", begin=EARLIEST, end=None, files=None, now_ms=_now_ms())
        try:
            position, report = opened.range(wanted, done)
        except PlanError as error:
            assert (error.condition, self.has_ranges) == ("BACKFILL_RANGE_INVALID", False)
            return
        assert self.has_ranges
        assert report.count > 0
        self.add_rows(spark, tmp_path, SECOND)
        rows = self._read(spark, tmp_path, position, checkpoint="range")
        assert _all_of(rows) == _sorted(FIRST)

    def test_what_waits_is_measured(self, spark: SparkSession, tmp_path: Path) -> None:
        """The lag is zero when all rows are read."""
        self.add_rows(spark, tmp_path, FIRST)
        opened, checkpoint = self._open(spark, tmp_path), tmp_path / "checkpoint"
        opened.prepare_start(str(checkpoint), [opened])
        finished = self._run(opened, {}, checkpoint)
        lag = self._lag(opened, finished)
        assert (lag is not None) == self.has_lag
        if lag is None:
            return
        assert lag["kind"]
        assert not lag.get("seconds_behind")
        self.add_rows(spark, tmp_path, SECOND)
        opened.prepare_start(str(checkpoint), [opened])
        waiting = self._lag(opened, finished)
        assert waiting is not None
        assert waiting != lag, "rows that wait are not seen"

    # -- helpers -------------------------------------------------------------------------------

    def _as_read(self, spark: SparkSession, folder: Path, position: Position | None = None) -> Read:
        source_format = self.format or self.source().formats[0]
        paths = self.paths(folder)

        def load(options: Mapping[str, str]) -> DataFrame:
            reader = spark.readStream.format(source_format).options(**options)
            if self.schema is not None:
                reader = reader.schema(self.schema)
            return reader.load(*paths)

        files = StorageFiles(spark)
        return Read(
            spark=spark,
            format=source_format,
            options=self.source().check_options(self.options(folder), is_stream=True),
            load=load,
            schema=self.schema,
            paths=paths,
            flow="f",
            position=position or {},
            memory=lambda key: FolderMemory(files, f"{folder.as_uri()}/memory/{key}"),
        )

    def _open(
        self, spark: SparkSession, folder: Path, position: Position | None = None
    ) -> OpenedSource:
        return self.source().open(self._as_read(spark, folder, position))

    def _run(
        self, opened: OpenedSource, batches: dict[int, list[Row]], checkpoint: Path
    ) -> Finished:
        opened.check_identity({}, flow_named("flow"), "target")

        def on_batch(batch: DataFrame, batch_id: int) -> None:
            opened.check_batch(str(checkpoint), batch_id)
            batches[batch_id] = _sorted([tuple(row) for row in batch.collect()])

        return run_to_end(self.query(opened.df).writeStream.foreachBatch(on_batch), checkpoint)

    def _read(
        self,
        spark: SparkSession,
        folder: Path,
        position: Position | None = None,
        *,
        checkpoint: str = "checkpoint",
    ) -> dict[int, list[Row]]:
        place, batches = folder / checkpoint, dict[int, list[Row]]()
        opened = self._open(spark, folder, position)
        if opened.prepare_start(str(place), [opened]) is not None:
            opened = self._open(spark, folder, position)
        self._run(opened, batches, place)
        return batches

    def _checkpoint(self, folder: Path) -> Checkpoint:
        return read_checkpoint("f", "epoch", folder / "checkpoint", is_current=True)

    def _lag(self, opened: OpenedSource, finished: Finished) -> dict[str, Any] | None:
        (entry,), (java_source,) = finished.reports[-1]["sources"], finished.java_sources
        return opened.lag(entry, lambda: java_source)


def _now_ms() -> int:
    return round(time.time() * 1000)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=str)


def _all_of(batches: Mapping[int, list[Row]]) -> list[Row]:
    return _sorted([row for rows in batches.values() for row in rows])
