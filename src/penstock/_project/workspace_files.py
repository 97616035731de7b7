"""Finds files on this machine that settings name by their paths in a workspace.

A pipeline in a workspace lists `/Repos/me@example.com/shop/notebooks/bronze`: an absolute path,
without an extension. The local file is the one whose path ends in the most of these components. It
is searched below the project's folder, then in the rest of its Git repository.
"""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from penstock._project.documents import Node
from penstock.errors import SpecError

SourcePattern = tuple[Path, str]
"""A folder, and a path relative to it: of a file, or of a folder with `/**` at its end."""

_EXTENSIONS = ("", ".py", ".ipynb", ".sql", ".scala", ".r", ".R")
NO_FOLDERS = {"__pycache__", "node_modules", "site-packages"}
# Entries of tables and virtual environments, which are not searched.
_MARKS_OF_NO_FOLDER = ("_delta_log", "pyvenv.cfg")
_MOST_ENTRIES = 50_000
_MAGIC = "*?[{"


class WorkspaceFiles:
    """Finds the files and folders that the settings of one project name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: dict[Path, list[tuple[PurePosixPath, bool]]] = {}
        self._top = _repository_of(root)

    def file(self, named: Node, path: str, what: str) -> SourcePattern:
        """Return where a source file or notebook is; its extension may be left out.

        The path is absolute in the workspace, or relative to the settings file; `what` is for
        errors.
        """
        for place in self._direct(named, path):
            for extension in _EXTENSIONS:
                candidate = Path(f"{place}{extension}")
                if candidate.is_file():
                    return self._pattern(candidate)
        if path.startswith("/"):
            file = self._longest_suffix(named, path, folders=False)
            if file is not None:
                return self._pattern(file)
        raise self._missing(named, path, what)

    def folder(self, named: Node, path: str) -> Path | None:
        """Return where a folder is, or `None`."""
        for place in self._direct(named, path):
            if place.is_dir():
                return place
        return self._longest_suffix(named, path, folders=True) if path.startswith("/") else None

    def pattern(self, named: Node, include: str) -> SourcePattern:
        """Return where the files of a `glob` are."""
        parts = include.split("/")
        wild = next((at for at, part in enumerate(parts) if set(part) & set(_MAGIC)), len(parts))
        head, tail = "/".join(parts[:wild]), parts[wild:]
        if not head and not include.startswith("/"):
            return self._pattern(named.file.parent.resolve(), *tail)
        folder = self.folder(named, head or "/")
        if folder is not None:
            return self._pattern(folder, *(tail or ["**"]))
        if tail:
            raise self._missing(named, head, "folder")
        return self.file(named, include, "file or folder")

    def _direct(self, named: Node, path: str) -> Iterator[Path]:
        if path.startswith("/"):
            yield Path(os.path.normpath(path))
        else:
            yield Path(os.path.normpath(named.file.parent.resolve() / path))
            yield Path(os.path.normpath(self.root / path))

    def _pattern(self, path: Path, *tail: str) -> SourcePattern:
        return self.root, "/".join([Path(os.path.relpath(path, self.root)).as_posix(), *tail])

    def _longest_suffix(self, named: Node, path: str, *, folders: bool) -> Path | None:
        wanted = [part for part in path.split("/") if part not in ("", ".", "..")]
        for top in dict.fromkeys([self.root, self._top]):
            ranked: dict[tuple[int, int, int], list[PurePosixPath]] = {}
            for entry, is_folder in self._entries(top):
                if is_folder == folders:
                    length, extension = _common_end(entry, wanted, folders=folders)
                    if length:
                        rank = -length, len(entry.parts), extension
                        ranked.setdefault(rank, []).append(entry)
            if ranked:
                fitting = sorted(ranked[min(ranked)])
                if len(fitting) > 1:
                    raise _ambiguous(named, path, fitting)
                return top / fitting[0]
        return None

    def _entries(self, top: Path) -> list[tuple[PurePosixPath, bool]]:
        if top not in self._listed:
            listed = self._listed[top] = []
            for current, folders, files in os.walk(top):
                folders[:] = sorted(name for name in folders if is_searched(Path(current, name)))
                here = PurePosixPath(Path(current).relative_to(top).as_posix())
                listed += [(here / name, True) for name in folders]
                listed += [(here / name, False) for name in sorted(files) if name[0] != "."]
                if len(listed) > _MOST_ENTRIES:
                    break
        return self._listed[top]

    def _missing(self, named: Node, path: str, what: str) -> SpecError:
        name = path.rstrip("/").rpartition("/")[2]
        by_name: dict[str, PurePosixPath] = {}
        for entry, _ in [*self._entries(self.root), *self._entries(self._top)]:
            by_name.setdefault(entry.name, entry)
            by_name.setdefault(entry.stem, entry)
        close = get_close_matches(name, by_name, n=5, cutoff=0.6)
        shown = ", ".join(dict.fromkeys(f"`{by_name[word]}`" for word in close))
        return SpecError(
            "SOURCE_NOT_FOUND",
            f"{named.origin.file}: the {what} `{path}` is not in {self._top}",
            origin=named.origin,
            hint=f"did you mean {shown}?" if shown else None,
        )


def _ambiguous(named: Node, path: str, fitting: list[PurePosixPath]) -> SpecError:
    shown = ", ".join(f"`{entry}`" for entry in fitting[:5])
    return SpecError(
        "SOURCE_AMBIGUOUS",
        f"{named.origin.file}: `{path}` may be any of {shown}",
        origin=named.origin,
        hint="list the right one in `penstock.yaml` in the folder of the file: "
        "`libraries: [{file: {path: ...}}]`",
    )


def _common_end(entry: PurePosixPath, wanted: list[str], *, folders: bool) -> tuple[int, int]:
    """The number of equal last components, and the index of the extension that was added."""
    if not wanted:
        return 0, 0
    names = [wanted[-1]] if folders else [wanted[-1] + extension for extension in _EXTENSIONS]
    if entry.name not in names:
        return 0, 0
    length = 1
    for mine, theirs in zip(reversed(entry.parts[:-1]), reversed(wanted[:-1]), strict=False):
        if mine != theirs:
            break
        length += 1
    return length, names.index(entry.name)


def _repository_of(root: Path) -> Path:
    """The nearest folder around `root` that is the top of a Git repository, otherwise `root`."""
    around = (folder for folder in (root, *root.parents) if (folder / ".git").exists())
    return next(around, root)


def is_searched(folder: Path) -> bool:
    """Whether a folder may contain source files of a project."""
    if folder.name.startswith(".") or folder.name in NO_FOLDERS:
        return False
    return not any((folder / mark).exists() for mark in _MARKS_OF_NO_FOLDER)
