"""Downloads or copies a jar into the cache: resumable, atomic, safe for concurrent processes.

A jar is written to `<file>.part`, locked by one process at a time. It gets its final name only if
its size and SHA-256 match the jar lock: a file with its final name is always complete.
"""

import errno
import hashlib
import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO, NoReturn

from penstock._local.lock import Jar
from penstock._local.repository import Repository
from penstock._runtime.lease import try_lock
from penstock.errors import SetupError

_ATTEMPTS = 3
_BACKOFF_SECONDS = 0.2
_CHUNK_BYTES = 256 * 1024
_SOCKET_TIMEOUT_SECONDS = 30.0
_LOCK_POLL_SECONDS = 0.05
_SURPLUS_BYTES = 16 * 1024 * 1024
_RETRYABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_HINT_OTHER_SOURCE = (
    "use another repository with `penstock jars sync --repo URL`, "
    "or a folder of jars with `--from DIR`"
)


class SyncStoppedError(Exception):
    """Another jar failed or the user interrupted; the download can be resumed."""


class _TransientError(Exception):
    """The transfer was interrupted; the received part is valid, the rest can be requested."""

    def __init__(self, reason: str, *, has_response: bool) -> None:
        self.reason = reason
        self.has_response = has_response
        super().__init__(reason)


def sha256_of(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def has_size(jar: Jar, target: Path) -> bool:
    """Whether the file has the locked size: a cheap check before every use."""
    try:
        return target.stat().st_size == jar.size
    except OSError:
        return False


def is_intact(jar: Jar, target: Path) -> bool:
    try:
        return has_size(jar, target) and sha256_of(target) == jar.sha256
    except OSError:
        return False


def copy_jar(jar: Jar, target: Path, source: Path, *, stop: threading.Event) -> None:
    try:
        stream = source.open("rb")
    except OSError as error:
        raise _unreadable(source, error) from error
    with stream, _disk_errors(target), _part_file(jar, target, stop) as part:
        if part is None:
            return
        part.truncate(0)
        try:
            _append(part, stream, jar, stop, lambda _: None)
        except _TransientError as error:
            raise _unreadable(source, error) from error
        _publish(jar, target, part, str(source))


def _unreadable(source: Path, error: Exception) -> SetupError:
    return SetupError(
        "JAR_DOWNLOAD_FAILED", f"{source} cannot be read: {error}", hint=_HINT_OTHER_SOURCE
    )


def download_jar(
    jar: Jar,
    target: Path,
    repository: Repository,
    *,
    stop: threading.Event,
    report: Callable[[int], None],
) -> None:
    """Download a jar into the cache, and resume an earlier attempt.

    The folder of `target` exists. `stop` ends the download after the current chunk, and keeps the
    received bytes. `report` is called with their number.
    """
    with _disk_errors(target), _part_file(jar, target, stop) as part:
        if part is None:
            return
        resumed = _prefix(part, jar)
        _transfer(jar, part, repository, stop, report)
        if resumed and _digest(part) != jar.sha256:
            # The part of an earlier attempt may be damaged: download all of it.
            part.truncate(0)
            _transfer(jar, part, repository, stop, report)
        _publish(jar, target, part, repository.url + jar.repository_path)


def _transfer(
    jar: Jar,
    part: BufferedRandom,
    repository: Repository,
    stop: threading.Event,
    report: Callable[[int], None],
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _receive(jar, part, repository, stop, report)
            return
        except _TransientError as error:
            if attempt == _ATTEMPTS:
                _give_up(jar, repository, error)
        if stop.wait(_BACKOFF_SECONDS * 2 ** (attempt - 1)):
            raise SyncStoppedError


def _give_up(jar: Jar, repository: Repository, error: _TransientError) -> NoReturn:
    if error.has_response:
        raise SetupError(
            "JAR_DOWNLOAD_FAILED",
            f"{jar.file_name} could not be fetched from {repository.url}: {error.reason}",
            hint="run `penstock jars sync` again: it resumes the download",
        ) from error
    raise SetupError(
        "JARS_UNREACHABLE",
        f"the repository {repository.url} cannot be reached: {error.reason}",
        hint=f"check the network and the proxy settings; {_HINT_OTHER_SOURCE}",
    ) from error


def _receive(
    jar: Jar,
    part: BufferedRandom,
    repository: Repository,
    stop: threading.Event,
    report: Callable[[int], None],
) -> None:
    offset = _prefix(part, jar)
    if offset == jar.size:
        return
    try:
        response = urllib.request.urlopen(  # noqa: S310 - the scheme was checked
            repository.request(jar.repository_path, offset), timeout=_SOCKET_TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        with error:
            _refused(jar, part, repository, error.code)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _TransientError(str(reason) or type(error).__name__, has_response=False) from error
    with response:
        if offset and not _continues(response, offset):
            part.truncate(0)
            offset = 0
        announced = response.headers.get("Content-Length")
        report(offset)
        received = _append(part, response, jar, stop, lambda count: report(offset + count))
    if announced is not None and received < int(announced):
        raise _TransientError(
            f"the response ended after {received} of {announced} bytes", has_response=True
        )


def _refused(jar: Jar, part: BufferedRandom, repository: Repository, status: int) -> NoReturn:
    if status == 416:
        part.truncate(0)
        raise _TransientError("the repository refused to continue a transfer", has_response=True)
    if status in _RETRYABLE_STATUS:
        raise _TransientError(f"HTTP status {status}", has_response=True)
    if status in (404, 410):
        raise SetupError(
            "JAR_NOT_FOUND",
            f"the repository {repository.url} has no {jar.repository_path} (HTTP status {status})",
            hint=_HINT_OTHER_SOURCE,
        )
    raise SetupError(
        "JAR_DOWNLOAD_FAILED",
        f"{jar.file_name} could not be fetched from {repository.url}: HTTP status {status}",
        hint=_HINT_OTHER_SOURCE,
    )


def _continues(response: http.client.HTTPResponse, offset: int) -> bool:
    content_range = response.headers.get("Content-Range", "")
    return response.status == 206 and content_range.startswith(f"bytes {offset}-")


def _append(
    part: BufferedRandom,
    stream: BinaryIO | http.client.HTTPResponse,
    jar: Jar,
    stop: threading.Event,
    report: Callable[[int], None],
) -> int:
    """Append the stream; stop early if the file is much longer than the locked size."""
    received = 0
    while received <= jar.size + _SURPLUS_BYTES:
        if stop.is_set():
            raise SyncStoppedError
        try:
            chunk = stream.read(_CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise _TransientError(str(error) or type(error).__name__, has_response=True) from error
        if not chunk:
            break
        part.write(chunk)
        received += len(chunk)
        report(received)
    part.flush()
    return received


def _prefix(part: BufferedRandom, jar: Jar) -> int:
    size = os.fstat(part.fileno()).st_size
    if size > jar.size:
        part.truncate(0)
        return 0
    return size


def _digest(part: BufferedRandom) -> str:
    part.seek(0)
    return hashlib.file_digest(part, "sha256").hexdigest()


def _publish(jar: Jar, target: Path, part: BufferedRandom, source: str) -> None:
    actual, size = _digest(part), os.fstat(part.fileno()).st_size
    part_path = _part_path(target)
    if actual != jar.sha256:
        part_path.unlink()
        raise SetupError(
            "JAR_CHECKSUM_MISMATCH",
            f"{source} has SHA-256 {actual} ({size} bytes), "
            f"but the lock requires {jar.sha256} ({jar.size} bytes); it was not used",
            hint=f"the source is damaged or not genuine; {_HINT_OTHER_SOURCE}",
        )
    os.fsync(part.fileno())
    part_path.replace(target)


def _part_path(target: Path) -> Path:
    return target.with_name(target.name + ".part")


@contextmanager
def _part_file(jar: Jar, target: Path, stop: threading.Event) -> Iterator[BufferedRandom | None]:
    """The locked part file, or `None` if another process has completed the jar."""
    path = _part_path(target)
    while True:
        with path.open("a+b") as part:
            while not try_lock(part.fileno()):
                if stop.wait(_LOCK_POLL_SECONDS):
                    raise SyncStoppedError
            if not _is_still(part, path):
                continue  # the process that held the lock renamed or removed the file
            if is_intact(jar, target):
                path.unlink()
                yield None
            else:
                yield part
            return


def _is_still(part: BufferedRandom, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(part.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(error, target.parent) from error


def disk_error(error: OSError, folder: Path) -> SetupError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SetupError(
            "DISK_FULL",
            f"there is no space left for {folder}: {error.strerror}",
            hint="free some space, or put the cache elsewhere with PENSTOCK_CACHE",
        )
    return SetupError(
        "CACHE_NOT_WRITABLE",
        f"the jar cache {folder} cannot be written: {error.strerror or error}",
        hint="make it writable, or put the cache elsewhere with PENSTOCK_CACHE",
    )
