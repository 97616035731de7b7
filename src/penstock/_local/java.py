"""Finds the Java that Spark will use, and checks its version."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SetupError

MINIMUM_JAVA = 17

_RUN_SECONDS = 20
_QUOTED_VERSION = re.compile(r'version "([^"]+)"')
_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_INSTALL_HINT = (
    f"install a JDK or JRE of version {MINIMUM_JAVA} or newer (for example your system's "
    f"OpenJDK {MINIMUM_JAVA} package) and set JAVA_HOME to its folder, or put `java` on PATH"
)


@dataclass(frozen=True, kw_only=True)
class Java:
    executable: Path
    version: str
    feature: int  # feature release: 17, 8


def parse_feature(version: str) -> int:
    """The feature release: 17 of `17.0.15`, 8 of `1.8.0_392`."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise ValueError(f"not a Java version: {version!r}")
    return int(match.group(1))


def require_java() -> Java:
    """The Java that Spark would start: from `JAVA_HOME`, otherwise from PATH.

    A `JAVA_HOME` without Java is an error even if PATH has one: Spark would not search PATH.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise SetupError(
                "JAVA_NOT_FOUND",
                f"JAVA_HOME is {home}, but there is no {executable}",
                hint=f"correct or unset JAVA_HOME; or {_INSTALL_HINT}",
            )
    else:
        path = shutil.which("java")
        if path is None:
            raise SetupError("JAVA_NOT_FOUND", "there is no Java on PATH", hint=_INSTALL_HINT)
        executable = Path(path)
    executable = executable.resolve()
    version = _release_version(executable) or _run_version(executable)
    feature = parse_feature(version)
    if feature < MINIMUM_JAVA:
        raise SetupError(
            "JAVA_TOO_OLD",
            f"{executable} is Java {version}, but Spark needs {MINIMUM_JAVA} or newer",
            hint=_INSTALL_HINT,
        )
    return Java(executable=executable, version=version, feature=feature)


def _release_version(executable: Path) -> str | None:
    try:
        text = (executable.parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _RELEASE_VERSION.search(text)
    return match.group(1) if match else None


def _run_version(executable: Path) -> str:
    try:
        result = subprocess.run(  # noqa: S603 - the command is the user's own Java
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(
            "JAVA_NOT_FOUND", f"{executable} does not run: {error}", hint=_INSTALL_HINT
        ) from error
    match = _QUOTED_VERSION.search(result.stderr + result.stdout)
    if match is None:
        raise SetupError(
            "JAVA_NOT_FOUND",
            f"{executable} -version ended with status {result.returncode} and printed no version",
            hint=_INSTALL_HINT,
        )
    return match.group(1)
