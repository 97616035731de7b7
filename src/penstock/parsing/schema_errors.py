"""`PAYLOAD_SCHEMA_INVALID`: a schema of payloads, or its file, cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError


def schema_invalid(problem: str, hint: str | None = None) -> DefinitionError:
    """The error for a schema that cannot be used."""
    return DefinitionError("PAYLOAD_SCHEMA_INVALID", problem, origin=capture_origin(), hint=hint)


@contextmanager
def schema_file(path: Path) -> Iterator[None]:
    """Translate errors of reading a schema file."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise schema_invalid(
            f"no schema can be read from {path}: {reason}",
            "relative paths start at the pipeline's root folder",
        ) from error


def read_schema_file(path: Path) -> str:
    """The text of a schema file."""
    with schema_file(path):
        return path.read_text(encoding="utf-8")
