"""The Spark session of a pipeline: built from its settings, or that of the calling process."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._local.cds import is_training, java_options
from penstock._local.jars import S3_JAR_SET, SPARK_JAR_SETS, class_path
from penstock._local.java import require_java
from penstock._model.pipeline import PipelineSettings
from penstock._model.spark_version import require_spark, require_supported_pair
from penstock._project.secrets import remember_settings, resolve_secrets
from penstock._spark.call_sites import own_columns
from penstock._spark.session import (
    SessionOptions,
    borrow_session,
    build_session,
    jvm_died,
    jvm_exit_code,
    log_tail,
    stop_session,
)
from penstock._tables.files import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def open_session(
    settings: PipelineSettings,
    *,
    log_file: Path,
    warehouse: str | None = None,
    pass_fds: tuple[int, ...] = (),
    analysis_only: bool = False,
) -> "Iterator[SparkSession]":
    """The session that a pipeline runs in, and its working directory.

    Args:
        settings: The pipeline.
        log_file: Takes what Spark's JVM prints.
        warehouse: Spark's warehouse folder instead of the default.
        pass_fds: Open files that the JVM inherits.
        analysis_only: No queries will run.
    """
    remember_settings(settings)
    os.chdir(settings.root)
    borrowed = borrow_session()
    if borrowed is not None:  # of the calling process, as in tests; it is left running
        with _configured(borrowed, settings), own_columns():
            yield borrowed
        return
    require_supported_pair()
    require_java()
    uses_s3 = _uses_s3(settings)
    if uses_s3:
        require_spark("4.2", "storage on s3a")  # Hadoop 3.5
    jars = class_path([*SPARK_JAR_SETS, *([S3_JAR_SET] if uses_s3 else [])])
    spark = build_session(
        SessionOptions(
            app_name=settings.name,
            storage_root=settings.storage,
            warehouse=warehouse,
            master=settings.master,
            configuration=_configuration(settings),
            jars=tuple(str(jar) for jar in jars),
            java_options=tuple(java_options(jars)),
            log_file=str(log_file),
            pass_fds=pass_fds,
            analysis_only=analysis_only,
        )
    )
    try:
        with own_columns():
            yield spark
    except Exception as error:
        exit_code = jvm_exit_code(spark, error)
        if exit_code is None:
            raise
        raise jvm_died(exit_code, log=log_tail(spark)) from None
    finally:
        # Writing a class archive at the end of a training run takes longer than any stop.
        stop_session(spark, timeout_seconds=300.0 if is_training() else 30.0)


def _uses_s3(settings: PipelineSettings) -> bool:
    """Whether storage, mapped paths or tables are on `s3a:`, or it is configured."""
    tables = (table.path for table in settings.tables.values())
    places = (settings.storage, *settings.paths.values(), *tables)
    is_configured = any("fs.s3a." in key for key in settings.configuration)
    return is_configured or any(place.startswith("s3a:") for place in places)


def _configuration(settings: PipelineSettings) -> dict[str, str]:
    """What `spark.conf.get` finds: parameters and configuration, secrets filled in."""
    configured = {**settings.parameters, **settings.configuration}
    return {key: resolve_secrets(value, root=settings.root) for key, value in configured.items()}


@contextlib.contextmanager
def _configured(spark: "SparkSession", settings: PipelineSettings) -> Iterator[None]:
    configured = _configuration(settings)
    before = {key: spark.conf.get(key, None) for key in configured}
    for key, value in configured.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def spark_log(settings: PipelineSettings, update_id: str) -> Path:
    """Where the output of Spark's JVM goes: below the storage root when that is local."""
    root = local_path(settings.storage) or Path(settings.root) / ".penstock"
    return root / "logs" / f"spark-{update_id}.log"
