"""What lies in a storage that is not on this machine, through Spark and Hadoop's FileSystem."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.exception_text import first_line
from penstock._model.name import DatasetName, resolve_name
from penstock._model.pipeline import PipelineSettings
from penstock._tables.layout import QUARANTINE_SUFFIX, StorageLayout, segment_name
from penstock._tables.preview import (
    FAILED_RULES_COLUMN,
    REASON_COLUMNS,
    QuarantineSummary,
    TablePreview,
    shown_name,
    shown_value,
    table_unknown,
)
from penstock.errors import SpecError

# Only names and sizes of these matter, and state stores may be large.
_LARGEST_COPIED = 16_000_000


class RemoteTables:
    """Tables of a storage that Spark reads; the counterpart of `_tables.preview`.

    Args:
        spark: Session whose Hadoop configuration knows the file system.
        settings: Of the pipeline.
    """

    def __init__(self, spark: SparkSession, settings: PipelineSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._layout = StorageLayout(settings.storage)

    def read_table(self, name: str, limit: int) -> TablePreview:
        """See `preview.read_table`."""
        return self._preview(name, limit)

    def read_quarantine(self, name: str, limit: int) -> TablePreview:
        """See `preview.read_quarantine`; without ids, which a replay takes on this machine only."""
        if not name.lower().endswith(QUARANTINE_SUFFIX):
            name += QUARANTINE_SUFFIX
        return self._preview(name, limit, only=REASON_COLUMNS)

    def list_quarantines(self) -> list[QuarantineSummary]:
        """See `preview.list_quarantines`."""
        summaries = []
        for name in sorted(self._names(), key=str):
            if not name.name.endswith(QUARANTINE_SUFFIX):
                continue
            rows = self._rows(str(name)).select(FAILED_RULES_COLUMN)
            rules = rows.select(F.explode(FAILED_RULES_COLUMN).alias("rule"))
            counts = {row["rule"]: row["count"] for row in rules.groupBy("rule").count().collect()}
            by_rule = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
            shown = shown_name(self._settings, name).removesuffix(QUARANTINE_SUFFIX)
            summaries.append(QuarantineSummary(table=shown, rows=rows.count(), by_rule=by_rule))
        return summaries

    def _preview(self, name: str, limit: int, only: tuple[str, ...] = ()) -> TablePreview:
        df = self._rows(name)
        columns = tuple(column for column in only if column in df.columns) or tuple(df.columns)
        try:
            newest = df.orderBy(F.col("_metadata.file_modification_time").desc())
            rows = newest.select(*[df[f"`{column}`"] for column in columns]).limit(limit).collect()
            total = df.count()
        except PySparkException as error:
            raise SpecError(
                "TABLE_NOT_READABLE", f"table {name!r} cannot be read: {first_line(error)}"
            ) from error
        values = [row.asDict(recursive=True) for row in rows]
        return TablePreview(
            columns=columns,
            rows=tuple(tuple(shown_value(row[column]) for column in columns) for row in values),
            total=total,
        )

    def _rows(self, name: str) -> DataFrame:
        settings = self._settings
        try:
            resolved = resolve_name(name, catalog=settings.catalog, schema=settings.schema)
        except ValueError as error:
            raise SpecError("INVALID_DATASET_NAME", str(error)) from None
        if resolved not in (names := list(self._names())):
            raise table_unknown(settings, name, names)
        try:
            return self._spark.read.format("delta").load(self._layout.table_path(resolved))
        except AnalysisException as error:
            raise SpecError(
                "TABLE_NOT_READABLE", f"table {name!r} cannot be read: {first_line(error)}"
            ) from error

    def _names(self) -> Iterator[DatasetName]:
        system, root = _hadoop(self._spark, f"{self._layout.root}/tables/*/*/*/_delta_log")
        for log in system.globStatus(root) or ():
            parts = str(log.getPath().getParent()).rsplit("/", 3)[1:]
            yield DatasetName(*(segment_name(part) for part in parts))


def copy_small_files(spark: SparkSession, storage: str, folder: Path) -> None:
    """Copy what commands about checkpoints read: checkpoints, epochs of flows, logs of tables.

    Files of state stores become files of the same size without a content.

    Args:
        spark: Session whose Hadoop configuration knows the file system.
        storage: URI of the storage.
        folder: Becomes a local storage of the same layout.
    """
    root = StorageLayout(storage).root
    system, top = _hadoop(spark, root)
    start = len(str(top.toUri().getPath()).rstrip("/")) + 1
    logs = [
        str(log.getPath())
        for log in system.globStatus(_path(spark, f"{root}/tables/*/*/*/_delta_log")) or ()
    ]
    for place in (f"{root}/checkpoints", f"{root}/state/flows", *logs):
        if not system.exists(_path(spark, place)):
            continue
        files = system.listFiles(_path(spark, place), True)
        while files.hasNext():
            status = files.next()
            local = folder / str(status.getPath().toUri().getPath())[start:]
            local.parent.mkdir(parents=True, exist_ok=True)
            parts = local.relative_to(folder).parts
            # checkpoints/<flow>/<epoch>/state
            is_state = parts[0] == "checkpoints" and parts[3:4] == ("state",)
            if is_state or int(status.getLen()) > _LARGEST_COPIED:
                with local.open("wb") as file:
                    file.truncate(int(status.getLen()))
            else:
                system.copyToLocalFile(False, status.getPath(), _path(spark, local.as_uri()), True)


def _path(spark: SparkSession, uri: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(uri)


def _hadoop(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    path = _path(spark, uri)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path
