"""Differences between the supported versions of Spark, and the matching version of Delta.

Jars for only one version of Spark have `spark = "4.1"` in `jars.lock`.
"""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from penstock.errors import DefinitionError, SetupError

SPARK_VERSIONS = ("4.1", "4.2")
"""Oldest first."""

DELTA = "4.4.0"
"""The release of Delta in `jars.lock`, built for each of these versions."""

# The upper bound is the version that Delta declares: Delta once failed with another patch release.
_OLDEST, _NEWEST = (4, 1, 0), (4, 2, 0)

# Replaces `STREAM` in the text of a query for an older parser; has the same length.
STREAM_MARK = "/*~~*/"
_STREAM = re.compile(
    r"""(?P<other>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)"""
    r"|(?P<before>\b(?:FROM|JOIN)\s+)STREAM\b(?P<call>\s*\(?\s*[\w$.`]+\s*\()",
    re.IGNORECASE | re.DOTALL,
)

_FIX = f"pip install 'pyspark>=4.1,<=4.2.0' 'delta-spark=={DELTA}', then penstock jars sync"


@cache
def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _submitted_spark() if package == "pyspark" else None


def _submitted_spark() -> str | None:
    """The version of a PySpark that is only on the path, as with `spark-submit`."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    return str(importlib.import_module("pyspark.version").__version__)


def installed_spark() -> str:
    """The supported version that is installed, such as `4.1`; the newest one if none is."""
    minor = minor_version(installed_version("pyspark") or "")
    return minor if minor in SPARK_VERSIONS else SPARK_VERSIONS[-1]


def minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def unsupported_pair(
    spark: str | None, delta: str | None, *, java_side: str | None = None
) -> str | None:
    """Why PySpark and Delta cannot work together; `None` if they can.

    `java_side` is the version of Spark's jars, which may be those of `SPARK_HOME`.
    """
    pair = f"PySpark {spark or 'is not installed'}, delta-spark {delta or 'is not installed'}"
    if spark is None or delta is None:
        return pair
    if not _OLDEST <= _numbers(spark) <= _NEWEST:
        return f"{pair}: Delta {DELTA} is supported with Spark 4.1.0 to 4.2.0"
    if minor_version(delta) != minor_version(DELTA):
        return f"{pair}: the jars are those of Delta {DELTA}"
    if java_side is not None and minor_version(java_side) != minor_version(spark):
        return f"{pair}: Spark itself is {java_side} (SPARK_HOME)"
    return None


def fix_of(reason: str) -> str:
    """The hint for a reason of `unsupported_pair`."""
    return "unset SPARK_HOME, or install that PySpark" if "SPARK_HOME" in reason else _FIX


def placed_elsewhere(environ: Mapping[str, str] | None = None) -> str | None:
    """The version of the jars below `SPARK_HOME`; `None` if it is not set or has no jars."""
    home = (os.environ if environ is None else environ).get("SPARK_HOME")
    jars = Path(home).glob("jars/spark-core_*.jar") if home else ()
    return next((jar.stem.rpartition("-")[2] for jar in jars), None)


def require_supported_pair(java_side: str | None = None) -> None:
    """Raise unless the installed PySpark and delta-spark, and Spark's jars, work together.

    `java_side` is the version of a running Spark.
    """
    reason = unsupported_pair(
        installed_version("pyspark"),
        installed_version("delta-spark"),
        java_side=java_side or placed_elsewhere(),
    )
    if reason is not None:
        raise SetupError("SPARK_NOT_SUPPORTED", reason, hint=fix_of(reason))


def require_spark(version: str, what: str) -> None:
    """Raise unless the installed Spark is at least this version, such as `4.1`.

    `what` is the subject of the message.
    """
    if SPARK_VERSIONS.index(installed_spark()) < SPARK_VERSIONS.index(version):
        raise DefinitionError(
            "FEATURE_NOT_AVAILABLE",
            f"{what} requires Spark {version}, and {installed_version('pyspark')} is installed",
            hint=f"install PySpark {version} or newer",
        )


def mark_streams(text: str) -> str:
    """Replace `STREAM` by a mark where the parser of the installed Spark does not support it.

    Spark 4.1 does not support `STREAM` before a table function.
    """
    if installed_spark() != "4.1":
        return text

    def spell(match: re.Match[str]) -> str:
        if match["other"]:
            return match[0]
        return f"{match['before']}{STREAM_MARK}{match['call']}"

    return _STREAM.sub(spell, text)


def is_marked(text: str, start: int) -> bool:
    """Whether the name at this position of a query was the argument of `STREAM`."""
    return text[:start].rstrip().removesuffix("(").rstrip().endswith(STREAM_MARK)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()
