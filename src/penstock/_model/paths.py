"""Maps paths on another platform to paths on this machine.

Source files contain paths such as `/Volumes/main/raw/orders`, `dbfs:/mnt/raw` or `s3://bucket/in`.
A `PathMap` maps them to paths on this machine, so that the files can be used unchanged.

Equivalent spellings of a path:

===========================================  ==============================================
`dbfs:/x`                                    `dbfs:///x`, `/dbfs/x`
`/Volumes/..`, `/mnt/..`, `/FileStore/..`,   the same behind `dbfs:` or `/dbfs`
`/databricks-datasets/..`
`s3://bucket/x`                              `s3a://bucket/x`, `s3n://bucket/x`
`/x`                                         `file:/x`, `file:///x`
===========================================  ==============================================

Relative paths are relative to the project: `data/x` is `./data/x`.
All others (`abfss://`, `wasbs://`, `gs://`, ...) are compared as written.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.errors import SpecError

MAP_PATH = "map its prefix under `paths` in the settings"
MISSING_PATH_HINT = (
    "relative paths start at the pipeline's root folder; "
    f"for a path of another platform, {MAP_PATH}"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):(.*)", re.DOTALL)
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_S3 = {"s3", "s3a", "s3n"}
_SAME_SYSTEM = {"s3": "s3a", "s3n": "s3a", "abfs": "abfss", "wasb": "wasbs"}
_DBFS_FOLDERS = {"Volumes", "mnt", "FileStore", "databricks-datasets"}
_PARENT_IN_BRACES = re.compile(r"(?:^|[/{,])\.\.(?:[/},]|$)")


def canonical_path(path: str) -> str | None:
    """Return the canonical form of a path, without a trailing slash; `None` if it is relative.

    Two paths are equivalent if their canonical forms are equal. The form is for comparison only: it
    is not always a path that can be opened.
    """
    match = _SCHEME.fullmatch(path)
    if match is None:
        return _plain(path) if path.startswith("/") else None
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        rest = rest.removeprefix("//").removeprefix("localhost")
        return _plain(rest) if rest.startswith("/") else None
    if scheme == "dbfs":
        return "dbfs:" + _slashes(rest)
    if scheme in _S3:
        scheme = "s3"
    return f"{scheme}:{rest}".rstrip("/")


def storage_key(uri: str) -> str:
    """A short name for a URI; equivalent URIs have the same name."""
    scheme, _, rest = uri.partition(":")
    scheme = _SAME_SYSTEM.get(scheme.lower(), scheme.lower())
    canonical = f"{scheme}://{re.sub('/+', '/', rest).strip('/')}"
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _plain(path: str) -> str:
    tidy = _slashes(path)
    first = tidy.split("/", 2)[1] if tidy else ""
    if first == "dbfs":
        return "dbfs:" + tidy.removeprefix("/dbfs")
    return f"dbfs:{tidy}" if first in _DBFS_FOLDERS else tidy


def _slashes(path: str) -> str:
    """One slash before each component, none at the end, no `.` as a component."""
    return "".join(f"/{part}" for part in path.split("/") if part not in ("", "."))


def path_key(path: str) -> str | None:
    """Like `canonical_path`, with `./` before relative paths; `None` for a blank path."""
    known = canonical_path(path)
    if known is not None or not path or _SCHEME.fullmatch(path):
        return known
    return "." + _slashes(path)


class PathMap:
    """Replaces the prefixes of paths. The longest prefix wins.

    Args:
        paths: Replacements (absolute paths or URIs) by prefix. A prefix matches whole components
            of a path: `/mnt/raw` is not a prefix of `/mnt/raw2`.

    Raises:
        SpecError: A prefix is blank or contains `..`, or two prefixes are equivalent.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._targets: dict[str, str] = {}
        written: dict[str, str] = {}
        for prefix, target in paths.items():
            known = path_key(prefix.strip())
            if known is None or ".." in known.split("/"):
                raise SpecError(
                    "PATHS_INVALID",
                    f"the prefix `{prefix}` of `paths` must be a path without `..`",
                    hint="write prefixes of paths as the source files do: `/Volumes/main`, "
                    "`s3://bucket`, `data/raw`",
                )
            if known in written:
                raise SpecError(
                    "PATHS_INVALID",
                    f"`{written[known]}` and `{prefix}` in `paths` are the same path",
                    hint=f"remove `{prefix}` or `{written[known]}`",
                )
            written[known] = prefix
            self._targets[known] = target
        self._homes = [
            home for target in self._targets.values() if (home := canonical_path(target))
        ]

    def map(self, path: str) -> str:
        """Return the mapped path; without a matching prefix, the path itself.

        The part after the prefix is kept, including wildcards. The result is never mapped again,
        and a path below a target is returned unchanged unless it has a prefix of at least the
        length of the target.

        Args:
            path: One path or URI. The caller splits comma-separated lists.

        Raises:
            SpecError: `..` leads out of the mapped folder.
        """
        known = path_key(path)
        if known is None:
            return path
        prefix = _longest(self._targets, known)
        if prefix is None:
            return path
        home = _longest(self._homes, known)
        if home is not None and len(home) > len(prefix):
            return path
        rest = known[len(prefix) :].lstrip("/")
        if _leaves(rest):
            raise SpecError(
                "PATH_OUTSIDE_MAPPING",
                f"`..` in the path `{path}` leads out of `{prefix or '/'}`, which `paths` maps",
                hint="write the path without `..`, or map the folder that it leads to as well",
            )
        target = self._targets[prefix]
        if not rest:
            return target
        return f"{target.rstrip('/')}/{rest}{'/' if path[-1] == '/' else ''}"


def _longest(prefixes: Mapping[str, str] | list[str], path: str) -> str | None:
    matching = [prefix for prefix in prefixes if path == prefix or path.startswith(f"{prefix}/")]
    return max(matching, key=len, default=None)


def _leaves(rest: str) -> bool:
    # Hadoop's globs remove backslashes.
    plain = rest.replace("\\", "")
    if "{" in plain:
        return _PARENT_IN_BRACES.search(plain) is not None
    depth = 0
    for part in plain.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False


def local_path(uri: str) -> Path | None:
    """The path of a `file:` URI or a plain path; `None` for any other scheme.

    Percent signs are not decoded, as in Hadoop.
    """
    if not _HAS_SCHEME.match(uri):
        return Path(uri)
    scheme, _, rest = uri.partition(":")
    return Path("/" + rest.lstrip("/")) if scheme.lower() == "file" else None


def real_path(path: str, map_path: Callable[[str], str]) -> str:
    """The mapped, absolute path for Spark; relative paths are below the project's root."""
    mapped = map_path(path)
    if mapped.startswith("/") or _HAS_SCHEME.match(mapped):
        return mapped
    # The JVM may have been started in another folder.
    return str(Path.cwd() / mapped)
