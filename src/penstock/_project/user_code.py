"""Exceptions in the user's files, as errors that name the user's line."""

import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation, is_ours, source_location
from penstock._model.paths import MISSING_PATH_HINT
from penstock._model.similar import attribute_hint, suggested
from penstock._observe.masking import shown
from penstock._project.databricks.notebook import file_of_cell
from penstock.errors import UserCodeError

_NO_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)' \(")
_MACHINERY = "<frozen importlib"
_LONGEST = 400
_OF_SOURCES = ("spark", "sc", "sqlContext", "dbutils", "display", "displayHTML", "getArgument")
_NO_NOTEBOOK = (
    "IPython is not available; `dbutils`, `spark` and `display` work without it, also after "
    "`from databricks.sdk.runtime import dbutils`"
)


def user_code_error(
    error: BaseException, source: Path, root: str, missing_packages: Collection[str] = ()
) -> UserCodeError:
    """Return the error of a source file, for the user.

    The exception becomes the cause, without Penstock's frames in its traceback; the location is the
    innermost line below `root`.
    """
    error = error.with_traceback(_trim(error.__traceback__))
    kind = type(error).__name__
    condition, hint = "USER_CODE_RAISED", None
    origin = code_origin(error.__traceback__, source, root)
    if isinstance(error, SyntaxError) and error.filename and _path_of(error.filename).is_file():
        condition = "USER_CODE_SYNTAX"
        message = f"{kind}: {error.msg}" + (f": {error.text.strip()}" if error.text else "")
        origin = source_location(error.filename, error.lineno or 1)
    elif isinstance(error, SystemExit):
        message = shown(f"the file ended the program: exit code {error.code!r}")
        hint = "remove exit() and sys.exit() from source files"
    else:
        line = first_line(error)
        line = line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."
        message = shown(f"{kind}: {line}" if str(error) else kind)
        hint = _hint(error, root, missing_packages)
    result = UserCodeError(condition, message, origin=origin, hint=hint)
    result.__cause__ = error
    return result


def misspells_dlt(module: str) -> bool:
    """Whether the name of a module that does not exist is `dlt` with a mistake."""
    return re.fullmatch("[dlt]{2,4}", module) is not None


def _hint(error: BaseException, root: str, missing_packages: Collection[str]) -> str | None:
    if isinstance(error, ImportError) and str(error.name).startswith("databricks"):
        return "without a package, only `databricks.sdk.runtime` and `databricks.connect` exist"
    if isinstance(error, ModuleNotFoundError):
        if error.name in ("IPython", "dbruntime"):
            return _NO_NOTEBOOK
        if str(error.name).startswith("dlt."):
            return (
                "in a pipeline `dlt` is the pipeline API, which has no modules; code for the other "
                "`dlt` (the loading tool on PyPI) runs on its own, outside the pipeline's sources"
            )
        if missing_packages:
            return (
                "a `%pip` cell requires packages that are not installed: "
                f"`pip install {' '.join(missing_packages)}`"
            )
        if misspells_dlt(str(error.name)):
            return "did you mean `dlt`?"
        return (
            f"modules are imported from {root}, from the folder of the source file, and from "
            "installed packages"
        )
    if "[TABLE_OR_VIEW_NOT_FOUND]" in str(error):
        return (
            "a table of the pipeline that does not exist yet can be read inside of query functions "
            "only: move the read into the function that uses it; map other tables under `tables` "
            "in the settings"
        )
    if isinstance(error, FileNotFoundError):
        return MISSING_PATH_HINT
    if _is_unfinished(error):
        return (
            "files import each other in a cycle, and the name is defined below the `import`: move "
            "it to a file that both import"
        )
    if isinstance(error, NameError) and error.name in _OF_SOURCES:
        return (
            f"`{error.name}` is defined in source files only; in a module that they import, use "
            f"`from databricks.sdk.runtime import {error.name}`"
        )
    missing = _NO_NAME.match(str(error))
    if missing and (module := sys.modules.get(missing[2])):
        submodules = (name.removeprefix(f"{missing[2]}.") for name in sys.modules)
        return suggested(missing[1], [*dir(module), *submodules])
    of_ipython = ("get_ipython", "user_ns")
    if isinstance(error, NameError | AttributeError) and error.name in of_ipython:
        return _NO_NOTEBOOK
    return attribute_hint(error)


def _is_unfinished(error: BaseException) -> bool:
    """Whether a module lacks a name because its file is still being executed."""
    if isinstance(error, AttributeError):
        file = getattr(error.obj, "__file__", None)
    else:
        file = error.path if isinstance(error, ImportError) else None
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_filename == file and code.co_name == "<module>" for code in codes)


def code_origin(trace: TracebackType | None, source: Path, root: str) -> SourceLocation:
    """The deepest line of a traceback below `root`; the first line of `source` if there is none."""
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if _is_project_file(frame.f_code.co_filename, source, root)
    ]
    file, line = own[-1] if own else (str(source), 1)
    return source_location(file, line)


def _path_of(filename: str) -> Path:
    return Path(file_of_cell(filename))


def _is_project_file(filename: str, source: Path, root: str) -> bool:
    path = _path_of(filename)
    is_below = path.is_relative_to(root) and "site-packages" not in path.parts
    return path == source or is_below


def _trim(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not (is_ours(filename) or filename.startswith(_MACHINERY)):
            kept.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for part in reversed(kept):
        result = TracebackType(result, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return result
