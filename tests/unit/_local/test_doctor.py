import socket
import time
from pathlib import Path
from typing import Any

import pytest

from penstock._local import broker_files, doctor
from penstock._local.doctor import CheckState, check_metastore, check_storage, run_checks
from penstock._local.jars import sync
from penstock._local.lock import JarLock


def _by_name(checks: list[doctor.Check]) -> dict[str, doctor.Check]:
    return {check.name: check for check in checks}


def test_failed_checks_have_a_fix(
    lock: JarLock, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    (tmp_path / "file").write_text("")
    checks = _by_name(run_checks(tmp_path / "file" / "storage"))
    for name in ("Java", "jars: first", "jars: broker", "storage"):
        assert checks[name].state is CheckState.FAIL, name
    assert checks["jars: first"].fix == "penstock jars sync --set first"
    assert [c.name for c in checks.values() if c.state is not CheckState.OK and not c.fix] == []
    assert not cache.exists()


def test_disk_of_this_machine_is_not_checked_when_the_storage_is_remote() -> None:
    check = check_storage("s3a://lake/shop")
    assert check.state is CheckState.OK
    assert check.detail == "s3a://lake/shop is not on this machine, and not checked"


def test_checks_are_ok_after_jars_sync(
    lock: JarLock, cache: Path, repository: Any, tmp_path: Path
) -> None:
    sync(repository=repository.url)
    storage = tmp_path / "storage"
    checks = _by_name(run_checks(storage))
    for name in ("Python", "jars: first", "jars: broker", "loopback ports", "clock", "storage"):
        assert checks[name].state is CheckState.OK, name
    assert not storage.exists()


def test_missing_jars_fail_when_required_and_warn_when_optional(
    lock: JarLock, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_OPTIONAL_JAR_SETS", {"broker"})
    checks = _by_name(run_checks(cache))
    assert checks["jars: first"].state is CheckState.FAIL
    assert checks["jars: broker"].state is CheckState.WARN


def test_damaged_jar_is_named_when_its_checksum_is_wrong(
    lock: JarLock, cache: Path, repository: Any, tmp_path: Path
) -> None:
    result = sync(repository=repository.url)
    result.paths[1].write_bytes(b"0" * result.paths[1].stat().st_size)
    check = _by_name(run_checks(tmp_path))["jars: first"]
    assert (check.state, check.detail) == (CheckState.FAIL, "damaged: b-1.0.jar")


def test_package_check_fails_when_it_is_not_installed() -> None:
    assert doctor.check_package("no-such-distribution").state is CheckState.FAIL


def test_package_check_names_the_required_version_when_another_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        doctor.importlib.metadata,
        "requires",
        lambda _: ["pyspark==4.2.0", 'pandas<3,>=2.2; python_version > "3"', "x>=1; extra == 'a'"],
    )
    versions = {"pyspark": "4.2.1", "pandas": "3.0.1"}
    monkeypatch.setattr(doctor.importlib.metadata, "version", versions.get)
    check = doctor.check_package("pyspark")
    assert check.state is CheckState.FAIL
    assert check.fix == "pip install 'pyspark==4.2.0'"
    assert doctor.check_package("pandas").state is CheckState.FAIL
    versions["pandas"] = "2.3.3"
    assert doctor.check_package("pandas").state is CheckState.OK


@pytest.mark.parametrize(
    ("version", "specifier", "holds"),
    [
        ("4.2.0", "==4.2.0", True),
        ("4.2", "==4.2.0", True),
        ("4.2.1", "==4.2.0", False),
        ("2.10", ">=2.2,<3", True),
        ("3.0", ">=2.2,<3", False),
        ("3.0.0rc1", "<3", False),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_numerically_with_a_specifier(
    version: str, specifier: str, holds: bool
) -> None:
    assert doctor.satisfies(version, specifier) is holds


def test_ports_fail_with_a_fix_when_none_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_files, "are_free", lambda *_ports: False)
    check = doctor.check_ports()
    assert (check.state, check.detail) == (CheckState.FAIL, "no port of 127.0.0.1 is free")
    assert check.fix


def test_port_check_fails_when_sockets_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(broker_files.socket, "socket", forbidden)
    check = doctor.check_ports()
    assert check.state is CheckState.FAIL
    assert check.fix


def test_clock_check_fails_when_the_clock_is_more_than_a_day_behind() -> None:
    day, now = 24 * 3600, time.time()
    assert doctor.check_clock(now + 2 * day).state is CheckState.FAIL
    assert doctor.check_clock(now + day / 2).state is CheckState.OK


def test_memory_check_warns_when_memory_is_low(monkeypatch: pytest.MonkeyPatch) -> None:
    available = iter([1024**3, 8 * 1024**3])
    monkeypatch.setattr(doctor, "_available_memory", lambda: next(available))
    assert doctor.check_memory().state is CheckState.WARN
    assert doctor.check_memory().state is CheckState.OK


def test_a_metastore_that_does_not_listen_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        assert check_metastore(address).state is CheckState.OK
    check = check_metastore(address)
    assert check.state is CheckState.FAIL
    assert address in check.detail
    assert "catalog.options" in check.fix
