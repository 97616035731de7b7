"""Packages that notebooks install with `%pip`: their names, and whether they are installed.

Nothing is installed. The hint of a failed import names missing packages.
"""

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_INSTALL = re.compile(r"(?:^|[;&|]\s*|\s)(?:pip3?|uv\s+pip|conda|mamba)\s+install\s+([^;&|]+)")
_NAME = re.compile(r"([A-Za-z0-9][\w.\-]*)\s*(?:\[[^\]]*\])?\s*(?:[=<>!~;@].*)?")
_WHEEL = re.compile(r"(?:.*/)?([A-Za-z0-9][\w.]*)-\d[^/]*\.(?:whl|tar\.gz|zip)")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9][\w.\-]*)")
_WITH_VALUE = {
    *("-c", "--constraint", "-e", "--editable", "-t", "--target", "-i", "--index-url"),
    *("--extra-index-url", "-f", "--find-links", "--platform", "--python-version", "--prefix"),
    *("--trusted-host", "--cache-dir", "--upgrade-strategy", "--no-binary", "--only-binary"),
    *("--root", "--src", "--log", "--proxy", "--timeout", "--retries", "-n", "--name", "--channel"),
}
_REQUIREMENTS = ("-r", "--requirement")
_DEEPEST_FILE = 5


def requested_packages(command: str, folder: Path) -> tuple[str, ...]:
    """Return the names of the packages that a command installs, in order, each once.

    Other commands than `pip install`, and arguments that name no package, are ignored. Paths of
    requirement files are relative to `folder`.
    """
    names: dict[str, None] = {}
    for line in command.replace("\\\n", " ").splitlines():
        for match in _INSTALL.finditer(line):
            for name in _from_arguments(_words(match.group(1)), folder, _DEEPEST_FILE):
                names.setdefault(name)
    return tuple(names)


def is_installed(name: str) -> bool:
    """Whether a distribution of that name is installed, in any version."""
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True


def _words(text: str) -> list[str]:
    text = text.split(" #")[0]  # `#` within a word belongs to a URL
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is never closed
        return text.split()


def _from_arguments(words: list[str], folder: Path, depth: int) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        option, _, value = word.partition("=")
        if option in _REQUIREMENTS:
            yield from _from_file(folder / (value or next(rest, "")), depth)
        elif word.startswith("-r") and len(word) > 2:
            yield from _from_file(folder / word[2:], depth)
        elif word in _WITH_VALUE or word == "@":
            next(rest, None)
        elif not word.startswith("-") and (name := _name(word)):
            yield name


def _from_file(path: Path, depth: int) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:  # mostly a path in a workspace
        return
    if depth == 0:
        return
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split(" #")[0].strip()
        if words.startswith("-"):
            yield from _from_arguments(_words(words), path.parent, depth - 1)
        elif name := _name(words):
            yield name


def _name(word: str) -> str | None:
    if egg := _EGG.search(word):
        return egg.group(1)
    if wheel := _WHEEL.fullmatch(word):
        return wheel.group(1)
    match = _NAME.fullmatch(word.strip())
    return match.group(1) if match else None
