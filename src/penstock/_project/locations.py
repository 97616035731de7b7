"""Paths and URIs that settings name, made absolute."""

import os
import re
from pathlib import Path

from penstock._model.similar import nearest
from penstock.errors import SpecError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]+):(.*)", re.DOTALL)


def storage_uri(text: str, folder: Path) -> str:
    """Return an absolute storage URI; a path is relative to `folder`."""
    try:
        place = absolute_location(text, folder)
    except ValueError as error:
        raise SpecError(
            "STORAGE_INVALID",
            f"the storage `{text}` {error}",
            hint="write an absolute URI (file:///data/orders, s3a://bucket/orders), or a plain "
            "path",
        ) from None
    # Hadoop's Path does not decode `%20`, so the path is not encoded.
    return f"file://{place}" if place.startswith("/") else place


def absolute_location(text: str, folder: Path) -> str:
    """Return an absolute path, or a URI as it is; a relative path is taken from `folder`.

    The message of a `ValueError` is a predicate, to be appended to the location.
    """
    if not text.strip():
        raise ValueError("is blank")
    match = _SCHEME.fullmatch(text.strip())
    if match is None:
        return os.path.normpath(folder / Path(text.strip()).expanduser())
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        path = rest.removeprefix("//").removeprefix("localhost")
        if path.startswith("/"):
            return "file://" + os.path.normpath("/" + path.lstrip("/"))
        raise ValueError("is relative")
    if rest.strip("/"):
        return f"{scheme}:{rest.rstrip('/')}"
    raise ValueError("does not name a location")


def nearest_file(path: Path) -> str | None:
    """Return a hint with the most similar name in the folder of a missing file."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    near = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    return f"did you mean `{path.parent / near}`?" if near else None
