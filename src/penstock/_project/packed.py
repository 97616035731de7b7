"""The project in a file that `penstock package` made, seen from its own code.

Such a file is a PEX: it unpacks Penstock, the project next to it and the packages into a cache.
"""

import os
from pathlib import Path

PROJECT_FOLDER = "penstock_project"
_PYTHON = "penstock-python"


def packed_project() -> Path | None:
    """The project's folder; `None` if this code is not from such a file."""
    folder = Path(__file__).resolve().parents[2] / PROJECT_FOLDER
    return folder if folder.is_dir() else None


def packed_python() -> Path | None:
    """The file as an executable below the project's folder, or `None`; see `SessionOptions.python`.

    The driver and the executors find it by its name in their working directories.
    """
    folder, file = packed_project(), os.environ.get("PEX")
    if folder is None or not file:
        return None
    link = folder / _PYTHON
    draft = folder / f".{_PYTHON}-{os.getpid()}"
    draft.symlink_to(Path(file).resolve())
    draft.replace(link)  # another process may run the same file
    return link
