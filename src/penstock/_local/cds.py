"""A class-data archive for Spark's JVM: classes are parsed once, and mapped at every start.

Java writes it at the end of a training run (`-XX:ArchiveClassesAtExit`), and ignores it if Java or
the class path has changed: then Spark starts as usual.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from penstock._local import process
from penstock._local.java import require_java
from penstock._local.lock import cache_directory
from penstock._local.repository import spark_jars_directory
from penstock.errors import SetupError

_TRAINING_VARIABLE = "PENSTOCK_CDS_TRAINING"
_BUILD_SECONDS = 300.0
_SHOWN_OUTPUT_LINES = 15
_UNUSED_SECONDS = 30 * 24 * 3600.0
# Java would warn about an archive that does not match.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def archive_path(class_path: Sequence[Path]) -> Path:
    """Path of the archive for this Java, PySpark and extra class path of the driver."""
    java = require_java()
    digest = hashlib.sha256(f"{java.executable}\n{java.version}\n".encode())
    spark = spark_jars_directory()
    for jar in [*class_path, *(sorted(spark.glob("*.jar")) if spark else [])]:
        # Java rejects the archive if the path, size or modification time of a jar has changed.
        try:
            status = jar.stat()
        except OSError:
            continue
        digest.update(f"{jar}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    name = f"spark-java{java.feature}-{digest.hexdigest()[:20]}.jsa"
    return cache_directory() / "cds" / name


def is_ready(class_path: Sequence[Path]) -> bool:
    return archive_path(class_path).is_file()


def is_training() -> bool:
    return bool(os.environ.get(_TRAINING_VARIABLE))


def java_options(class_path: Sequence[Path]) -> list[str]:
    """Options for `spark.driver.extraJavaOptions`; empty without an archive.

    In a training run, the options create the archive.
    """
    if training := os.environ.get(_TRAINING_VARIABLE):
        return [f"-XX:ArchiveClassesAtExit={training}", *_QUIET]
    archive = archive_path(class_path)
    # Java reads a colon as the separator of two archives.
    if os.pathsep in str(archive) or not archive.is_file():
        return []
    with contextlib.suppress(OSError):  # a read-only cache
        os.utime(archive)
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]


def build(command: Sequence[str], class_path: Sequence[Path]) -> Path:
    """Create the archive with a training run unless it exists.

    `command` starts Spark with `java_options`, loads the classes that pipelines use, and ends its
    JVM normally.
    """
    target = archive_path(class_path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_file():
                _train(command, target)
                _remove_unused(target.parent)
    except OSError as error:
        raise _failure(f"{target.parent} cannot be used: {error}") from error
    return target


def _train(command: Sequence[str], target: Path) -> None:
    fresh = target.with_name(f"{target.stem}.{os.getpid()}.tmp")
    try:
        result = subprocess.run(  # noqa: S603 - our caller's own command
            list(command),
            env={**os.environ, _TRAINING_VARIABLE: str(fresh)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_BUILD_SECONDS,
            check=False,
        )
        if result.returncode != 0 or not fresh.is_file():
            raise _failure(
                f"the training run ended with status {result.returncode}"
                f"{'' if fresh.is_file() else ' and left no archive'}"
                + process.tail(result.stdout, _SHOWN_OUTPUT_LINES)
            )
        fresh.replace(target)
    except subprocess.TimeoutExpired as error:
        raise _failure(f"the training run took longer than {_BUILD_SECONDS:g} s") from error
    finally:
        fresh.unlink(missing_ok=True)


def _remove_unused(folder: Path) -> None:
    """Remove archives of other environments or jars that were not used for 30 days."""
    for file in folder.glob("spark-java*"):
        with contextlib.suppress(OSError):
            if file.suffix != ".lock" and time.time() - file.stat().st_mtime > _UNUSED_SECONDS:
                file.unlink()


def _failure(reason: str) -> SetupError:
    return SetupError(
        "CLASS_ARCHIVE_FAILED",
        f"the class-data archive was not created: {reason}",
        hint="pipelines run without it; each start of Spark takes a few seconds longer",
    )
