"""Penstock's defaults of Spark settings; pure functions, no JVM."""

import os
import re
from collections.abc import Mapping

from penstock._model.paths import local_path

_PREFIX = "spark.databricks.delta."
_COMPILER_OPTIONS = " ".join(
    (
        # Java does not compile generated methods of more than 8,000 bytes, such as 40 rules.
        "-XX:-DontCompileHugeMethods",
        # With few cores, the optimizing compiler competes with Spark's start and with short
        # batches. Its thresholds are ten times higher; long loops are still compiled.
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
    )
)
_SECRETS = (
    "(?i)secret|passw|pwd|token|credential|access[.-]?key|api[.-]?key|account[.-]?key|private[.-]?key"
    "|jaas|sasl|keystore|truststore|connection[.-]?string|authorization|signature|fernet"
)
_IS_HERE = re.compile(r"spark://(localhost|127\.[\d.]+):")


def is_local(master: str) -> bool:
    """Whether driver and tasks share one JVM; `local-cluster[...]` starts separate executors."""
    return re.match(r"^local(\[|$)", master) is not None


def available_cores(master: str, user_conf: Mapping[str, str]) -> int | None:
    """Number of concurrent tasks, or `None` if it depends on the cluster."""
    match = re.match(r"^local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?$", master)
    if match:
        cores = match.group(1)
        if cores == "*":
            return (
                len(os.sched_getaffinity(0))
                if hasattr(os, "sched_getaffinity")
                else (os.cpu_count() or 1)
            )
        return int(cores) if cores else 1
    cluster = re.match(r"^local-cluster\[(\d+),(\d+),", master.replace(" ", ""))
    if cluster:
        return int(cluster.group(1)) * int(cluster.group(2))
    if "spark.cores.max" in user_conf:
        return int(user_conf["spark.cores.max"])
    if "spark.executor.instances" in user_conf:
        return int(user_conf["spark.executor.instances"]) * int(
            user_conf.get("spark.executor.cores", "1")
        )
    return None


def parallelism(cores: int) -> dict[str, str]:
    """Settings for a number of concurrent tasks; all can be changed in a session."""
    return {
        "spark.sql.shuffle.partitions": str(cores),
        f"{_PREFIX}snapshotPartitions": str(min(cores, 16)),
        # The number of tasks of VACUUM's file listing; Spark's default is 10000.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores * 4),
    }


def session_defaults(
    master: str, user_conf: Mapping[str, str], storage_root: str
) -> dict[str, str]:
    """Defaults of every pipeline; the caller applies the user's settings over them."""
    is_on_disk = local_path(storage_root) is not None
    conf = {
        "spark.master": master,
        # The meaning of tables and rules must not depend on the machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # Delta everywhere, without Hive.
        "spark.sql.extensions": (
            # Its rule must come before that of Delta, which lists files by a query.
            "penstock.delta.BatchFiles,io.delta.sql.DeltaSparkSessionExtension"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.sources.default": "delta",
        # Delta's parser drops the parameters of `spark.sql(query, args)`; the analyzer fills them.
        "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
        # If true, Python functions over Parquet or Delta files hang (4.2.0, SPARK-58241).
        "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
        # State on disk with small checkpoints.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # One pool per flow, so that a large batch does not starve the small ones.
        "spark.scheduler.mode": "FAIR",
        "spark.locality.wait": "0s",
        # Every flow has its own generated code; 100 entries are too few for a large pipeline.
        "spark.sql.codegen.cache.maxEntries": "1000",
        "spark.driver.defaultJavaOptions": _COMPILER_OPTIONS,
        "spark.executor.defaultJavaOptions": _COMPILER_OPTIONS,
        # A commit with permanent conflicts should fail, not retry ten million times.
        f"{_PREFIX}maxCommitAttempts": "100",
        # Small commits follow each other closely: a checkpoint every ten of them is a stall.
        f"{_PREFIX}properties.defaults.checkpointInterval": "50",
        # Delta verifies the list of files in its checksums by recomputing the table's state.
        f"{_PREFIX}allFilesInCrc.enabled": "false",
        # A write into few partitions, as into table and quarantine, need not sort its rows first.
        "spark.sql.maxConcurrentOutputFileWriters": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _SECRETS,
        "spark.sql.redaction.options.regex": _SECRETS + "|url",
    }
    if user_conf.get("spark.ui.enabled", "false").lower() != "true":
        # Spark renders the plan of each query for the UI; the default mode takes longer.
        conf["spark.sql.ui.explainMode"] = "simple"
    cores = available_cores(master, user_conf)
    if cores is not None:
        conf |= parallelism(cores)
    if is_local(master) or _IS_HERE.match(master):
        conf["spark.driver.host"] = "localhost"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
        conf["spark.driver.memory"] = "2g"
    if is_local(master):
        # The executor is the driver. With the default, Spark removes it for missing heartbeats
        # after a pause (a suspended laptop, a changed clock), and ends the JVM ten minutes later.
        conf["spark.storage.blockManagerHeartbeatTimeoutMs"] = "3650d"
    if is_on_disk:
        # Publishes a version atomically (`_local.jvm`); Delta's own log store for local and shared
        # disks overwrites concurrent commits of other processes.
        conf["spark.delta.logStore.file.impl"] = "penstock.delta.LinkLogStore"
    # Creates a version only if it does not exist; Delta's own log store overwrites concurrent
    # commits of other drivers.
    conf["spark.delta.logStore.s3a.impl"] = "penstock.storage.ObjectLogStore"
    # Hadoop's default, `analytics`, caches what it read: after an object was overwritten, some
    # readers get the former content.
    conf["spark.hadoop.fs.s3a.input.stream.type"] = "classic"
    # Each pause is twice as long as the one before: with Hadoop's default, 20, it takes more than a
    # day.
    conf["spark.hadoop.fs.s3a.retry.throttle.limit"] = "10"
    # Delta's own log stores for these file systems, with a check of the lease.
    conf["spark.delta.logStore.abfss.impl"] = "penstock.storage.AzureLogStore"
    conf["spark.delta.logStore.gs.impl"] = "penstock.storage.GcsLogStore"
    conf["spark.delta.logStore.hdfs.impl"] = "penstock.storage.HdfsLogStore"
    # Hadoop has a class of its own for `gs:`, whose jar Penstock does not use.
    conf["spark.hadoop.fs.gs.impl"] = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
    conf["spark.hadoop.fs.AbstractFileSystem.gs.impl"] = (
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS"
    )
    # Google's class cannot parse Hadoop's default, `64m`.
    conf["spark.hadoop.fs.gs.block.size"] = "67108864"
    # GOOGLE_APPLICATION_CREDENTIALS, or the service account of the machine.
    conf["spark.hadoop.fs.gs.auth.type"] = "APPLICATION_DEFAULT"
    if storage_root.startswith("s3a:"):
        # A rename is a copy on S3: checkpoint files appear when their upload is complete.
        conf["spark.sql.streaming.checkpointFileManagerClass"] = (
            "penstock.storage.ObjectCheckpointFiles"
        )
    if is_on_disk and is_local(master):
        # Hadoop's own classes fork chmod and readlink for every file; these do not. Not
        # on a cluster: executors load the jar after their JVM has started.
        conf["spark.hadoop.fs.file.impl"] = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
        conf["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        )
    return conf
