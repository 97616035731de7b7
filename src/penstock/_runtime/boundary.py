"""The boundary to the engine: converts its exceptions to Penstock errors."""

import errno
import logging
import traceback
from pathlib import Path

from penstock.errors import InternalError, PenstockError, SetupError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_logger = logging.getLogger(__name__)


def as_penstock_error(raised: BaseException, doing: str) -> PenstockError:
    """Convert an exception of the engine to a Penstock error; an unexpected one is a bug.

    The message does not contain the text of other exceptions, because it is not redacted; it is in
    the log and in `__cause__`.
    """
    if isinstance(raised, PenstockError):
        return raised
    if (refused := refused_by_system(raised, doing)) is not None:
        return refused
    _logger.error("unexpected error while %s", doing, exc_info=raised)
    frames = traceback.extract_tb(raised.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    error = InternalError(
        "UNEXPECTED_ERROR",
        f"unexpected {type(raised).__name__}{where} while {doing}",
        hint="this is a bug in Penstock: please report it with the traceback from the log",
    )
    error.__cause__ = raised
    return error


def refused_by_system(raised: BaseException, doing: str) -> SetupError | None:
    """The error for a file without permission, a full disk or a working directory that was removed.

    `None` for any other exception.
    """
    # Raised by `os.getcwd`: the errors of other functions have a file name.
    if isinstance(raised, FileNotFoundError) and raised.errno and raised.filename is None:
        return SetupError(
            "WORKING_DIRECTORY_GONE",
            f"the working directory does not exist any more, while {doing}",
            hint="run the command in an existing folder; if it was created again, `cd` to it again",
        )
    if not isinstance(raised, PermissionError) or raised.filename is None:
        return disk_full(raised, doing)
    error = SetupError(
        "PERMISSION_DENIED",
        f"{raised.strerror} while {doing}: {raised.filename}",
        hint="give the user that runs the command access to it, or run it as another user",
    )
    error.__cause__ = raised
    return error


def disk_full(raised: BaseException, doing: str) -> SetupError | None:
    """The error for a full or read-only file system; `None` for any other exception."""
    if not isinstance(raised, OSError) or raised.errno not in _FULL:
        return None
    error = SetupError(
        "DISK_FULL",
        f"{raised.strerror} while {doing}: {raised.filename or 'the storage of the pipeline'}",
        hint="free some space on its file system, or make it writable, and start again",
    )
    error.__cause__ = raised
    return error
