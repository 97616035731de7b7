"""Mapped paths for plain Python: `open("/Volumes/...")` and the like, as on Databricks.

There, such paths are local files. While a project is open, Python's functions that open, inspect
and list files follow the mapping of the settings; all other paths are unchanged.
"""

import builtins
import functools
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock._model.paths import local_path

_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (builtins, "open"),
    (io, "open"),
    (os, "stat"),
    (os, "lstat"),
    (os, "listdir"),
    (os, "scandir"),
)


@contextmanager
def mapped_files(map_path: Callable[[str], str]) -> Iterator[None]:
    """Let functions that read files and folders follow a mapping while this is open.

    It changes the whole process.
    """
    originals = [getattr(module, name) for module, name in _FUNCTIONS]
    for (module, name), original in zip(_FUNCTIONS, originals, strict=True):
        setattr(module, name, _following(original, map_path))
    try:
        yield
    finally:
        for (module, name), original in zip(_FUNCTIONS, originals, strict=True):
            setattr(module, name, original)


def _following(original: Callable[..., Any], map_path: Callable[[str], str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        if arguments:
            return original(_place(arguments[0], map_path), *arguments[1:], **options)
        for name in options.keys() & {"file", "path"}:
            options[name] = _place(options[name], map_path)
        return original(**options)

    return call


def _place(path: Any, map_path: Callable[[str], str]) -> Any:
    if not isinstance(path, str | os.PathLike):
        return path
    text = os.fspath(path)
    if not isinstance(text, str) or not text.startswith("/"):
        return path
    mapped = map_path(text)
    place = None if mapped == text else local_path(mapped)
    return path if place is None else str(place)
