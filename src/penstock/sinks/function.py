"""Sinks that are functions of the user: called per micro-batch, with helpers at hand."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from penstock._api.batches import MicroBatch, writing
from penstock._model.flow import Flow
from penstock._model.paths import real_path
from penstock._spark.failures import flow_error, full_text
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import last_number
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.prepare import read_version
from penstock.errors import DefinitionError, PenstockError
from penstock.sinks.foreach import write_rows
from penstock.sinks.report import SinkCommit


class FunctionSinkWriter:
    """Calls a function for the batches of one flow.

    Args:
        spark: Any session of the application.
        function: Takes rows and batch id; paths and tables are found in it as in source files.
        pipeline: Its name.
        flow: Whose batches these are.
        epoch: Of its checkpoint.
        notes: Folder for what `once_per_batch` remembers.
        map_path: The place that a path of the user's stands for.
    """

    def __init__(
        self,
        spark: SparkSession,
        function: Callable[..., None],
        *,
        pipeline: str,
        flow: Flow,
        epoch: str,
        notes: str,
        map_path: Callable[[str], str],
    ) -> None:
        self._spark = spark
        self._function = function
        self._pipeline = pipeline
        self._flow = flow
        self._epoch = epoch
        self._notes = notes
        self._map_path = map_path

    def write(self, df: DataFrame, batch_id: int) -> SinkCommit:
        """Call the function with one micro-batch; for `foreachBatch`.

        Raises:
            PenstockError: The function raised.
        """
        kill_point("before_write", self._flow.name, batch_id)
        batch = MicroBatch(
            pipeline=self._pipeline, flow=self._flow.name, epoch=self._epoch, batch_id=batch_id
        )
        tools = _Tools(self._spark, batch, self._notes, self._map_path)
        try:
            with writing(tools):
                self._function(df, batch_id)
        except PenstockError as error:
            if error.origin is None:
                error.origin = self._flow.origin
            raise
        except Exception as error:
            # Its text only: a TypeError of the user's code is no bug of ours.
            raise flow_error(full_text(error), self._flow, batch_id=batch_id) from error
        kill_point("after_target_commit", self._flow.name, batch_id)
        return SinkCommit(rows=None)


class _Tools:
    """See `BatchTools`."""

    def __init__(
        self, spark: SparkSession, batch: MicroBatch, notes: str, map_path: Callable[[str], str]
    ) -> None:
        self.batch = batch
        self._spark = spark
        self._notes = notes
        self._map_path = map_path
        self._written: set[tuple[str, str]] = set()

    def write_delta(
        self,
        df: DataFrame,
        path: str,
        *,
        name: str,
        mode: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> bool:
        place = real_path(path, self._map_path)
        if (place, name) in self._written:
            raise DefinitionError(
                "BATCH_WRITE_REPEATED",
                f"batch {self.batch.batch_id} writes {path} twice"
                + (f" under the name {name!r}" if name else ""),
                hint="the second write would be taken for a repetition of the first: give each one "
                'a name, idempotent_delta_write(df, path, name="...")',
            )
        self._written.add((place, name))
        app_id = f"{self.batch.app_id}/{name}" if name else self.batch.app_id
        exists = read_version(self._spark, place) is not None
        if exists and last_number(DeltaJvm(self._spark), place, app_id) >= self.batch.batch_id:
            df.write.format("noop").mode("overwrite").save()
            return False
        # Both options also guard against a writer that commits between the look and this commit.
        writer = df.write.format("delta").mode(mode).options(**options)
        writer = writer.option("txnAppId", app_id).option("txnVersion", self.batch.batch_id)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.save(place)
        return True

    def each_row(self, df: DataFrame, writer: object) -> None:
        write_rows(df, writer, self.batch.batch_id)

    def once(self, action: Callable[[], object], name: str) -> bool:
        files = StorageFiles(self._spark)
        note = f"{self._notes}/{quote(name, safe='')}"
        known = files.read(note)
        if known is not None and int(known) >= self.batch.batch_id:
            return False
        action()
        files.write(note, str(self.batch.batch_id))
        return True
