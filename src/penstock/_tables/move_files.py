"""Moving the files of a staging job from one table's folder into another's."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import local_path

_CHEAP_RENAME = frozenset({"file", "hdfs", "viewfs"})


def renames_cheaply(path: str) -> bool:
    """Whether a rename is one step on the file system of a path; on object stores it is a copy."""
    if local_path(path) is not None:
        return True
    scheme = urlparse(path).scheme
    return scheme in _CHEAP_RENAME


def move_files(delta: DeltaJvm, files: Iterable[str], source: str, target: str) -> None:
    """Move data files, given by the `path` of their `AddFile`, from one table to another.

    Files that were moved already, by a process that died, are left alone.

    Args:
        delta: The bridge.
        files: URL-encoded paths relative to the table.
        source: Table that they lie in.
        target: Table that they go to.
    """
    here, there = local_path(source), local_path(target)
    for file in files:
        relative = unquote(file)
        if here is not None and there is not None:
            _move_locally(here / relative, there / relative)
        else:
            _move_with_hadoop(delta, f"{source}/{relative}", f"{target}/{relative}")


def delete_files(delta: DeltaJvm, files: Iterable[str], table: str) -> None:
    """Delete data files that no commit names."""
    here = local_path(table)
    for file in files:
        relative = unquote(file)
        if here is not None:
            path = here / relative
            path.unlink(missing_ok=True)
            _checksum(path).unlink(missing_ok=True)
        else:
            system, path_ = _hadoop(delta, f"{table}/{relative}")
            system.delete(path_, False)


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _move_locally(source: Path, target: Path) -> None:
    # A checksum that stays behind would be an orphan that VACUUM does not see.
    _checksum(source).unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists() and target.exists():
        return
    try:
        os.rename(source, target)  # noqa: PTH104 - the caller handles a file in two places
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)
        source.unlink()


def _move_with_hadoop(delta: DeltaJvm, source: str, target: str) -> None:
    system, source_path = _hadoop(delta, source)
    _, target_path = _hadoop(delta, target)
    system.mkdirs(target_path.getParent())
    if not system.exists(source_path) and system.exists(target_path):
        return
    if not system.rename(source_path, target_path):
        raise OSError(f"could not move {source} to {target}")


def _hadoop(delta: DeltaJvm, path: str) -> tuple[Any, Any]:
    found = delta.jvm.org.apache.hadoop.fs.Path(path)
    conf = delta.spark._jsparkSession.sessionState().newHadoopConf()
    return found.getFileSystem(conf), found
