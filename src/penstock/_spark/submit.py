"""Support for spark-submit: its settings and its signals.

Penstock starts a separate JVM, which inherits the lease and ignores stop signals. The JVM of
spark-submit only waits for this process and returns its exit code.
"""

import os
import signal
import threading
from typing import Any
from urllib.parse import urlsplit

from pyspark.java_gateway import ensure_callback_server_started, launch_gateway

_GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
# Settings that spark-submit adds itself.
_OWN = ("spark.app.name", "spark.app.submitTime", "spark.submit.deployMode")
_FORWARDED = ("TERM", "INT", "HUP")
_POLL_SECONDS = 1.0


class _Forwarder:
    """Receives signals in spark-submit's JVM; called on a thread of py4j."""

    def handle(self, number: Any) -> None:
        os.kill(os.getpid(), number.getNumber())

    class Java:
        implements = ("sun.misc.SignalHandler",)


def is_submitted() -> bool:
    """Whether spark-submit started this process, and `join_submit` was not called yet."""
    return _GATEWAY[0] in os.environ


def join_submit(application: str) -> dict[str, str]:
    """Make spark-submit forward its stop signals, and return the settings that it was given.

    `application` is the file that it runs; it is removed from `spark.files`, and not used as the
    application name. The master `local[*]` is left out: it is the default of spark-submit.
    """
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    for name in _GATEWAY:
        del os.environ[name]
    jvm = gateway.jvm
    conf = {item._1(): item._2() for item in jvm.org.apache.spark.SparkConf().getAll()}
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    forwarder = _Forwarder()
    for name in _FORWARDED:
        if signal.getsignal(getattr(signal, f"SIG{name}")) is not signal.SIG_IGN:
            jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), forwarder)
    watch = threading.Thread(target=_follow, args=(os.getppid(),), name="submit watch", daemon=True)
    watch.start()
    return _settings_of(conf, application)


def _follow(parent: int) -> None:
    """Stop gracefully if spark-submit was killed: nothing waits for this process any more."""
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _settings_of(conf: dict[str, str], application: str) -> dict[str, str]:
    names = {application, os.path.basename(application)}  # noqa: PTH119 - of a path or URI
    own = set(_OWN) if conf.get("spark.app.name") in names else set(_OWN[1:])
    settings = {key: value for key, value in conf.items() if key not in own}
    if settings.get("spark.master") == "local[*]":
        del settings["spark.master"]
    files = [
        file
        for file in settings.pop("spark.files", "").split(",")
        if file and os.path.realpath(urlsplit(file).path) != os.path.realpath(application)
    ]
    return {**settings, **({"spark.files": ",".join(files)} if files else {})}
