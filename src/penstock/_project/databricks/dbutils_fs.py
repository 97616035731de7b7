"""`dbutils.fs` on local files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock._model.paths import local_path
from penstock._project.databricks.dbutils_part import Part, UnavailableError

MapPath = Callable[[str], str]
"""Maps a path in a source (`/Volumes/main/raw`, `dbfs:/raw`) to a path on this machine."""


class FileInfo(NamedTuple):
    """A result of `ls`, as on Databricks; the path of a folder ends with a slash."""

    path: str
    name: str
    size: int
    modificationTime: int

    def isDir(self) -> bool:
        return self.name.endswith("/")

    def isFile(self) -> bool:
        return not self.isDir()


class FileSystem(Part):
    """Files and folders, mapped by `map_path`; a missing one is a `FileNotFoundError`."""

    def __init__(self, map_path: MapPath, root: Path) -> None:
        super().__init__("dbutils.fs")
        self._map_path = map_path
        self._root = root

    def ls(self, path: str, *_options: Any) -> list[FileInfo]:
        place = self._existing(path)
        shown = self._shown(path)
        if place.is_file():
            return [_info(place, shown.rstrip("/"))]
        base = shown if shown.endswith("/") else f"{shown}/"
        return [_info(entry, base + entry.name) for entry in sorted(place.iterdir())]

    def head(self, file: str, maxBytes: int = 65536) -> str:
        place = self._existing(file)
        if place.is_dir():
            raise IsADirectoryError(f"cannot head a directory: {file}")
        with place.open("rb") as stream:
            return stream.read(max(0, int(maxBytes))).decode("utf-8", errors="replace")

    def put(self, file: str, contents: str, overwrite: bool = False) -> bool:
        place = self._changeable(file)
        if place.exists() and not overwrite:
            raise FileExistsError(
                f"org.apache.hadoop.fs.FileAlreadyExistsException: {file} already exists"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(contents, encoding="utf-8", newline="")
        return True

    def mkdirs(self, path: str) -> bool:
        self._place(path).mkdir(parents=True, exist_ok=True)
        return True

    def rm(self, path: str, recurse: bool = False) -> bool:
        """Remove a file or folder; return whether it existed."""
        place = self._changeable(path)
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif not place.exists():
            return False
        elif recurse:
            shutil.rmtree(place)
        else:
            place.rmdir()
        return True

    def cp(self, source: str, to: str, recurse: bool = False) -> bool:
        place, target = self._existing(source), self._changeable(to)
        if place.is_dir():
            if not recurse:
                raise IsADirectoryError(f"cannot copy the directory {source} without recurse")
            shutil.copytree(place, target, dirs_exist_ok=True)
            return True
        if target.is_dir():
            target = target / place.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, target)
        return True

    def mv(self, source: str, to: str, recurse: bool = False) -> bool:
        self._changeable(source)
        self.cp(source, to, recurse)
        return self.rm(source, recurse)

    def mounts(self) -> list[Any]:
        """Always empty: paths are mapped."""
        return []

    def mount(self, *_arguments: Any, **_parameters: Any) -> bool:
        """No effect: paths are mapped."""
        return True

    updateMount = mount
    unmount = mount
    refreshMounts = mount

    def _place(self, path: str) -> Path:
        place = local_path(self._map_path(str(path)))
        if place is None:
            raise UnavailableError(
                f"dbutils.fs on `{path}`, which is not a file on this machine,",
                "map the path to a local folder, or read it with spark",
                is_elsewhere=True,
            )
        return Path(os.path.normpath(self._root / place))

    def _existing(self, path: str) -> Path:
        place = self._place(path)
        if not place.exists():
            # Sources search for the name of Java's exception in the message.
            raise FileNotFoundError(
                f"java.io.FileNotFoundException: No such file or directory {path} ({place})"
            )
        return place

    def _changeable(self, path: str) -> Path:
        """A path that may be changed: never the home folder or the project itself."""
        place = self._place(path)
        precious = {self._root, Path.home(), Path.cwd()}
        if len(place.parts) <= 2 or any(kept.is_relative_to(place) for kept in precious):
            raise UnavailableError(
                f"changing {place} with dbutils.fs, which `{path}` means here,",
                "use a path below it",
            )
        return place

    def _shown(self, path: str) -> str:
        """The path shown in entries: Databricks prepends `dbfs:` to its own paths."""
        text = str(path)
        is_plain = text.startswith("/") and self._map_path(text) != text
        return f"dbfs:{text}" if is_plain else text


def _info(place: Path, shown: str) -> FileInfo:
    status = place.stat() if place.exists() else place.lstat()  # a link may lead nowhere
    slash = "/" if place.is_dir() else ""
    return FileInfo(
        path=shown + slash,
        name=place.name + slash,
        size=0 if slash else status.st_size,
        modificationTime=int(status.st_mtime * 1000),
    )
