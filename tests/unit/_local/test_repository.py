import base64
import zipfile
from pathlib import Path
from typing import Any

import pytest

from penstock._local.jars import sync
from penstock._local.lock import JarLock
from penstock._local.repository import find_repository, parse_repository
from penstock.errors import SetupError, SpecError

_CLASS = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"


@pytest.fixture(autouse=True)
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_JARS_REPOSITORY", raising=False)


def _ivy(home: Path, content: bytes) -> None:
    (home / "jars").mkdir(exist_ok=True)
    with zipfile.ZipFile(home / "jars" / "ivy-9.9.jar", "w") as archive:
        archive.writestr(_CLASS, content)


def test_repository_argument_overrides_environment_and_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ivy(tmp_path, b"\x01\x00\x20https://spark.invalid/maven2/\x01")
    assert find_repository(None).url == "https://spark.invalid/maven2/"
    monkeypatch.setenv("PENSTOCK_JARS_REPOSITORY", "https://env.invalid/m")
    assert find_repository(None).url == "https://env.invalid/m/"
    assert find_repository("https://argument.invalid").url == "https://argument.invalid/"


@pytest.mark.parametrize("content", [None, b"\x01https://other.invalid/maven/\x01"])
def test_error_suggests_option_repo_when_ivy_has_no_repository(
    tmp_path: Path, content: bytes | None
) -> None:
    (tmp_path / "jars").mkdir()
    if content is not None:
        _ivy(tmp_path, content)
    with pytest.raises(SetupError) as caught:
        find_repository(None)
    assert caught.value.condition == "JARS_REPOSITORY_UNKNOWN"
    assert "--repo" in (caught.value.hint or "")


def test_repository_is_found_when_pyspark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME")
    assert find_repository(None).url.endswith("/maven2/")


@pytest.mark.parametrize("url", ["", "ftp://x/y", "/a/folder", "https://", "http://[::1", "jars"])
def test_repository_is_refused_when_it_is_not_an_http_url(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_repository(url)
    assert caught.value.condition == "INVALID_JARS_REPOSITORY"


def test_password_of_the_url_is_sent_but_not_shown(
    repository: Any, lock: JarLock, cache: Path, tmp_path: Path
) -> None:
    url = repository.url.replace("://", "://user:s3cr%2Ft@")
    outputs: list[object] = [parse_repository(url)]
    repository.files.clear()
    with pytest.raises(SetupError) as caught:
        sync(["broker"], repository=url)
    outputs.append(str(caught.value))
    expected = "Basic " + base64.b64encode(b"user:s3cr/t").decode()
    assert repository.authorizations == [expected]
    assert not any(secret in repr(outputs) for secret in ("s3cr", expected))


def test_password_is_not_sent_to_the_target_of_a_redirect(
    repository: Any, other_repository: Any, lock: JarLock, cache: Path, tmp_path: Path
) -> None:
    other_repository.files = repository.files
    repository.redirect_to = other_repository.url + "/"
    url = repository.url.replace("://", "://user:secret@")
    sync(["broker"], repository=url)
    assert repository.authorizations != [None]
    assert other_repository.authorizations == [None]
