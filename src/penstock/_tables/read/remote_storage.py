"""Reads tables and checkpoints of remote storage, with Spark and Hadoop's FileSystem."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.exception_text import first_line
from penstock._model.expectation import FAILED_RULES
from penstock._model.name import DatasetName, path_segment, segment_name
from penstock._model.pipeline import PipelineSettings
from penstock._model.sql_text import quoted
from penstock._tables.files import hadoop_path
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, layout_of
from penstock._tables.read.preview import (
    REASON_COLUMNS,
    QuarantineSummary,
    TablePreview,
    quarantine_name,
    resolve_table,
    shown_cell,
    shown_name,
    table_unknown,
)
from penstock.errors import SpecError

# Only names and sizes of larger files matter, and state stores may be large.
_LARGEST_COPIED = 16_000_000


class RemoteTables:
    """Tables of remote storage, read by Spark; the counterpart of `preview`."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._layout = layout_of(settings)

    def read_table(self, name: str, limit: int, only: tuple[str, ...] = ()) -> TablePreview:
        df = self._rows(name)
        columns = tuple(column for column in only if column in df.columns) or tuple(df.columns)
        try:
            newest = df.orderBy(F.col("_metadata.file_modification_time").desc())
            rows = newest.select(*[df[quoted(name)] for name in columns]).limit(limit).collect()
            total = df.count()
        except PySparkException as error:
            raise _not_readable(name, error) from error
        values = [row.asDict(recursive=True) for row in rows]
        return TablePreview(
            columns=columns,
            rows=tuple(tuple(shown_cell(row[column]) for column in columns) for row in values),
            total=total,
        )

    def read_quarantine(self, name: str, limit: int) -> TablePreview:
        """Like `preview.read_quarantine`, but without row ids."""
        return self.read_table(quarantine_name(name), limit, REASON_COLUMNS)

    def list_quarantines(self) -> list[QuarantineSummary]:
        summaries = []
        for name in sorted(self._names(), key=str):
            if not name.name.endswith(QUARANTINE_SUFFIX):
                continue
            table = self._rows(str(name))
            if FAILED_RULES not in table.columns:
                continue  # a dataset of this name
            rows = table.select(FAILED_RULES)
            rules = rows.select(F.explode(FAILED_RULES).alias("rule"))
            counts = {row["rule"]: row["count"] for row in rules.groupBy("rule").count().collect()}
            by_rule = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
            shown = shown_name(self._settings, name).removesuffix(QUARANTINE_SUFFIX)
            summaries.append(QuarantineSummary(table=shown, rows=rows.count(), by_rule=by_rule))
        return summaries

    def _rows(self, name: str) -> DataFrame:
        resolved = resolve_table(self._settings, name)
        names = list(self._names())
        if resolved.key not in {known.key for known in names}:
            raise table_unknown(self._settings, name, names)
        try:
            return self._spark.read.format("delta").load(self._layout.table_path(resolved))
        except AnalysisException as error:
            raise _not_readable(name, error) from error

    def _names(self) -> Iterator[DatasetName]:
        system, logs = hadoop_path(self._spark, f"{self._layout.root}/tables/*/*/*/_delta_log")
        for log in system.globStatus(logs) or ():
            parts = str(log.getPath().getParent()).rsplit("/", 3)[1:]
            yield DatasetName(*(segment_name(part) for part in parts))


def _not_readable(name: str, error: Exception) -> SpecError:
    message = f"table {name!r} cannot be read: {first_line(error)}"
    return SpecError("TABLE_NOT_READABLE", message)


def copy_small_files(
    spark: SparkSession, layout: StorageLayout, folder: Path, flows: Collection[str] = ()
) -> None:
    """Copy checkpoints, state files of flows and logs of tables into a local storage.

    Files of state stores become sparse files of the same size. With `flows`, only their checkpoints
    and the state files of all flows are copied.
    """
    root = layout.root
    system, top = hadoop_path(spark, root)
    start = len(str(top.toUri().getPath()).rstrip("/")) + 1
    _, pattern = hadoop_path(spark, f"{root}/tables/*/*/*/_delta_log")
    checkpoints = layout.checkpoints
    # Number of folders between the root and the files of a checkpoint.
    depth = checkpoints.removeprefix(root).count("/") + 2
    if flows:
        folders = [f"{checkpoints}/{path_segment(flow)}" for flow in flows]
    else:
        folders = [checkpoints, *(str(log.getPath()) for log in system.globStatus(pattern) or ())]
    for uri in (*folders, f"{layout.state_dir}/flows"):
        _, path = hadoop_path(spark, uri)
        if not system.exists(path):
            continue
        files = system.listFiles(path, True)
        while files.hasNext():
            status = files.next()
            local = folder / str(status.getPath().toUri().getPath())[start:]
            local.parent.mkdir(parents=True, exist_ok=True)
            parts = local.relative_to(folder).parts
            # checkpoints/<flow>/<epoch>/state
            is_state = uri.startswith(checkpoints) and "state" in parts[depth:-1]
            if is_state or int(status.getLen()) > _LARGEST_COPIED:
                with local.open("wb") as file:
                    file.truncate(int(status.getLen()))
            else:
                _, target = hadoop_path(spark, local.as_uri())
                system.copyToLocalFile(False, status.getPath(), target, True)
            # The time shows when a checkpoint was created, or a batch was finished.
            changed = int(status.getModificationTime()) * 1_000_000
            os.utime(local, ns=(changed, changed))
