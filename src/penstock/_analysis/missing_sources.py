"""Missing sources: why they cannot be read, and the setting that corrects this."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from penstock._formats.merging import apply_hints
from penstock._model.exception_text import first_line
from penstock._model.paths import MAP_PATH
from penstock._tables.files import local_path
from penstock.errors import DefinitionError, PenstockError

NOTHING_THERE = f"the path does not exist; {MAP_PATH}"
NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE", "SCHEMA_NOT_FOUND")
"""Conditions of Spark's errors for missing tables."""
_HINTS = "schemahints"
_NO_FILE_SYSTEM = re.compile(
    r'No FileSystem for scheme "?(?P<scheme>[\w+.-]+)|Class [\w.$]*FileSystem[\w$]* not found'
)


def lacks_file_system(error: BaseException) -> bool:
    """Whether this installation has no file system for the scheme of a path."""
    return _NO_FILE_SYSTEM.search(str(error)) is not None


def error_details(error: Any) -> tuple[str, dict[str, str]]:
    """Condition and message parameters of a Spark error; empty for any other error."""
    try:
        return str(error.getCondition() or ""), dict(error.getMessageParameters() or {})
    except Exception:
        return "", {}


def missing_reason(error: Exception, paths: Sequence[str]) -> str:
    """Why a source cannot be read, with the setting that corrects this."""
    if match := _NO_FILE_SYSTEM.search(str(error)):
        scheme = match["scheme"] or next((path.split(":")[0] for path in paths if ":" in path), "")
        return f"no file system for {scheme}: is installed here; {MAP_PATH}"
    if paths and not any(_may_exist(path) for path in paths):
        return NOTHING_THERE
    if isinstance(error, PenstockError):
        return error.message
    condition, _ = error_details(error)
    if condition == "PATH_NOT_FOUND":
        return NOTHING_THERE
    if condition in NO_TABLE:
        return "neither in the pipeline nor in the catalog; map it under `tables` in the settings"
    return f"{first_line(error)}; {MAP_PATH}" if paths else first_line(error)


def hinted_columns(options: Mapping[str, str]) -> StructType:
    """The columns of Auto Loader's schema hints."""
    hints = _option(options, _HINTS)
    return apply_hints(StructType(), hints) if hints else StructType()


def require_files_beside_hints(options: Mapping[str, str], paths: Sequence[str]) -> None:
    """Refuse schema hints without files: they would become the whole schema."""
    if _option(options, _HINTS) and not any(_may_exist(path) for path in paths):
        raise DefinitionError("PATH_NOT_FOUND", NOTHING_THERE)


def format_option(options: Mapping[str, str]) -> str:
    """The format in the options of Auto Loader; empty if it is not set."""
    return _option(options, "format")


def _option(options: Mapping[str, str], name: str) -> str:
    named = {key.lower().removeprefix("cloudfiles."): value for key, value in options.items()}
    return named.get(name, "")


def _may_exist(path: str) -> bool:
    """Whether a path may exist; only local paths without wildcards are checked."""
    local = local_path(path)
    if local is None or any(sign in path for sign in "*?[{"):
        return True
    return local.exists()
