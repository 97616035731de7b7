"""The jar lock: the jars, their sets, and their folders.

A jar that `jars.lock` does not list is never downloaded, and a file with another size or SHA-256
is never used.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock._model.spark_version import installed_spark
from penstock.errors import SpecError

_LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, kw_only=True)
class Jar:
    coordinate: str  # group:artifact:version, with :classifier@ending unless it is a plain jar
    size: int
    sha256: str  # lower case
    folder: str  # below the cache

    @property
    def file_name(self) -> str:
        _, artifact, version, *rest = self.coordinate.split(":")
        if rest:
            classifier, _, ending = rest[0].partition("@")
            return f"{artifact}-{version}-{classifier}.{ending or 'jar'}"
        return f"{artifact}-{version}.jar"

    @property
    def repository_path(self) -> str:
        group, artifact, version = self.coordinate.split(":")[:3]
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"

    def path(self, cache_root: Path) -> Path:
        return cache_root / self.folder / self.file_name


@dataclass(frozen=True, kw_only=True)
class JarSet:
    name: str
    description: str
    folder: str  # one for Spark, another for the broker, whose libraries conflict with Spark's
    jars: tuple[Jar, ...]

    @property
    def size(self) -> int:
        return sum(jar.size for jar in self.jars)


@dataclass(frozen=True, kw_only=True)
class JarLock:
    sets: Mapping[str, JarSet]

    def select(self, names: Iterable[str] | None = None) -> tuple[JarSet, ...]:
        """The named sets without duplicates, in this order; `None` means all."""
        wanted = list(dict.fromkeys(self.sets if names is None else names))
        for name in wanted:
            if name not in self.sets:
                raise SpecError(
                    "UNKNOWN_JAR_SET",
                    f"there is no jar set {name!r}",
                    hint=f"the sets are: {', '.join(self.sets)}",
                )
        return tuple(self.sets[name] for name in wanted)


def parse_lock(text: str, spark: str) -> JarLock:
    """The jars for a version of Spark such as `4.1`."""
    sets = {}
    for name, entry in tomllib.loads(text)["sets"].items():
        folder = entry["folder"]
        jars = tuple(
            Jar(coordinate=j["coordinate"], size=j["size"], sha256=j["sha256"], folder=folder)
            for j in entry["jars"]
            if j.get("spark", spark) == spark
        )
        sets[name] = JarSet(name=name, description=entry["description"], folder=folder, jars=jars)
    return JarLock(sets=sets)


@cache
def load_lock() -> JarLock:
    """The jars for the installed version of Spark."""
    return parse_lock(_LOCK_FILE.read_text(encoding="utf-8"), installed_spark())


def cache_directory() -> Path:
    """`PENSTOCK_CACHE`, else `penstock` below `XDG_CACHE_HOME`, else `~/.cache/penstock`."""
    if own := os.environ.get("PENSTOCK_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "penstock"
    return Path.home() / ".cache" / "penstock"
