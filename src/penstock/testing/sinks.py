"""The contract of sinks as tests that subclasses inherit."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession

from penstock._analysis.sinks import column_types
from penstock._execution.listener import written_records
from penstock._execution.sink_writers import stream_writer
from penstock._model.flow import OutputMode
from penstock.errors import PenstockError
from penstock.sinks.base import BatchSink, Sink, SinkCommit, Write
from penstock.testing.streams import (
    Row,
    check_refusals,
    flow_named,
    forget_last_commit,
    hidden_values,
    run_to_end,
)

FIRST: list[Row] = [(1, "a"), (2, None), (3, "c")]
SECOND: list[Row] = [(4, "d")]


class SinkSuite:
    """Contract tests of a sink, with one flow. They require a fixture `spark`.

    Each test calls `options` once, with a separate folder.

    Attributes:
        sink: The class under test.
        format: Format as in `create_sink`; by default the first format of the class.
        mode: Output mode of the flow.
        wrong_options: Changes to `options` that must be refused; `None` leaves an option out.
        secrets: Names of options whose values must not be in messages.
        is_repeated: Whether a batch that is written again has duplicate rows.
        lost_checkpoint: Condition of the error for a flow that starts with a new checkpoint;
            empty if this is allowed, and the flow adds the rows again, or replaces them by key.
        counts_rows: Whether the number of written rows is always available.
        failures: Texts of failures, mapped to the conditions of their errors.
    """

    sink: ClassVar[type[Sink]]
    format: ClassVar[str] = ""
    mode: ClassVar[OutputMode] = OutputMode.APPEND
    wrong_options: ClassVar[Sequence[Mapping[str, str | None]]] = ()
    secrets: ClassVar[tuple[str, ...]] = ()
    is_repeated: ClassVar[bool] = False
    lost_checkpoint: ClassVar[str] = ""
    counts_rows: ClassVar[bool] = True
    failures: ClassVar[Mapping[str, str]] = {}

    # -- overridden by subclasses --------------------------------------------------------------

    def options(self, folder: Path) -> Mapping[str, str]:
        """Options of an empty sink; paths are absolute."""
        raise NotImplementedError

    def read_back(self, spark: SparkSession, options: Mapping[str, str]) -> Iterable[Row]:
        """All rows of the sink as pairs of `id` and `name`, in any order."""
        raise NotImplementedError

    def query(self, rows: DataFrame) -> DataFrame:
        """The query of the flow over the rows (`id BIGINT, name STRING`)."""
        return rows

    def function(self, options: Mapping[str, str]) -> Callable[..., object] | None:
        """The function of a function sink."""
        return None

    # -- options -------------------------------------------------------------------------------

    def test_wrong_options_are_refused_and_no_secret_is_shown(self, tmp_path: Path) -> None:
        """Valid options are accepted, and the check is idempotent; invalid options are refused."""
        sink, options = self.sink(), self.options(tmp_path)
        checked = sink.check_options(options)
        assert sink.check_options(checked) == checked
        check_refusals(sink.check_options, options, self.wrong_options, self.secrets)

    def test_what_is_read_off_options_holds_no_secret(self, tmp_path: Path) -> None:
        """Facts do not require valid options; neither facts nor endpoints contain secrets."""
        sink, options = self.sink(), self.options(tmp_path)
        shown = f"{sink.facts(options)} {sink.endpoints(options)}"
        assert hidden_values(options, self.secrets, shown) == []
        references = dict.fromkeys(options, "${secret:NAME}")
        assert "${" not in str(sink.facts(references)), "a reference is no location"
        assert not sink.facts({}).is_keyed
        assert sink.map_options(options, str) == options

    def test_every_refused_mode_has_a_reason_and_a_way_out(self) -> None:
        """At least one mode is supported."""
        sink = self.sink()
        assert self.mode in sink.modes
        assert set(sink.modes).isdisjoint(sink.refused_modes)
        assert all(sink.refused_modes.values())
        assert bool(sink.refused_modes) <= bool(sink.instead)

    def test_failures_are_explained(self) -> None:
        """Only failures that the system causes are explained."""
        sink, flow = self.sink(), flow_named("f")
        for text, condition in self.failures.items():
            error = sink.explain(text, flow, 3)
            assert error is not None, text
            assert (error.condition, bool(error.hint)) == (condition, True)
        assert sink.explain("java.lang.IllegalStateException: something else", flow, 3) is None

    # -- rows ----------------------------------------------------------------------------------

    def test_rows_are_there_once_and_counted_after_a_restart(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """A flow resumes from its checkpoint; a restart without new rows writes no rows."""
        options = self.options(tmp_path)
        assert self._run(spark, tmp_path, options, add=FIRST) in self._counts(3)
        self._has(spark, options, FIRST)
        assert self._run(spark, tmp_path, options, add=SECOND) in self._counts(1)
        self._has(spark, options, FIRST + SECOND)
        self._run(spark, tmp_path, options)
        self._has(spark, options, FIRST + SECOND)

    def test_a_batch_that_is_written_again_has_the_promised_effect(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Simulates a crash between the commit of the sink and that of the checkpoint."""
        options = self.options(tmp_path)
        self._run(spark, tmp_path, options, add=FIRST)
        forget_last_commit(tmp_path / "first")
        self._run(spark, tmp_path, options, add=SECOND)
        self._has(spark, options, FIRST * (1 + self.is_repeated) + SECOND)

    def test_a_new_checkpoint_has_the_promised_effect(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """As after `checkpoint reset --from earliest`: batch ids start at 0 again."""
        options = self.options(tmp_path)
        self._run(spark, tmp_path, options, add=FIRST)
        try:
            self._run(spark, tmp_path, options, epoch="second")
        except PenstockError as error:
            assert error.condition == self.lost_checkpoint
            self._has(spark, options, FIRST)
        else:
            assert not self.lost_checkpoint, "a new checkpoint is not refused"
            is_keyed = self.sink().facts(options).is_keyed
            self._has(spark, options, FIRST if is_keyed else FIRST * 2)

    # -- helpers -------------------------------------------------------------------------------

    def _run(
        self,
        spark: SparkSession,
        folder: Path,
        options: Mapping[str, str],
        *,
        add: Sequence[Row] = (),
        epoch: str = "first",
    ) -> int | None:
        """Run the flow until all rows are written; returns their number, if available."""
        rows = folder / "rows"
        rows.mkdir(exist_ok=True)
        if add:
            lines = [json.dumps({"id": number, "name": name}) for number, name in add]
            target = rows / f"{len(list(rows.iterdir()))}.json"
            target.write_text("\n".join(lines), encoding="utf-8")
        df = self.query(spark.readStream.schema("id BIGINT, name STRING").json(str(rows)))
        sink, flow = self.sink(), flow_named("f")
        checked = sink.check_options(sink.map_options(options, str))
        sink.check_query(checked, column_types(df), self.mode)
        opened = sink.open(
            Write(
                spark=spark,
                pipeline="suite",
                flow=flow,
                epoch=epoch,
                checkpoint=str(folder / epoch),
                schema=df.schema,
                format=self.format or sink.formats[0],
                options=checked,
                function=self.function(options),
                notes=str(folder / "notes" / epoch),
            )
        )
        commits: list[SinkCommit] = []

        def on_batch(batch: DataFrame, batch_id: int) -> None:
            assert isinstance(opened, BatchSink)
            commits.append(opened.write(batch, batch_id))

        writer = stream_writer(opened, df, self.mode, on_batch)
        finished = run_to_end(writer, folder / epoch)
        counts: list[int | None] = [commit.rows for commit in commits]
        if opened.observes_rows:
            counts = [written_records(report) for report in finished.reports]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def _counts(self, rows: int) -> tuple[int | None, ...]:
        return (rows,) if self.counts_rows else (rows, None)

    def _has(self, spark: SparkSession, options: Mapping[str, str], wanted: list[Row]) -> None:
        rows = sorted(self.read_back(spark, options), key=str)
        assert rows == sorted(wanted, key=str)
