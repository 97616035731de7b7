"""Reads of storage by commands: local storage without Spark, which takes a second to import."""

import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._model.exception_text import first_line
from penstock._model.pipeline import PipelineSettings
from penstock._tables.files import local_path
from penstock._tables.layout import layout_of
from penstock._tables.read import preview
from penstock.errors import PenstockError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock._execution.state_reader import StateSection
    from penstock._launch import OpenPipeline
    from penstock._tables.read.preview import QuarantineSummary, TablePreview


@dataclass(frozen=True)
class ReadableStorage:
    settings: PipelineSettings
    shown: Callable[[str], str] = str  # restores the paths of the pipeline's storage in a string


def read_table(settings: PipelineSettings, name: str, limit: int) -> "TablePreview":
    if local_path(settings.storage) is not None:
        return preview.read_table(settings, name, limit)
    with storage_session(settings) as spark:
        from penstock._tables.read.remote_storage import RemoteTables

        return RemoteTables(spark, settings).read_table(name, limit)


def read_quarantine(
    settings: PipelineSettings, name: str, limit: int, *, ids: bool = False
) -> "TablePreview":
    if local_path(settings.storage) is not None:
        return preview.read_quarantine(settings, name, limit, ids=ids)
    with storage_session(settings) as spark:
        from penstock._tables.read.remote_storage import RemoteTables

        return RemoteTables(spark, settings).read_quarantine(name, limit)


def list_quarantines(settings: PipelineSettings) -> "list[QuarantineSummary]":
    if local_path(settings.storage) is not None:
        return preview.list_quarantines(settings)
    with storage_session(settings) as spark:
        from penstock._tables.read.remote_storage import RemoteTables

        return RemoteTables(spark, settings).list_quarantines()


@contextmanager
def readable_storage(
    settings: PipelineSettings, spark: "SparkSession | None" = None, flows: Collection[str] = ()
) -> Iterator[ReadableStorage]:
    """The storage of a pipeline if it is local, otherwise a temporary copy of its small files.

    `spark` is the session of an open pipeline; by default, one is opened. With `flows`, only
    their checkpoints are copied, and no logs of tables.
    """
    if local_path(settings.storage) is not None:
        yield ReadableStorage(settings)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-storage-") as folder:
        with storage_session(settings) if spark is None else nullcontext(spark) as session:
            from penstock._tables.read.remote_storage import copy_small_files

            copy_small_files(session, layout_of(settings), Path(folder), flows)
        copied = replace(settings, storage=folder)

        def shown(text: str) -> str:
            return text.replace(folder, settings.storage.rstrip("/"))

        try:
            yield ReadableStorage(copied, shown)
        except PenstockError as error:
            error.message = shown(error.message)
            raise


def pipeline_storage(
    pipeline: "OpenPipeline", flow: str
) -> AbstractContextManager[ReadableStorage]:
    """The checkpoints of one flow of an open pipeline; later changes are not in a copy."""
    name = pipeline.flow(flow).flow.name
    return readable_storage(pipeline.settings, pipeline.spark, [name])


def read_flow_state(
    settings: PipelineSettings, flow: str, *, operator: int | None, limit: int
) -> "tuple[StateSection, ...]":
    from penstock._execution.state_reader import read_flow
    from penstock._launch import state_store

    holder = {"update": "state show", "command": "penstock state show"}
    with stopped_storage(settings, **holder) as spark:
        layout, store = layout_of(settings), state_store(settings, spark)
        return read_flow(spark, layout, store, flow, operator=operator, limit=limit)


@contextmanager
def stopped_storage(settings: PipelineSettings, **holder: str) -> "Iterator[SparkSession]":
    """A session without queries that excludes updates; refused commands are shown `holder`."""
    from penstock._runtime.leases import NOT_STOPPABLE, PipelineLeases
    from penstock._session import open_session, spark_log

    log = spark_log(settings, str(uuid.uuid4()))
    holder = {"pipeline": settings.name, **holder, **NOT_STOPPABLE}
    with (
        PipelineLeases(settings.home, holder) as leases,
        open_session(settings, log_file=log, leases=leases, analysis_only=True) as spark,
    ):
        yield spark


@contextmanager
def storage_session(settings: PipelineSettings) -> "Iterator[SparkSession]":
    from penstock._session import open_session

    with (
        tempfile.TemporaryDirectory(prefix="penstock-reading-") as scratch,
        open_session(
            settings, log_file=Path(scratch) / "spark.log", warehouse=scratch, analysis_only=True
        ) as spark,
    ):
        try:
            yield spark
        except PenstockError:
            raise
        except Exception as error:
            raise SpecError(
                "STORAGE_NOT_READABLE",
                f"the storage {settings.storage} cannot be read: {first_line(error)}",
                hint="Spark needs the jars of that file system (setting spark.jars) and its "
                "credentials (spark.hadoop.*), as for a run",
            ) from error
