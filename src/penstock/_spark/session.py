"""Starts and stops the Spark session of a pipeline, and watches its JVM."""

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock._model.spark_version import require_supported_pair
from penstock._spark.executors import ship_package
from penstock._spark.failures import with_causes
from penstock._spark.hadoop_configuration import shrink_hadoop_configuration
from penstock._spark.jvm import conf_folder, end_jvm, reason_of, start_jvm, starts_directly
from penstock._spark.jvm_names import remember_names
from penstock._spark.session_defaults import is_local, session_defaults
from penstock._spark.spark_log import SparkLog
from penstock.errors import DefinitionErrors, FlowError, SetupError

_WATCH_SECONDS = 2.0
_BROKEN_SECONDS = 3.0
_EXTENSIONS = "spark.sql.extensions"
_LOG4J = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to start Spark.

    Attributes:
        app_name: Spark's application name.
        storage_root: Root URI of the pipeline's storage.
        warehouse: Spark's warehouse folder, `<storage_root>/warehouse` by default. Spark creates
            it, so a dry run should point it at a temporary folder.
        master: Master URL; `None` means that of spark-defaults.conf, or `local[*]`.
        configuration: The user's settings. They override every default. Keys that do not start
            with `spark.` are set on the session, for `spark.conf.get`.
        jars: Paths of jars that Spark needs.
        store_jars: Paths of further jars. They come last in the class path, which then begins like
            that of the AppCDS archive: otherwise Java refuses the archive.
        java_options: Extra options of the driver's JVM, such as an AppCDS archive.
        log_file: Output of the JVM, without secrets; only its owner may read it.
        pass_fds: File descriptors that the JVM inherits.
        analysis_only: No rows are processed; the JVM is tuned for a fast start.
        while_starting: Called when the JVM's process has been started and does not respond yet.
        python: Executable file that is sent to a cluster's executors as their Python. It is in the
            working directory, where the driver finds it under the same relative path.
    """

    app_name: str
    storage_root: str
    warehouse: str | None = None
    master: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)
    jars: tuple[str, ...] = ()
    store_jars: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()
    log_file: str
    pass_fds: tuple[int, ...] = ()
    analysis_only: bool = False
    while_starting: Callable[[], object] = lambda: None
    python: Path | None = None


def borrow_session() -> SparkSession | None:
    """Return the classic SparkSession that already exists in this process, if any.

    Raises `SESSION_WITHOUT_DELTA` if it cannot read and write Delta tables.
    """
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None or spark._sc._jsc is None:
        return None
    require_supported_pair(spark.version)
    if "DeltaSparkSessionExtension" not in (spark.conf.get(_EXTENSIONS, "") or ""):
        raise SetupError(
            "SESSION_WITHOUT_DELTA",
            "the active SparkSession was built without Delta Lake",
            hint="stop it, or build it with spark.sql.extensions="
            "io.delta.sql.DeltaSparkSessionExtension and the Delta jars",
        )
    return spark


def build_session(options: SessionOptions) -> SparkSession:
    """Start the JVM and the session.

    Raises `SetupError` if a session exists already, or, with the last lines of the log, if the
    start fails.
    """
    if SparkContext._active_spark_context is not None:
        raise SetupError(
            "SESSION_EXISTS",
            "a SparkContext is already active in this process",
            hint="stop it first, or let the pipeline borrow it",
        )
    conf = effective_configuration(options)
    python = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = python
    # PySpark prints every analysis error to stderr as JSON, even one that is caught.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    log = SparkLog(Path(options.log_file))
    with _same_interrupt_handler():
        gateway = start_jvm(
            conf,
            log,
            directly=starts_directly(_user_configuration(options)),
            last_jars=options.store_jars,
            pass_fds=options.pass_fds,
            analysis_only=options.analysis_only,
            while_starting=options.while_starting,
        )
        remember_names(gateway)
        try:
            spark_conf = SparkConf(loadDefaults=False)
            for key, value in conf.items():
                spark_conf.set(key, value)
            context = SparkContext(conf=spark_conf, gateway=gateway)
            spark = SparkSession(context)
            spark._jsparkSession.sessionState()  # refuses wrong values of `spark.sql.*`
            shrink_hadoop_configuration(spark)
            if not is_local(conf["spark.master"]):
                ship_package(spark)
        except BaseException as error:
            # Before the JVM ends: it provides the text of Java's exceptions.
            reason = reason_of(error) if isinstance(error, Exception) else ""
            end_jvm(gateway, time.monotonic() + 5)
            if isinstance(error, SetupError) or not isinstance(error, Exception):
                raise
            raise SetupError(
                "SPARK_START_FAILED",
                f"Spark did not start: {reason}{log.tail()}",
                hint="check the settings `spark.*` and the Spark log",
            ) from error
    for key, value in options.configuration.items():
        if not key.startswith("spark."):
            spark.conf.set(key, value)
    return spark


def stop_session(spark: SparkSession, timeout_seconds: float = 30.0) -> None:
    """Stop Spark and wait for the end of its JVM, which is killed after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    gateway = spark._sc._gateway
    # A hanging query or listener must not exceed the deadline.
    stopper = threading.Thread(target=_stop_quietly, args=(spark,), daemon=True)
    stopper.start()
    stopper.join(max(0.0, deadline - time.monotonic()))
    if gateway is not None:
        end_jvm(gateway, deadline)


@contextlib.contextmanager
def jvm_watch(spark: SparkSession, on_death: Callable[[int], None]) -> Iterator[None]:
    """Call `on_death` with the exit code, on a separate thread, if the JVM ends in the block.

    A dead JVM does not report the end of a query.
    """
    process: subprocess.Popen[bytes] | None = getattr(spark._sc._gateway, "proc", None)
    if process is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_WATCH_SECONDS)
                if not over.is_set():
                    on_death(code)
                return

    thread = threading.Thread(target=watch, name="jvm watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def jvm_exit_code(spark: SparkSession, error: BaseException | None = None) -> int | None:
    """Exit code of Spark's JVM; `None` while it runs, or if another process started it.

    If a broken connection caused the `error`, this waits for the process: the connection may break
    shortly before the process ends.
    """
    process: subprocess.Popen[bytes] | None = getattr(spark._sc._gateway, "proc", None)
    if process is None:
        return None
    errors = error.errors if isinstance(error, DefinitionErrors) else (error,)
    if any(_is_broken(cause) for each in errors for cause in with_causes(each)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_BROKEN_SECONDS)
    return process.poll()


def _is_broken(error: BaseException) -> bool:
    is_call = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return is_call or isinstance(error, ConnectionError)


def jvm_died(exit_code: int, *, flow: str = "", log: SparkLog | None = None) -> FlowError:
    """The error to report when Spark's JVM has ended by itself, with the last lines of its log.

    `exit_code` is negative for a signal.
    """
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    what = f"flow {flow!r}: " if flow else ""
    tail = "" if log is None else log.tail()
    return FlowError(
        "JVM_DIED",
        f"{what}Spark's JVM ended with {ended}{tail}",
        flow=flow,
        retryable=False,
        hint="the end of the Spark log has the reason; out of memory: raise spark.driver.memory",
    )


def effective_configuration(options: SessionOptions) -> dict[str, str]:
    """All `spark.*` settings of the session: defaults < spark-defaults.conf < the user's.

    Class path, jars, Java options and session extensions are added to those of the user.
    """
    conf_of_user = _user_configuration(options)
    master = conf_of_user["spark.master"]
    conf = session_defaults(master, conf_of_user, options.storage_root)
    warehouse = options.warehouse or f"{options.storage_root.rstrip('/')}/warehouse"
    conf["spark.sql.warehouse.dir"] = warehouse
    conf["spark.app.name"] = options.app_name
    extensions = [name.strip() for name in conf_of_user.get(_EXTENSIONS, "").split(",")]
    missing = [name for name in conf[_EXTENSIONS].split(",") if name not in extensions]
    conf.update(conf_of_user)
    conf[_EXTENSIONS] = ",".join(filter(None, (*missing, *extensions)))
    # Hadoop's file system and an AppCDS archive use only the class path of the JVM; spark.jars is
    # for executors.
    _append(conf, "spark.driver.extraClassPath", os.pathsep.join(options.jars), os.pathsep)
    if not is_local(master):
        _append(conf, "spark.jars", ",".join((*options.jars, *options.store_jars)), ",")
    if options.python is not None and not is_local(master) and "spark.pyspark.python" not in conf:
        conf["spark.pyspark.python"] = f"./{options.python.name}"
        conf["spark.executorEnv.PEX_INTERPRETER"] = "1"
        _append(conf, "spark.files", options.python.as_uri(), ",")
    if options.java_options:
        _append(conf, "spark.driver.extraJavaOptions", shlex.join(options.java_options), " ")
    if "log4j" not in conf.get("spark.driver.extraJavaOptions", ""):
        log4j = shlex.quote(f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}")
        _append(conf, "spark.driver.extraJavaOptions", log4j, " ")
    return conf


def _user_configuration(options: SessionOptions) -> dict[str, str]:
    """The user's `spark.*` settings: spark-defaults.conf < the pipeline's; always with a master."""
    conf = spark_defaults()
    conf.update({k: v for k, v in options.configuration.items() if k.startswith("spark.")})
    master = options.master or conf.get("spark.master", "local[*]")
    needs_no_cluster = options.analysis_only and not is_local(master)
    return conf | {"spark.master": "local[*]" if needs_no_cluster else master}


def _append(conf: dict[str, str], key: str, value: str, separator: str) -> None:
    if value:
        conf[key] = separator.join(filter(None, (conf.get(key), value)))


# The syntax of Java properties: a key ends at the first blank, `=` or `:`.
_PROPERTY = re.compile(r"([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+(?![=:\s]))(\S.*)")


def spark_defaults() -> dict[str, str]:
    """The settings of `spark-defaults.conf`."""
    conf: dict[str, str] = {}
    path = conf_folder() / "spark-defaults.conf"
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            match = _PROPERTY.match(line.strip())
            if match is not None:
                conf[match[1]] = match[2]
    return conf


def _stop_quietly(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):
        spark.stop()


@contextlib.contextmanager
def _same_interrupt_handler() -> Iterator[None]:
    """Restore the handler of SIGINT, which SparkContext replaces."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def has_format(spark: SparkSession, name: str) -> bool:
    """Whether Spark has a data source: its own, of a jar, or a registered Python data source."""
    jvm: Any = spark._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(name, spark._jsparkSession.sessionState().conf())
    except Py4JJavaError:
        return False
    return True


def jvm_log(spark: SparkSession) -> SparkLog | None:
    """The log of Spark's JVM, if this process has started it."""
    return getattr(spark._sc._gateway, "spark_log", None)
