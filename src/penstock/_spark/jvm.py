"""Starts and ends Spark's JVM.

Penstock starts the JVM itself, before the first `SparkSession.builder` would: its output goes to a
log file, it inherits the file descriptors of the pipeline's lease, settings that may contain
secrets are not in the process list, and for local masters and standalone clusters Spark's launcher
(two more JVM starts) is skipped.
"""

import contextlib
import locale
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock._observe.masking import shown
from penstock._spark.session_defaults import is_local
from penstock._spark.spark_log import SparkLog
from penstock.errors import SetupError

_START_SECONDS = 120.0

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

# Without data, optimized code never pays off.
_NO_OPTIMIZING = ("-XX:TieredStopAtLevel=1",)

# Settings of users that require spark-submit.
_NEEDS_SUBMIT = (
    "spark.jars",
    "spark.files",
    "spark.archives",
    "spark.submit.",
    "spark.kerberos.",
    "spark.driver.userClassPathFirst",
)
# Environment variables that only spark-submit and its launcher read.
_SUBMIT_VARIABLES = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS")
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

# Spark's launcher appends it to the class path of its JVM.
_LAST_JARS = "SPARK_DIST_CLASSPATH"


def conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")


def starts_directly(user_conf: Mapping[str, str]) -> bool:
    """Whether `start_jvm` needs no spark-submit for the user's settings.

    On a standalone cluster, the driver is a process like that of a local master; only its settings
    determine where the tasks run.
    """
    master = user_conf.get("spark.master", "local[*]")
    return (
        (is_local(master) or master.startswith("spark://"))
        and not any(key.startswith(_NEEDS_SUBMIT) for key in user_conf)
        and not any(os.environ.get(name) for name in _SUBMIT_VARIABLES)
        and not (conf_folder() / "spark-env.sh").exists()
    )


def start_jvm(
    conf: Mapping[str, str],
    log: SparkLog,
    *,
    directly: bool,
    last_jars: Sequence[str],
    pass_fds: tuple[int, ...],
    analysis_only: bool,
    while_starting: Callable[[], object],
) -> JavaGateway:
    """Start Spark's JVM and connect to it.

    `directly`: without spark-submit. `last_jars` come after Spark's own jars in the class path.
    Raises `JVM_START_FAILED` with the last lines of the log.
    """
    last = os.pathsep.join(filter(None, (os.environ.get(_LAST_JARS), *last_jars)))
    compiler = _NO_OPTIMIZING if analysis_only else ()
    try:
        command = _java_command(conf, compiler, last) if directly else _submit_command(conf)
        gateway = _launch(command, {_LAST_JARS: last}, log, pass_fds, while_starting)
        gateway.spark_log = log
        return gateway
    except Exception as error:
        raise SetupError(
            "JVM_START_FAILED",
            f"the Java process of Spark did not start: {reason_of(error)}{log.tail()}",
            hint="check spark.driver.memory, spark.driver.extraJavaOptions, `java -version` (17 or "
            "newer), and the number of open files that `ulimit -n` allows",
        ) from error
    finally:
        log.started()


def import_for_calls() -> None:
    """Import the modules that PySpark imports in its first Java call, such as pandas."""
    import pyspark.testing.utils  # noqa: F401


def _locale() -> dict[str, str]:
    """The variable that makes Java use UTF-8 for file names, as Python does in any locale."""
    encodings = locale.getencoding(), sys.getfilesystemencoding()
    of_java, of_python = (name.upper().replace("-", "") for name in encodings)
    return {"LC_ALL": "C.UTF-8"} if of_python == "UTF8" != of_java else {}


def _java_command(conf: Mapping[str, str], compiler: tuple[str, ...], last_jars: str) -> list[str]:
    """PySpark's gateway server without spark-submit."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    spark_home = Path(_find_spark_home())
    class_path = os.pathsep.join(
        filter(
            None,
            (
                conf.get("spark.driver.extraClassPath"),
                str(conf_folder()),
                str(next(spark_home.glob("jars/slf4j-api-*.jar"), "")),
                str(spark_home / "jars" / "*"),
                os.environ.get("HADOOP_CONF_DIR"),
                last_jars,
            ),
        )
    )
    memory = conf.get("spark.driver.memory") or os.environ.get("SPARK_DRIVER_MEMORY", "1g")
    return [
        java,
        "-cp",
        class_path,
        f"-Xmx{memory}",
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


def _launch(
    command: list[str],
    variables: Mapping[str, str],
    log: SparkLog,
    pass_fds: tuple[int, ...],
    while_starting: Callable[[], object],
) -> JavaGateway:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        info = Path(folder) / "gateway"
        environment = {
            **os.environ,
            **_locale(),
            **variables,
            "SPARK_HOME": _find_spark_home(),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
        }
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.PIPE,  # the JVM ends when this is closed
            stdout=log.writer,
            stderr=log.writer,
            env=environment,
            pass_fds=pass_fds,
            preexec_fn=_ignore_stop_signals,
        )
        try:
            while_starting()
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

    A graceful stop needs the JVM until the last batch is committed. HotSpot inherits ignored
    signals. The JVM ends when its standard input is closed, even by a SIGKILL of this process.
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


def end_jvm(gateway: JavaGateway, deadline: float) -> None:
    """End the JVM and wait for its end; after the deadline it is killed."""
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


_JAVA_CAUSE = re.compile(r"^(?:: |Caused by: )(?:[\w$]+\.)*([\w$]+(?:: [^\n]+)?)", re.MULTILINE)


def reason_of(error: BaseException) -> str:
    """The first line of an exception; for Java, the outermost exception and the root cause."""
    text = str(error).strip()
    causes = _JAVA_CAUSE.findall(text)
    lines = (causes[0], causes[-1]) if causes else text.splitlines()[:1] or [type(error).__name__]
    return shown("; caused by ".join(dict.fromkeys(lines)))
