"""Holds the files of an event log for a reader that opens them late, and more than once.

Spark lists files when a query is planned and reads them in parts when it runs. A file that is
replaced in between by a smaller one would have other events in these parts.
"""

import contextlib
import hashlib
import shutil
import uuid
from pathlib import Path

from penstock._observe.log import updates

HELD = ".held"
"""In the folder of the log: folders with links to its files."""

PART_BYTES = 4 << 20
"""Spark does not divide a file that is smaller than what it takes for the cost of opening one."""

_SECONDS = 3600.0


def held_files(directory: Path, *, part_bytes: int = PART_BYTES) -> Path | None:
    """A folder with the files of the log as they are now; nothing is copied.

    What is appended to them shows there until they are replaced. It is good for an hour after the
    last call that returned it.

    Args:
        directory: Of the event log.
        part_bytes: Smaller files are read at once.

    Returns:
        `None` where that is not needed, because all files are small, or not possible, because the
        file system has no hard links or cannot be written to.
    """
    found, largest = [], 0
    for file in updates(directory):
        with contextlib.suppress(FileNotFoundError):
            status = file.path.stat()
            found.append((file.path, status.st_ino))
            largest = max(largest, status.st_size)
    if largest < part_bytes:
        return None
    names = "\n".join(f"{path.name} {inode}" for path, inode in found)
    key = hashlib.sha256(names.encode()).hexdigest()[:16]
    folder = directory / HELD / key
    draft = folder.with_name(f".{key}-{uuid.uuid4().hex}")
    try:
        if not folder.is_dir():
            draft.mkdir(parents=True)
            for path, _ in found:
                with contextlib.suppress(FileNotFoundError):
                    (draft / path.name).hardlink_to(path)
            with contextlib.suppress(FileExistsError):
                draft.rename(folder)
        folder.touch()
    except OSError:
        return None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def release_held(directory: Path, *, now: float) -> None:
    """Let go of what nobody has asked for within an hour.

    Args:
        directory: Of the event log.
        now: Unix time.
    """
    for folder in (directory / HELD).glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if now - folder.stat().st_mtime > _SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
