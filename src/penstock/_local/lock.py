"""The jar lock: which jars there are, in which sets, and where each one lives.

`jars.lock` beside this module is the whole truth: a jar that it does not name is never fetched, and
a file that differs from its size and SHA-256 is never used.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.errors import SpecError

_LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, kw_only=True)
class Jar:
    """One jar of the lock.

    Attributes:
        coordinate: `group:artifact:version`; a file that is no plain jar has `:classifier@ending`
            behind it.
        size: In bytes.
        sha256: Hex digits, lower case.
        folder: Folder below the cache in which the jar is kept.
    """

    coordinate: str
    size: int
    sha256: str
    folder: str

    @property
    def file_name(self) -> str:
        """`artifact-version.jar`, or with classifier and ending."""
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
    """Jars that belong together; the unit that a user asks for.

    Attributes:
        name: As in `penstock jars sync --set NAME`.
        description: One line.
        folder: `jars` for everything that Spark loads; the broker has a folder of its own, because
            its libraries must not meet Spark's.
        jars: In the order of the lock.
    """

    name: str
    description: str
    folder: str
    jars: tuple[Jar, ...]

    @property
    def size(self) -> int:
        return sum(jar.size for jar in self.jars)


@dataclass(frozen=True, kw_only=True)
class JarLock:
    sets: Mapping[str, JarSet]

    def select(self, names: Iterable[str] | None = None) -> tuple[JarSet, ...]:
        """The named sets without repetition, in the order asked for; `None` gives all.

        Raises:
            SpecError: `UNKNOWN_JAR_SET`.
        """
        wanted = list(dict.fromkeys(self.sets if names is None else names))
        for name in wanted:
            if name not in self.sets:
                raise SpecError(
                    "UNKNOWN_JAR_SET",
                    f"there is no jar set {name!r}",
                    hint=f"the sets are: {', '.join(self.sets)}",
                )
        return tuple(self.sets[name] for name in wanted)


def parse_lock(text: str) -> JarLock:
    sets = {}
    for name, entry in tomllib.loads(text)["sets"].items():
        folder = entry["folder"]
        jars = tuple(
            Jar(coordinate=j["coordinate"], size=j["size"], sha256=j["sha256"], folder=folder)
            for j in entry["jars"]
        )
        sets[name] = JarSet(name=name, description=entry["description"], folder=folder, jars=jars)
    return JarLock(sets=sets)


@cache
def load_lock() -> JarLock:
    """The lock that comes with this release."""
    return parse_lock(_LOCK_FILE.read_text(encoding="utf-8"))


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """The cache that all projects of a user share. Not created here.

    `PENSTOCK_CACHE`, else `penstock` below `XDG_CACHE_HOME`, else `~/.cache/penstock`.
    """
    env = os.environ if environ is None else environ
    if env.get("PENSTOCK_CACHE"):
        return Path(env["PENSTOCK_CACHE"]).expanduser().absolute()
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).expanduser().absolute() / "penstock"
    return Path.home() / ".cache" / "penstock"
