"""The jars of Spark and the broker: downloaded into one cache per user, verified, listed."""

import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from penstock._local import jvm
from penstock._local.download import (
    SyncStoppedError,
    copy_jar,
    disk_error,
    download_jar,
    has_size,
    is_intact,
    sha256_of,
)
from penstock._local.lock import Jar, JarLock, cache_directory, load_lock
from penstock._local.repository import Repository, find_repository
from penstock.errors import SetupError

SPARK_JAR_SETS = ("delta", "local-fs", "kafka", "avro", "postgresql", "mariadb")
"""Jar sets that every session gets."""

STORE_JAR_SETS = {
    "s3": ("fs.s3a.", ("s3a",)),
    "azure": ("fs.azure.", ("abfs", "abfss")),
    "gcs": ("fs.gs.", ("gs",)),
}
"""Jar sets of object stores, with the prefix of their settings and the schemes of their URIs."""

_THREADS = 6


class JarState(StrEnum):
    OK = "ok"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True)
class JarStatus:
    jar: Jar
    path: Path
    state: JarState
    actual_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class SyncProgress:
    """Progress of a sync. Totals are over all jars that were missing."""

    file_name: str
    done_bytes: int
    total_bytes: int
    done_files: int
    total_files: int


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    paths: tuple[Path, ...]  # all selected jars, in the order of the lock
    fetched: tuple[Path, ...]  # were missing or damaged
    fetched_bytes: int


def class_path(sets: Iterable[str], *, lock: JarLock | None = None) -> list[Path]:
    """The jars of some sets in the order of the lock, after a check of their sizes.

    The set `delta` includes the Java classes of Penstock. Raises `ValueError` if sets of Spark and
    of the broker are combined, as their libraries conflict.
    """
    root, selected = cache_directory(), (lock or load_lock()).select(sets)
    if len({jar_set.folder for jar_set in selected}) > 1:
        raise ValueError("the broker's jars must not stand on one class path with Spark's")
    missing = [
        jar_set
        for jar_set in selected
        if not all(has_size(jar, jar.path(root)) for jar in jar_set.jars)
    ]
    if missing:
        names = [jar_set.name for jar_set in missing]
        flags = " ".join(f"--set {name}" for name in names)
        raise SetupError(
            "JARS_MISSING",
            f"jars of {', '.join(names)} are not in {root}",
            hint=f"run `penstock jars sync {flags}`",
        )
    own = [jvm.JAR] if any(jar_set.name == "delta" for jar_set in selected) else []
    return [*own, *(jar.path(root) for jar_set in selected for jar in jar_set.jars)]


def verify(sets: Iterable[str] | None = None) -> list[JarStatus]:
    root = cache_directory()
    statuses = []
    for jar_set in load_lock().select(sets):
        for jar in jar_set.jars:
            path = jar.path(root)
            try:
                actual = sha256_of(path)
            except OSError:
                statuses.append(JarStatus(jar=jar, path=path, state=JarState.MISSING))
                continue
            state = JarState.OK if actual == jar.sha256 else JarState.WRONG
            statuses.append(JarStatus(jar=jar, path=path, state=state, actual_sha256=actual))
    return statuses


def sync(
    sets: Iterable[str] | None = None,
    *,
    repository: str | None = None,
    from_dir: Path | None = None,
    progress: Callable[[SyncProgress], None] | None = None,
    lock: JarLock | None = None,
) -> SyncResult:
    """Download missing jars and replace damaged ones.

    Downloads are parallel, resumable, atomic per file, and safe for concurrent processes. Without
    missing jars, the network is not used. Jars in Maven's local repository are copied if they match
    the lock. `from_dir` is a flat folder or one laid out like a repository, used instead of the
    network; `progress` is called from several threads, one at a time. `lock` replaces Penstock's.
    """
    root = cache_directory()
    jars = [jar for jar_set in (lock or load_lock()).select(sets) for jar in jar_set.jars]
    missing = [jar for jar in jars if not is_intact(jar, jar.path(root))]
    if missing:
        _prepare(root, missing)
        _Sync(root, missing, repository, from_dir, progress).run()
    return SyncResult(
        paths=tuple(jar.path(root) for jar in jars),
        fetched=tuple(jar.path(root) for jar in missing),
        fetched_bytes=sum(jar.size for jar in missing),
    )


def _prepare(root: Path, missing: list[Jar]) -> None:
    try:
        for folder in {jar.folder for jar in missing}:
            (root / folder).mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise disk_error(error, root) from error
    needed = sum(jar.size for jar in missing)
    if free < needed:
        raise SetupError(
            "DISK_FULL",
            f"the jars need {needed / 1e6:.1f} MB, but {root} has {free / 1e6:.1f} MB left",
            hint="free some space, or put the cache elsewhere with PENSTOCK_CACHE",
        )


@dataclass
class _Sync:
    root: Path
    missing: list[Jar]
    argument: str | None  # URL of the repository
    from_dir: Path | None
    progress: Callable[[SyncProgress], None] | None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._arrived = dict.fromkeys(self.missing, 0)
        self._done: set[Jar] = set()

    def run(self) -> None:
        # Largest first, so that no thread is left with a long download at the end.
        ordered = sorted(self.missing, key=lambda jar: -jar.size)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="jars") as pool:
            futures = [pool.submit(self._fetch, jar) for jar in ordered]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # Also after Ctrl-C: the threads stop at the next chunk and keep received bytes.
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, SyncStoppedError):
                raise error

    def _fetch(self, jar: Jar) -> None:
        target = jar.path(self.root)
        if self.from_dir is not None:
            copy_jar(jar, target, self._find(self.from_dir, jar), stop=self._stop)
        else:
            local = Path.home() / ".m2" / "repository" / jar.repository_path
            if is_intact(jar, local):
                copy_jar(jar, target, local, stop=self._stop)
            else:
                download_jar(
                    jar,
                    target,
                    self._repository,
                    stop=self._stop,
                    report=lambda count: self._report(jar, count),
                )
        self._report(jar, jar.size, finished=True)

    def _find(self, folder: Path, jar: Jar) -> Path:
        for candidate in (
            folder / jar.file_name,
            folder / jar.folder / jar.file_name,
            folder / jar.repository_path,
        ):
            if candidate.is_file():
                return candidate
        raise SetupError(
            "JAR_NOT_FOUND",
            f"the folder {folder} has no {jar.file_name}",
            hint="copy the jar into the folder, or leave out `--from` to use the network",
        )

    @cached_property
    def _repository(self) -> Repository:
        return find_repository(self.argument)

    def _report(self, jar: Jar, count: int, *, finished: bool = False) -> None:
        if self.progress is None:
            return
        with self._mutex:
            self._arrived[jar] = min(count, jar.size)
            if finished:
                self._done.add(jar)
            self.progress(
                SyncProgress(
                    file_name=jar.file_name,
                    done_bytes=sum(self._arrived.values()),
                    total_bytes=sum(j.size for j in self.missing),
                    done_files=len(self._done),
                    total_files=len(self.missing),
                )
            )
