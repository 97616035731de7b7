"""Starts and stops the Spark session of a pipeline.

Penstock starts the JVM rather than the first `SparkSession.builder`: its output goes to a log file,
it inherits the file descriptors of the table lease, settings that may hold secrets are not in the
process list, and for a local master Spark's launcher (two more JVM starts) is skipped.
"""

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock._model.spark_version import require_supported_pair
from penstock._observe.masking import shown
from penstock._spark.executors import prepare_executors
from penstock._spark.hadoop_configuration import shrink_hadoop_configuration
from penstock._spark.jvm_names import remember_names
from penstock._spark.session_defaults import is_local, session_defaults
from penstock._spark.spark_log import SparkLog
from penstock.errors import FlowError, SetupError

_EMPTY: Mapping[str, str] = MappingProxyType({})
_START_SECONDS = 120.0
_WATCH_SECONDS = 2.0
_BROKEN_SECONDS = 3.0
_LOG4J = Path(__file__).with_name("log4j2.properties")

# From org.apache.spark.launcher.JavaModuleOptions of Spark 4.2.
_JVM_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

# On a machine of few cores the optimizing compiler competes with Spark's start. With ten times
# higher thresholds a short update takes a fifth less time; long loops are still compiled.
_LATE_OPTIMIZING = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Without data, optimized code never pays off.
_NO_OPTIMIZING = ("-XX:TieredStopAtLevel=1",)

# Settings that require spark-submit.
_NEEDS_SUBMIT = ("spark.jars", "spark.jars.packages", "spark.files", "spark.archives")
# Settings that are passed to spark-submit; the others are passed through the gateway.
_SUBMIT_PREFIXES = (
    "spark.master",
    "spark.app.name",
    "spark.driver.",
    "spark.jars",
    "spark.files",
    "spark.archives",
    "spark.submit.",
)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to start Spark.

    Attributes:
        app_name: Spark's application name.
        storage_root: Root URI of the pipeline's storage; a `file:` root (or none) selects the
            local-disk defaults.
        warehouse: Spark's warehouse folder, `<storage_root>/warehouse` by default. Spark creates
            it, so a dry run should point it at a temporary folder.
        master: Master URL; `None` = from spark-defaults.conf, else `local[*]`.
        configuration: The user's settings. They win over every default. Keys that do not start
            with `spark.` are set on the session, for `spark.conf.get`.
        jars: Paths of jars that Spark needs.
        java_options: Extra options of the driver's JVM, such as an AppCDS archive.
        log_file: Output of the JVM, without secrets; only its owner may read it.
        pass_fds: File descriptors that the JVM inherits.
        analysis_only: No rows are processed; the JVM is tuned for a fast start.
        python: Executable file that a cluster's executors get and use as their Python. It is in the
            working directory, where the driver finds it under the same relative path.
    """

    app_name: str
    storage_root: str | None = None
    warehouse: str | None = None
    master: str | None = None
    configuration: Mapping[str, str] = field(default_factory=lambda: _EMPTY, repr=False)
    jars: tuple[str, ...] = ()
    java_options: tuple[str, ...] = ()
    log_file: str
    pass_fds: tuple[int, ...] = ()
    analysis_only: bool = False
    python: Path | None = None


def borrow_session() -> SparkSession | None:
    """Return the classic SparkSession that already exists in this process, if any.

    Raises `SESSION_WITHOUT_DELTA` if it cannot read and write Delta tables.
    """
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None or spark._sc._jsc is None:
        return None
    require_supported_pair(spark.version)
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise SetupError(
            "SESSION_WITHOUT_DELTA",
            "the active SparkSession was built without Delta Lake",
            hint="stop it, or build it with spark.sql.extensions="
            "io.delta.sql.DeltaSparkSessionExtension and the Delta jars",
        )
    return spark


def build_session(options: SessionOptions) -> SparkSession:
    """Start the JVM and the session.

    A failure is a `SetupError` with the last lines of the log, also if a session exists already.
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
        gateway = _start_jvm(conf, options, log)
        remember_names(gateway)
        try:
            spark_conf = SparkConf(loadDefaults=False)
            for key, value in conf.items():
                spark_conf.set(key, value)
            context = SparkContext(conf=spark_conf, gateway=gateway)
            spark = SparkSession(context)
            shrink_hadoop_configuration(spark)
            if not is_local(conf["spark.master"]):
                prepare_executors(spark, conf)
        except BaseException as error:
            # The text of Java's exceptions comes from the JVM.
            reason = _reason(error) if isinstance(error, Exception) else ""
            _end_jvm(gateway, time.monotonic() + 5)
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
    """Stop Spark and return when its JVM is gone; past the deadline the JVM is killed."""
    deadline = time.monotonic() + timeout_seconds
    gateway = spark._sc._gateway
    # A hanging query or listener must not exceed the deadline.
    stopper = threading.Thread(target=_stop_quietly, args=(spark,), daemon=True)
    stopper.start()
    stopper.join(max(0.0, deadline - time.monotonic()))
    if gateway is not None:
        _end_jvm(gateway, deadline)


@contextlib.contextmanager
def jvm_watch(spark: SparkSession, on_death: Callable[[int], None]) -> Iterator[None]:
    """Call `on_death` with the exit code, on a separate thread, if the JVM ends inside.

    A dead JVM does not report the end of a query.
    """
    gateway: Any = spark._sc._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
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

    With the `error` of a call of the JVM it waits: the connection may break shortly before the
    process ends.
    """
    gateway: Any = spark._sc._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return None
    is_cut = isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError)
    if is_cut:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_BROKEN_SECONDS)
    return process.poll()


def jvm_died(exit_code: int, *, flow: str = "", log: str = "") -> FlowError:
    """The error to report when Spark's JVM has ended by itself.

    `exit_code` is negative for a signal; `log` is from `log_tail`.
    """
    ended = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    what = f"flow {flow!r}: " if flow else ""
    return FlowError(
        "JVM_DIED",
        f"{what}Spark's JVM ended with {ended}{log}",
        flow=flow,
        retryable=False,
        hint="the end of the Spark log has the reason; out of memory: raise spark.driver.memory",
    )


def effective_configuration(options: SessionOptions) -> dict[str, str]:
    """All `spark.*` settings of the session: defaults < spark-defaults.conf < the user's."""
    conf_of_user = _spark_defaults_file()
    conf_of_user.update({k: v for k, v in options.configuration.items() if k.startswith("spark.")})
    if options.master is not None:
        conf_of_user["spark.master"] = options.master
    master = conf_of_user.get("spark.master", "local[*]")
    if options.analysis_only and not is_local(master):
        master = conf_of_user["spark.master"] = "local[*]"
    root = options.storage_root
    warehouse = options.warehouse or (f"{root.rstrip('/')}/warehouse" if root else None)
    conf = session_defaults(master, conf_of_user, storage_root=root, warehouse=warehouse)
    conf["spark.app.name"] = options.app_name
    conf.update(conf_of_user)
    _add_jars(conf, options.jars)
    if options.python is not None and not is_local(master):
        _add_python(conf, options.python)
    if options.java_options:
        _append(conf, "spark.driver.extraJavaOptions", shlex.join(options.java_options), " ")
    _append(conf, "spark.driver.extraJavaOptions", _log4j_option(conf), " ")
    return conf


def _log4j_option(conf: Mapping[str, str]) -> str:
    has_own = "log4j" in conf.get("spark.driver.extraJavaOptions", "")
    return "" if has_own else shlex.quote(f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}")


def _add_jars(conf: dict[str, str], jars: tuple[str, ...]) -> None:
    if not jars:
        return
    if is_local(conf["spark.master"]):
        # On the class path of the JVM rather than in spark.jars: Hadoop's file system and an
        # AppCDS archive see only this one.
        _append(conf, "spark.driver.extraClassPath", os.pathsep.join(jars), os.pathsep)
    else:
        _append(conf, "spark.jars", ",".join(jars), ",")


def _add_python(conf: dict[str, str], python: Path) -> None:
    if "spark.pyspark.python" not in conf:
        conf["spark.pyspark.python"] = f"./{python.name}"
        conf["spark.executorEnv.PEX_INTERPRETER"] = "1"
        _append(conf, "spark.files", python.as_uri(), ",")


def _append(conf: dict[str, str], key: str, value: str, separator: str) -> None:
    if value:
        conf[key] = separator.join(filter(None, (conf.get(key), value)))


def _conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")


def _spark_defaults_file() -> dict[str, str]:
    conf: dict[str, str] = {}
    path = _conf_folder() / "spark-defaults.conf"
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            parts = line.strip().replace("=", " ", 1).split(None, 1)
            if len(parts) == 2 and not parts[0].startswith("#"):
                conf[parts[0]] = parts[1].strip()
    return conf


def _start_jvm(conf: Mapping[str, str], options: SessionOptions, log: SparkLog) -> JavaGateway:
    popen: dict[str, Any] = {
        "pass_fds": options.pass_fds,
        "stdout": log.writer,
        "stderr": log.writer,
    }
    direct = (
        is_local(conf["spark.master"])
        and not any(key in conf for key in _NEEDS_SUBMIT)
        and not any(key.startswith("spark.submit.") for key in conf)
        and not (_conf_folder() / "spark-env.sh").exists()
    )
    try:
        if direct:
            compiler = _NO_OPTIMIZING if options.analysis_only else _LATE_OPTIMIZING
            gateway = _launch(_java_command(conf, compiler), popen)
        else:
            gateway = _launch(_submit_command(conf), popen)
        gateway.spark_log = log
        return gateway
    except Exception as error:
        raise SetupError(
            "JVM_START_FAILED",
            f"the Java process of Spark did not start: {_reason(error)}{log.tail()}",
            hint="check spark.driver.memory, spark.driver.extraJavaOptions, and `java -version` "
            "(17 or newer)",
        ) from error
    finally:
        log.started()


def _java_command(conf: Mapping[str, str], compiler: tuple[str, ...]) -> list[str]:
    """PySpark's gateway server without spark-submit."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    spark_home = Path(_find_spark_home())
    class_path = os.pathsep.join(
        filter(
            None,
            (
                conf.get("spark.driver.extraClassPath"),
                str(_conf_folder()),
                str(next(spark_home.glob("jars/slf4j-api-*.jar"), "")),
                str(spark_home / "jars" / "*"),
                os.environ.get("HADOOP_CONF_DIR"),
            ),
        )
    )
    return [
        java,
        "-cp",
        class_path,
        f"-Xmx{conf['spark.driver.memory']}",
        *_JVM_OPTIONS,
        *compiler,
        *shlex.split(conf.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
        "org.apache.spark.api.python.PythonGatewayServer",
    ]


def _submit_command(conf: Mapping[str, str]) -> list[str]:
    """The command of PySpark's `launch_gateway`, with the settings for spark-submit."""
    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
    for key, value in conf.items():
        if key.startswith(_SUBMIT_PREFIXES):
            command += ["--conf", f"{key}={value}"]
    return command + shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))


def _launch(command: list[str], popen: dict[str, Any]) -> JavaGateway:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        info = Path(folder) / "gateway"
        env = {
            **os.environ,
            "SPARK_HOME": _find_spark_home(),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
        }
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.PIPE,  # the JVM ends at its end of file
            env=env,
            preexec_fn=_ignore_stop_signals,
            **popen,
        )
        try:
            port, secret = _read_gateway(info, process)
            gateway = _connect(port, secret)
        except BaseException:
            process.kill()
            process.wait()
            raise
    gateway.proc = process
    return gateway


def _ignore_stop_signals() -> None:
    """Let the JVM ignore signals that `timeout`, systemd or a terminal sends to all processes.

    A graceful stop needs it until the last batch is committed. HotSpot inherits ignored signals.
    The JVM ends with its standard input, even after a SIGKILL of this process.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _read_gateway(info: Path, process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    pause = threading.Event()
    deadline = time.monotonic() + _START_SECONDS
    while not info.exists():
        if process.poll() is not None:
            raise RuntimeError(f"java ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {_START_SECONDS:.0f} s")
        pause.wait(0.02)
    # The file is renamed into place when it is complete.
    with info.open("rb") as stream:
        port: int = read_int(stream)  # type: ignore[no-untyped-call]
        secret: str = UTF8Deserializer().loads(stream)  # type: ignore[no-untyped-call]
    return port, secret


_gateway_lock = threading.Lock()


def _connect(port: int, secret: str) -> JavaGateway:
    with _gateway_lock:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = secret
        try:
            return launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"]
            del os.environ["PYSPARK_GATEWAY_SECRET"]


def _stop_quietly(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):
        spark.stop()


def _end_jvm(gateway: JavaGateway, deadline: float) -> None:
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if process is not None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(max(0.5, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    log: SparkLog | None = getattr(gateway, "spark_log", None)
    if log is not None:
        log.finish()
    if SparkContext._gateway is gateway:
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _same_interrupt_handler() -> Iterator[None]:
    """Restore the handler of SIGINT, which SparkContext replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_JAVA_CAUSE = re.compile(r"^(?:: |Caused by: )(?:[\w$]+\.)*([\w$]+(?:: [^\n]+)?)", re.MULTILINE)


def _reason(error: BaseException) -> str:
    """The first line of an exception; for Java, the outermost exception and the root cause."""
    text = str(error).strip()
    causes = _JAVA_CAUSE.findall(text)
    lines = (causes[0], causes[-1]) if causes else text.splitlines()[:1] or [type(error).__name__]
    return shown("; caused by ".join(dict.fromkeys(lines)))


def log_tail(spark: SparkSession) -> str:
    """The last lines of the log of a JVM that has ended, as the end of a message."""
    log: SparkLog | None = getattr(spark._sc._gateway, "spark_log", None)
    return "" if log is None else log.tail()
