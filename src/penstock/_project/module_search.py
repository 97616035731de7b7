"""Whether a module can be imported, and which file of the project it is; nothing is imported."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

# Modules that are provided while a pipeline loads.
_PROVIDED = {
    *("dlt", "penstock", "pyspark", "delta", "py4j"),
    *("databricks.sdk.runtime", "databricks.connect"),
}


# A folder of transformations is in a pipeline's folder, which is in a repository.
_MOST_ABOVE = 3


def folder_around(root: Path, module: str) -> Path | None:
    """Return the nearest folder above a project's that has a module or package of that name.

    A pipeline's root may be a part of a project: `transformations`, with `utilities` next to it.
    Nothing is searched above a Git repository.
    """
    here = root
    for folder in list(root.parents)[:_MOST_ABOVE]:
        if (here / ".git").exists():
            return None
        package = folder / module
        if (folder / f"{module}.py").is_file() or any(
            next(package.glob(pattern), None) for pattern in ("*.py", "*/*.py")
        ):
            return folder
        here = folder
    return None


class ModuleSearch:
    """Searches modules as sources find them; the first of the folders is the root."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [Path(folder) for folder in folders]

    def add(self, folder: Path) -> None:
        """Search another folder, which a source adds to `sys.path`; ignored if it is missing."""
        if folder.is_dir():
            self._folders.append(folder.resolve())

    def is_known(self, module: str) -> bool:
        """Whether the module is part of Python, installed, provided, or in the project."""
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in _PROVIDED or module in _PROVIDED:
            return True
        if any((folder / f"{top}.py").is_file() or (folder / top).is_dir()
               for folder in self._folders):  # fmt: skip
            return True
        try:
            if find_spec(top) is not None:
                return True
        except (ImportError, ValueError):
            pass
        return folder_around(self._folders[0], top) is not None

    def file_of(self, module: str, importer: Path) -> Path | None:
        """Return the project's file of a dotted name, which may be relative to a folder."""
        name = module.lstrip(".")
        dots = len(module) - len(name)
        folders = [importer, *self._folders]
        if around := folder_around(self._folders[0], name.partition(".")[0]):
            folders.append(around)
        if dots:
            folders = [importer, *importer.parents][dots - 1 : dots]
        elif name.partition(".")[0] in sys.stdlib_module_names:
            return None
        parts = [part for part in name.split(".") if part]
        for folder in folders:
            place = folder.joinpath(*parts)
            for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if parts and path.is_file():
                    return path
        return None
