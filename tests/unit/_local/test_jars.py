import hashlib
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock._local import download, jars
from penstock._local.jars import JarState, SyncProgress, SyncResult, class_path, sync, verify
from penstock._local.lock import Jar, JarLock, JarSet, cache_directory, load_lock
from penstock._local.repository import parse_repository
from penstock.errors import SetupError, SpecError

Fetch = Callable[..., SyncResult]


@pytest.fixture
def fetch(repository: Any, lock: JarLock, cache: Path) -> Fetch:
    """`sync` from the loopback repository into the test's own cache."""

    def run(sets: list[str] | None = None, **changes: Any) -> SyncResult:
        return sync(sets, **{"repository": repository.url, **changes})

    return run


def _jar(lock: JarLock, name: str) -> Jar:
    return next(
        jar
        for jar_set in lock.sets.values()
        for jar in jar_set.jars
        if f":{name}:" in jar.coordinate
    )


def _leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*.part"))


def test_sync_downloads_every_jar_into_the_folder_of_its_set(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    result = fetch()
    contents = {str(path.relative_to(cache)): path.read_bytes() for path in result.paths}
    assert sorted(contents) == [
        "jars/a-1.0.jar",
        "jars/b-1.0.jar",
        "jars/c-1.0.jar",
        "kafka-broker/d-1.0.jar",
    ]
    for jar_set in lock.sets.values():
        for jar in jar_set.jars:
            assert (
                contents[f"{jar.folder}/{jar.file_name}"] == repository.files[jar.repository_path]
            )
    assert result.fetched == result.paths
    assert result.fetched_bytes == 706_000
    assert _leftovers(cache) == []
    assert {status.state for status in verify()} == {JarState.OK}


def test_sync_downloads_jars_in_parallel(fetch: Fetch, repository: Any) -> None:
    # The server responds after four requests: sequential requests would never end.
    repository.together = threading.Barrier(4)
    assert len(fetch().fetched) == 4
    assert not repository.together.broken


def test_sync_downloads_only_the_named_sets(fetch: Fetch, cache: Path) -> None:
    fetch(["broker"])
    assert [path.name for path in cache.rglob("*.jar")] == ["d-1.0.jar"]


def test_sync_sends_no_request_when_all_jars_are_cached(fetch: Fetch, repository: Any) -> None:
    fetch()
    repository.requests.clear()
    result = fetch(repository="http://127.0.0.1:1/")
    assert result.fetched == ()
    assert len(result.paths) == 4
    assert repository.requests == []


def test_sync_writes_nothing_when_all_jars_are_in_a_read_only_cache(
    fetch: Fetch, cache: Path
) -> None:
    fetch()
    before = {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]}
    for folder in (cache / "jars", cache / "kafka-broker", cache):
        folder.chmod(0o555)
    try:
        assert fetch().fetched == ()
    finally:
        for folder in (cache, cache / "jars", cache / "kafka-broker"):
            folder.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in [cache, *cache.rglob("*")]} == before


def test_sync_resumes_from_a_part_file(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    jar = _jar(lock, "a")
    body = repository.files[jar.repository_path]
    part = jar.path(cache).with_name("a-1.0.jar.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(body[:500_000])
    fetch(["first"])
    assert jar.path(cache).read_bytes() == body
    assert (jar.repository_path, "bytes=500000-") in repository.requests
    assert repository.hits[jar.repository_path] == 1


def test_sync_restarts_a_download_when_the_repository_ignores_the_range(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    repository.ignore_range = True
    jar = _jar(lock, "a")
    part = jar.path(cache).with_name("a-1.0.jar.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    fetch(["first"])
    assert jar.path(cache).read_bytes() == repository.files[jar.repository_path]


@pytest.mark.parametrize("length", [1000, 700_000, 900_000])
def test_sync_recovers_from_an_invalid_part_file(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any, length: int
) -> None:
    jar = _jar(lock, "a")
    part = jar.path(cache).with_name("a-1.0.jar.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * length)
    fetch(["first"])
    assert jar.path(cache).read_bytes() == repository.files[jar.repository_path]


def test_sync_resumes_when_a_response_is_truncated(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    jar = _jar(lock, "a")
    repository.truncate_once.add(jar.repository_path)
    fetch(["first"])
    assert jar.path(cache).read_bytes() == repository.files[jar.repository_path]
    assert [
        range_header for path, range_header in repository.requests if path == jar.repository_path
    ] == [
        None,
        "bytes=350000-",
    ]


def test_sync_retries_when_the_repository_is_busy(
    fetch: Fetch, lock: JarLock, repository: Any
) -> None:
    repository.status_once[_jar(lock, "b").repository_path] = 503
    assert len(fetch(["first"]).fetched) == 3


def test_sync_error_has_both_checksums_when_a_jar_differs(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    jar = _jar(lock, "b")
    forged = b"y" * jar.size
    repository.files[jar.repository_path] = forged
    with pytest.raises(SetupError) as caught:
        fetch(["first"])
    assert caught.value.condition == "JAR_CHECKSUM_MISMATCH"
    assert caught.value.exit_code == 3
    assert hashlib.sha256(forged).hexdigest() in caught.value.message
    assert jar.sha256 in caught.value.message
    assert not jar.path(cache).exists()
    assert "b-1.0.jar.part" not in _leftovers(cache)


def test_sync_error_names_jar_and_repository_when_the_jar_is_not_found(
    fetch: Fetch, lock: JarLock, repository: Any
) -> None:
    jar = _jar(lock, "c")
    del repository.files[jar.repository_path]
    with pytest.raises(SetupError) as caught:
        fetch(["first"])
    assert caught.value.condition == "JAR_NOT_FOUND"
    assert jar.repository_path in caught.value.message
    assert repository.url in caught.value.message
    assert repository.hits[jar.repository_path] == 1


def test_sync_error_suggests_a_folder_when_the_repository_is_unreachable(fetch: Fetch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(SetupError) as caught:
            fetch(["broker"], repository=address)
    assert caught.value.condition == "JARS_UNREACHABLE"
    assert "--from" in (caught.value.hint or "")


def test_sync_keeps_the_part_file_when_a_download_fails(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    jar = _jar(lock, "a")
    repository.truncate_once.add(jar.repository_path)
    with pytest.raises(SetupError) as caught:
        fetch(["first"])
    assert caught.value.condition == "JAR_DOWNLOAD_FAILED"
    assert (cache / "jars" / "a-1.0.jar.part").stat().st_size == 350_000
    fetch(["first"])
    assert (jar.repository_path, "bytes=350000-") in repository.requests


@pytest.mark.parametrize("layout", ["flat", "cache", "repository"])
def test_sync_from_a_folder_sends_no_request(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any, tmp_path: Path, layout: str
) -> None:
    jar = _jar(lock, "d")
    source = tmp_path / "usb"
    source_path = {
        "flat": source / jar.file_name,
        "cache": source / jar.folder / jar.file_name,
        "repository": source / jar.repository_path,
    }[layout]
    source_path.parent.mkdir(parents=True)
    source_path.write_bytes(repository.files[jar.repository_path])
    fetch(["broker"], from_dir=source)
    assert jar.path(cache).read_bytes() == source_path.read_bytes()
    assert repository.requests == []


def test_sync_from_a_folder_fails_when_a_jar_is_missing(fetch: Fetch, tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        fetch(["broker"], from_dir=tmp_path)
    assert caught.value.condition == "JAR_NOT_FOUND"
    assert "d-1.0.jar" in caught.value.message


def test_sync_from_a_folder_fails_when_a_checksum_is_wrong(
    fetch: Fetch, lock: JarLock, tmp_path: Path
) -> None:
    (tmp_path / "d-1.0.jar").write_bytes(b"not the jar")
    with pytest.raises(SetupError) as caught:
        fetch(["broker"], from_dir=tmp_path)
    assert caught.value.condition == "JAR_CHECKSUM_MISMATCH"
    assert _jar(lock, "d").sha256 in caught.value.message


def test_sync_copies_valid_jars_of_the_local_maven_repository(
    fetch: Fetch, lock: JarLock, repository: Any
) -> None:
    right, wrong = _jar(lock, "a"), _jar(lock, "b")
    for jar, body in (
        (right, repository.files[right.repository_path]),
        (wrong, b"z" * wrong.size),
    ):
        maven_path = Path.home() / ".m2" / "repository" / jar.repository_path
        maven_path.parent.mkdir(parents=True)
        maven_path.write_bytes(body)
    fetch(["first"])
    assert repository.hits[right.repository_path] == 0
    assert repository.hits[wrong.repository_path] == 1


def test_sync_replaces_a_damaged_jar_of_the_cache(
    fetch: Fetch, lock: JarLock, cache: Path, repository: Any
) -> None:
    fetch()
    jar = _jar(lock, "b")
    jar.path(cache).write_bytes(b"q" * jar.size)
    result = fetch()
    assert [path.name for path in result.fetched] == ["b-1.0.jar"]
    assert jar.path(cache).read_bytes() == repository.files[jar.repository_path]


def test_sync_reports_progress_up_to_the_total(fetch: Fetch) -> None:
    reports: list[SyncProgress] = []
    fetch(progress=reports.append)
    assert reports[-1].done_bytes == reports[-1].total_bytes == 706_000
    assert reports[-1].done_files == reports[-1].total_files == 4
    done = [step.done_bytes for step in reports]
    assert done == sorted(done)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_sync_fails_when_the_cache_is_not_writable(fetch: Fetch, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o555)
    try:
        with pytest.raises(SetupError) as caught:
            fetch()
    finally:
        cache.chmod(0o755)
    assert caught.value.condition == "CACHE_NOT_WRITABLE"


def test_sync_fails_when_the_cache_is_a_file(fetch: Fetch, cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(SetupError) as caught:
        fetch()
    assert caught.value.condition == "CACHE_NOT_WRITABLE"
    assert "PENSTOCK_CACHE" in (caught.value.hint or "")


def test_sync_fails_before_the_download_when_the_disk_is_too_small(
    cache: Path, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = Jar(coordinate="g:huge:1", size=2**62, sha256="0" * 64, folder="jars")
    only = JarSet(name="s", description="", folder="jars", jars=(huge,))
    monkeypatch.setattr(jars, "load_lock", lambda: JarLock(sets={"s": only}))
    with pytest.raises(SetupError) as caught:
        sync(repository=repository.url)
    assert caught.value.condition == "DISK_FULL"
    assert repository.requests == []


def test_download_fails_when_the_disk_fills_up(lock: JarLock, repository: Any, cache: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    jar = _jar(lock, "a")
    target = jar.path(cache)
    target.parent.mkdir(parents=True)
    target.with_name("a-1.0.jar.part").symlink_to("/dev/full")
    with pytest.raises(SetupError) as caught:
        download.download_jar(
            jar,
            target,
            parse_repository(repository.url),
            stop=threading.Event(),
            report=lambda _: None,
        )
    assert caught.value.condition == "DISK_FULL"


def _sync_in_process(url: str, start: Any, results: Any) -> None:
    start.wait(20)
    try:
        results.put(len(sync(repository=url).paths))
    except Exception as error:
        results.put(repr(error))


def test_concurrent_syncs_leave_complete_jars(repository: Any, lock: JarLock, cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=_sync_in_process, args=(repository.url, start, results))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    start.set()
    assert [results.get(timeout=30) for _ in workers] == [4, 4, 4, 4]
    for worker in workers:
        worker.join(10)
    assert {status.state for status in verify()} == {JarState.OK}
    assert _leftovers(cache) == []


def test_class_path_error_names_the_sync_command_when_jars_are_missing(
    lock: JarLock, cache: Path
) -> None:
    with pytest.raises(SetupError) as caught:
        class_path(["first"])
    assert caught.value.condition == "JARS_MISSING"
    assert "penstock jars sync --set first" in (caught.value.hint or "")


def test_class_path_refuses_a_truncated_jar(fetch: Fetch, lock: JarLock, cache: Path) -> None:
    fetch()
    assert [p.name for p in class_path(["first"])] == [
        "a-1.0.jar",
        "b-1.0.jar",
        "c-1.0.jar",
    ]
    _jar(lock, "c").path(cache).write_bytes(b"short")
    with pytest.raises(SetupError, match="JARS_MISSING"):
        class_path(["first"])


def test_class_path_refuses_to_mix_broker_and_spark_jars(lock: JarLock, cache: Path) -> None:
    with pytest.raises(ValueError, match="broker"):
        class_path(["first", "broker"])


def test_verify_distinguishes_missing_and_damaged_jars(
    fetch: Fetch, lock: JarLock, cache: Path
) -> None:
    fetch()
    _jar(lock, "b").path(cache).write_bytes(b"n" * 1000)
    _jar(lock, "c").path(cache).unlink()
    statuses = {s.path.name: s for s in verify(["first"])}
    assert [statuses[f"{n}-1.0.jar"].state for n in "abc"] == [
        JarState.OK,
        JarState.WRONG,
        JarState.MISSING,
    ]
    assert statuses["b-1.0.jar"].actual_sha256 != _jar(lock, "b").sha256


def test_sync_error_lists_the_sets_when_one_is_unknown(fetch: Fetch) -> None:
    with pytest.raises(SpecError) as caught:
        fetch(["frist"])
    assert caught.value.condition == "UNKNOWN_JAR_SET"
    assert "first, broker" in (caught.value.hint or "")


def test_lock_file_is_valid() -> None:
    sets = load_lock().sets
    servers = {"kafka-broker", "postgresql-server"}
    stores = {"s3", "azure", "gcs"}
    drivers = {"postgresql", "mariadb"}
    assert set(sets) == {"delta", "local-fs", "kafka", "avro"} | drivers | stores | servers
    for jar_set in sets.values():
        assert jar_set.folder == (jar_set.name if jar_set.name in servers else "jars")
        assert len({jar.file_name for jar in jar_set.jars}) == len(jar_set.jars)
        for jar in jar_set.jars:
            assert jar.size > 0
            assert len(bytes.fromhex(jar.sha256)) == 32
            assert jar.coordinate.count(":") == (3 if "shaded" in jar.coordinate else 2)


def test_cache_directory_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/x/y")
    monkeypatch.setenv("XDG_CACHE_HOME", "/z")
    assert cache_directory() == Path("/x/y")
    monkeypatch.delenv("PENSTOCK_CACHE")
    assert cache_directory() == Path("/z/penstock")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "penstock"
