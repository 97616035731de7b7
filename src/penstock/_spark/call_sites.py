"""Limits the recording of source lines of `Column` operations to user code.

PySpark records the line of each operation for error messages, with about 15 JVM calls. The lines of
Penstock's own columns are not recorded.
"""

import contextlib
import threading
from collections.abc import Iterator

from pyspark.errors import utils

_lock = threading.Lock()
_scopes = {"own": 0, "user": 0}


def own_columns() -> contextlib.AbstractContextManager[None]:
    """Record no lines until the scope ends, on any thread."""
    return _scope("own")


def user_columns() -> contextlib.AbstractContextManager[None]:
    """Record lines in a scope of user code, if `spark.python.sql.dataFrameDebugging.enabled`."""
    return _scope("user")


@contextlib.contextmanager
def _scope(name: str) -> Iterator[None]:
    _change(name, 1)
    try:
        yield
    finally:
        _change(name, -1)


def _change(name: str, by: int) -> None:
    with _lock:
        _scopes[name] += by
        is_off = _scopes["own"] > 0 and not _scopes["user"]
        # PySpark has no API for this: it caches the setting, and reads it again after `None`.
        utils._enable_debugging_cache = False if is_off else None  # type: ignore[assignment]
