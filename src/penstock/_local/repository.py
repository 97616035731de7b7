"""The Maven repository of the jars."""

import base64
import importlib.util
import os
import re
import urllib.request
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.errors import SetupError, SpecError

_RESOLVER_CLASS = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
_MAVEN_ROOT = re.compile(rb"https://[\x21-\x7e]+?/maven2/")
_VARIABLE = "PENSTOCK_JARS_REPOSITORY"


@dataclass(frozen=True)
class Repository:
    url: str  # ends in a slash, without user and password
    authorization: str | None = field(default=None, repr=False)

    def request(self, path: str, offset: int = 0) -> urllib.request.Request:
        request = urllib.request.Request(self.url + path)  # noqa: S310 - the scheme was checked
        request.add_header("User-Agent", "penstock")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self.authorization:
            # Unredirected: another host that the repository points to must not get the password.
            request.add_unredirected_header("Authorization", self.authorization)
        return request


def parse_repository(url: str) -> Repository:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError(
            "INVALID_JARS_REPOSITORY",
            "the repository for jars must be an http:// or https:// URL",
            hint="for a folder of jars use `penstock jars sync --from DIR`",
        )
    if ":" in host:
        host = f"[{host}]"
    netloc = host if port is None else f"{host}:{port}"
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    clean = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/") + "/", "", ""))
    return Repository(clean, authorization)


def find_repository(argument: str | None) -> Repository:
    """The repository of the argument or of `PENSTOCK_JARS_REPOSITORY`, or Spark's default.

    Spark's default is the one of PySpark's Ivy library, which `spark.jars.packages` uses as well.
    """
    folder = spark_jars_directory()
    url = argument or os.environ.get(_VARIABLE) or (folder and _ivy_default(folder))
    if not url:
        raise SetupError(
            "JARS_REPOSITORY_UNKNOWN",
            "the Maven repository that Spark uses could not be read from PySpark's Ivy library",
            hint=f"name one with `penstock jars sync --repo URL` or {_VARIABLE}",
        )
    return parse_repository(url)


def spark_jars_directory() -> Path | None:
    """The jars of Spark: from `SPARK_HOME`, as in PySpark, otherwise from the installed PySpark.

    PySpark is not imported; with spark-submit, it is a zip file without jars.
    """
    home = os.environ.get("SPARK_HOME")
    if home and (folder := Path(home) / "jars").is_dir():
        return folder
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "jars"


def _ivy_default(folder: Path) -> str | None:
    """`DEFAULT_M2_ROOT`, read from the constant pool of Ivy's resolver class."""
    for jar in sorted(folder.glob("ivy-*.jar")):
        try:
            with zipfile.ZipFile(jar) as archive:
                match = _MAVEN_ROOT.search(archive.read(_RESOLVER_CLASS))
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        if match is not None:
            return match.group().decode("ascii")
    return None
