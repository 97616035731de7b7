"""The Spark session of a pipeline: built from its settings, or that of the calling process."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._execution.storage_lease import StorageLease, has_java_classes
from penstock._local.cds import is_training, java_options
from penstock._local.jars import SPARK_JAR_SETS, STORE_JAR_SETS, class_path, sync
from penstock._local.java import require_java
from penstock._model.pipeline import PipelineSettings
from penstock._model.spark_version import require_spark, require_supported_pair
from penstock._observe.log import event_directory
from penstock._project.packed import packed_python
from penstock._project.secrets import remember_settings, resolve_secrets
from penstock._runtime.leases import PipelineLeases, lease_seconds
from penstock._spark.call_sites import own_columns
from penstock._spark.hive import derby_folder, hive_configuration, require_derby, require_hive
from penstock._spark.session import (
    SessionOptions,
    borrow_session,
    build_session,
    jvm_died,
    jvm_exit_code,
    jvm_log,
    stop_session,
)
from penstock._tables.files import local_path
from penstock._tables.session_conf import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def open_session(
    settings: PipelineSettings,
    *,
    log_file: Path,
    warehouse: str | None = None,
    leases: PipelineLeases | None = None,
    analysis_only: bool = False,
    while_starting: Callable[[], object] = lambda: None,
) -> "Iterator[SparkSession]":
    """Open the session of a pipeline, and change to its working directory.

    Args:
        settings: The pipeline.
        log_file: File for the output of Spark's JVM.
        warehouse: Spark's warehouse folder instead of the default.
        leases: Leases of a command that writes: inherited by the JVM; a remote storage is leased
            as well.
        analysis_only: No queries will run.
        while_starting: Called after Java's process has been started, before it responds.
    """
    remember_settings(settings)
    os.chdir(settings.root)
    borrowed = borrow_session()
    if borrowed is not None:  # of the calling process, as in tests; it is left running
        if settings.metastore is not None:
            require_hive(borrowed)
        with (
            session_conf(borrowed, _configuration(settings), is_borrowed=True),
            own_columns(),
            _remote_lease(borrowed, settings, leases, is_borrowed=True),
        ):
            yield borrowed
        return
    require_supported_pair()
    require_java()
    if local_path(settings.storage) is None:
        lease_seconds(settings.configuration)  # fails before Spark starts
    stores = list(_store_jar_sets(settings))
    if stores:
        require_spark("4.2", f"storage on {stores[0]}")  # Hadoop 3.5
    python = packed_python()
    if python is not None:
        sync([*SPARK_JAR_SETS, *stores])
    all_jars = class_path([*SPARK_JAR_SETS, *stores])
    jars = class_path(SPARK_JAR_SETS)
    hive = _hive(settings)
    derby = derby_folder(hive)
    if derby is not None and leases is not None:
        require_derby(derby)
    spark = build_session(
        SessionOptions(
            app_name=settings.name,
            storage_root=settings.storage,
            warehouse=warehouse,
            master=settings.master,
            configuration={**hive, **_configuration(settings)},
            jars=tuple(str(jar) for jar in jars),
            store_jars=tuple(str(jar) for jar in all_jars if jar not in jars),
            java_options=(
                *java_options(jars),
                *(() if derby is None else (f"-Dderby.stream.error.file={derby}.log",)),
            ),
            log_file=str(log_file),
            pass_fds=() if leases is None else (leases.fd,),
            analysis_only=analysis_only,
            while_starting=while_starting,
            python=python,
        )
    )
    try:
        with own_columns(), _remote_lease(spark, settings, leases):
            yield spark
    except Exception as error:
        exit_code = jvm_exit_code(spark, error)
        if exit_code is None:
            raise
        raise jvm_died(exit_code, log=jvm_log(spark)) from None
    finally:
        # Writing a class archive at the end of a training run takes longer than a normal stop.
        stop_session(spark, timeout_seconds=300.0 if is_training() else 30.0)


@contextlib.contextmanager
def _remote_lease(
    spark: "SparkSession",
    settings: PipelineSettings,
    leases: PipelineLeases | None,
    *,
    is_borrowed: bool = False,
) -> Iterator[None]:
    if leases is None or local_path(settings.storage) is not None or not has_java_classes(spark):
        yield
        return
    with StorageLease.acquire(
        spark,
        settings.home,
        leases.holder,
        lease_seconds(settings.configuration),
        on_wait=leases.on_wait,
        is_borrowed=is_borrowed,
    ) as lease:
        leases.remote = lease
        try:
            yield
        finally:
            leases.remote = None


def _store_jar_sets(settings: PipelineSettings) -> Iterator[str]:
    """Jar sets of the stores that the storage, a path, a table or a setting refers to."""
    tables = (table.path for table in settings.tables.values())
    deferred = () if settings.defer is None else (settings.defer.storage,)
    places = (settings.storage, *deferred, *settings.paths.values(), *tables)
    used = {place.partition(":")[0] for place in places}
    for name, (prefix, schemes) in STORE_JAR_SETS.items():
        if used.intersection(schemes) or any(prefix in key for key in settings.configuration):
            yield name


def _configuration(settings: PipelineSettings) -> dict[str, str]:
    """Values for `spark.conf.get`: parameters and configuration, with resolved secrets.

    They override the values that Databricks sets for every pipeline, which many projects read.
    """
    databricks = {
        "pipelines.id": settings.name,
        "pipelines.catalog": settings.catalog,
        "pipelines.schema": settings.schema,
        "pipelines.target": settings.schema,
        "spark.databricks.unityCatalog.enabled": "true",
    }
    return databricks | _resolved(settings, {**settings.parameters, **settings.configuration})


def _hive(settings: PipelineSettings) -> dict[str, str]:
    """Settings of the session for the metastore, with resolved secrets."""
    if settings.metastore is None:
        return {}
    return hive_configuration(_resolved(settings, settings.metastore.options), settings.storage)


def _resolved(settings: PipelineSettings, options: Mapping[str, str]) -> dict[str, str]:
    return {key: resolve_secrets(value, root=settings.root) for key, value in options.items()}


def spark_log(settings: PipelineSettings, update_id: str) -> Path:
    """The log file of Spark's JVM: below the storage root if that is local."""
    return event_directory(settings).parent / "logs" / f"spark-{update_id}.log"
