"""Checks of the machine, each with its finding and, if it failed, a fix."""

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from penstock._local.broker_files import free_ports
from penstock._local.jars import JarState, verify
from penstock._local.java import require_java
from penstock._local.lock import cache_directory, load_lock
from penstock._model.paths import local_path
from penstock._model.quantity import plural
from penstock._model.spark_version import (
    fix_of,
    installed_version,
    placed_elsewhere,
    unsupported_pair,
)
from penstock.errors import SetupError

_OPTIONAL_JAR_SETS = frozenset({"postgresql-server"})
_LOW_DISK_BYTES = 2 * 1024**3
_LOW_MEMORY_BYTES = 3 * 1024**3
_CONNECT_SECONDS = 3.0
_CLOCK_SLACK_SECONDS = 24 * 3600
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)([^;]*)")
_CLAUSE = re.compile(r"(==|>=|<=|!=|<|>)\s*([0-9][0-9.]*)")
_COMPARISONS = {"==": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}


class CheckState(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    state: CheckState  # FAIL: pipelines cannot run
    detail: str
    fix: str = ""


def run_checks(storage: str | Path) -> list[Check]:
    """Check all requirements of a pipeline, without a JVM or network."""
    python = _ok("Python", platform.python_version())  # older versions cannot import this module
    checks = [python, check_java(), check_spark(), check_package("pandas")]
    checks += [check_jars(name) for name in load_lock().sets]
    checks += [check_ports(), check_clock(_newest_jar()), check_memory(), check_storage(storage)]
    return checks


def check_java() -> Check:
    try:
        java = require_java()
    except SetupError as error:
        return _fail("Java", error.message, error.hint or "")
    return _ok("Java", f"{java.version} ({java.executable})")


def check_spark() -> Check:
    """Check that PySpark, delta-spark and the jars of Spark belong together."""
    spark, delta = installed_version("pyspark"), installed_version("delta-spark")
    reason = unsupported_pair(spark, delta, java_side=placed_elsewhere())
    if reason is None:
        return _ok("Spark and Delta", f"Spark {spark}, Delta {delta}")
    return _fail("Spark and Delta", reason, fix_of(reason))


def check_package(name: str) -> Check:
    try:
        actual = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _fail(name, "not installed", "install Penstock again: pip install penstock")
    wanted = _requirement(name)
    if wanted is None:
        return _warn(name, actual, "Penstock itself is not installed: pip install penstock")
    if satisfies(actual, wanted):
        return _ok(name, actual)
    return _fail(name, f"{actual}, but Penstock needs {wanted}", f"pip install '{name}{wanted}'")


def check_jars(name: str) -> Check:
    label = f"jars: {name}"
    statuses = verify([name])
    fix = f"penstock jars sync --set {name}"
    wrong = [status.path.name for status in statuses if status.state is JarState.WRONG]
    if wrong:
        return _fail(label, f"damaged: {', '.join(wrong)}", fix)
    missing = sum(status.state is JarState.MISSING for status in statuses)
    if missing:
        detail = f"{missing} of {len(statuses)} missing"
        if name in _OPTIONAL_JAR_SETS:
            return _warn(label, detail + ", optional", fix)
        return _fail(label, detail, fix)
    megabytes = sum(status.jar.size for status in statuses) / 1e6
    return _ok(label, f"{plural(len(statuses), 'jar')}, {megabytes:.1f} MB")


def check_metastore(address: str) -> Check:
    """Whether the servers of a Hive metastore accept connections."""
    for host, port in re.findall(r"//([^:/,;@]+):(\d+)", address):
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            fix = "start the Hive metastore, or correct `catalog.options` in the settings"
            return _fail("catalog", f"Hive metastore at {address}: {error}", fix)
    return _ok("catalog", f"Hive metastore at {address}")


def check_ports() -> Check:
    try:
        free_ports()
    except SetupError as error:
        return _fail("loopback ports", error.message, error.hint or "")
    return _ok("loopback ports", "free ports on 127.0.0.1")


def check_storage(storage: str | Path) -> Check:
    path = local_path(str(storage))
    if path is None:
        return _ok("storage", f"{storage} is not on this machine, and not checked")
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"penstock")
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return _fail(
            "storage",
            f"{path} cannot be written: {error.strerror or error}",
            "make the folder writable, or name another one with --storage",
        )
    detail = f"{path}, {free / 1e9:.1f} GB free"
    if free < _LOW_DISK_BYTES:
        return _warn("storage", detail, "free some disk space")
    return _ok("storage", detail)


def check_clock(not_before: float) -> Check:
    """Check the clock, which leases, watermarks and table versions depend on.

    `not_before` is a timestamp that is certainly in the past, in seconds since 1970.
    """
    timestamp = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(timestamp))
    if timestamp < not_before - _CLOCK_SLACK_SECONDS:
        past = time.strftime("%Y-%m-%d", time.gmtime(not_before))
        return _fail("clock", f"{shown}, but files here are from {past}", "set the system's clock")
    return _ok("clock", shown)


def check_memory() -> Check:
    memory = _available_memory()
    if memory is None:
        return _ok("memory", "unknown on this system")
    detail = f"{memory / 1024**3:.1f} GiB available"
    if memory < _LOW_MEMORY_BYTES:
        return _warn("memory", detail, "close other programs: Spark and the broker need 3 GiB")
    return _ok("memory", detail)


def satisfies(version: str, specifier: str) -> bool:
    """Whether a plain version (numbers and dots) meets a specifier such as `>=2.2,<3`."""
    actual = _numbers(version)
    for sign, text in _CLAUSE.findall(specifier):
        # Padded to equal length: 2.2 equals 2.2.0.
        left, right = zip(*zip_longest(actual, _numbers(text), fillvalue=0), strict=True)
        if not _COMPARISONS[sign](left, right):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _requirement(name: str) -> str | None:
    try:
        requirements = importlib.metadata.requires("penstock") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for line in requirements:
        match = _REQUIREMENT.match(line)
        if match and match.group(1).lower() == name.lower():
            return match.group(2).strip()
    return None


def _newest_jar() -> float:
    root = cache_directory()
    paths = [jar.path(root) for jar_set in load_lock().sets.values() for jar in jar_set.jars]
    return max(path.stat().st_mtime for path in [Path(__file__), *paths] if path.exists())


def _available_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, state=CheckState.OK, detail=detail)


def _warn(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, state=CheckState.WARN, detail=detail, fix=fix)


def _fail(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, state=CheckState.FAIL, detail=detail, fix=fix)
