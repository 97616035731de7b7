"""The boundary to user code: exceptions become errors with the location in the user's code."""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import functions

from penstock._analysis.missing_sources import NO_TABLE, error_details, lacks_file_system
from penstock._model import similar
from penstock._model.exception_text import first_line
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation, is_ours, source_location
from penstock._model.paths import MAP_PATH, MISSING_PATH_HINT
from penstock._observe.masking import shown
from penstock._spark.call_sites import user_columns
from penstock._spark.failures import BUCKET_HINT, NO_BUCKET, permission_hint
from penstock.errors import DefinitionError, PenstockError, UserCodeError

_THREE_PARTS = "REQUIRES_SINGLE_PART_NAMESPACE"
_PLATFORM_FUNCTION = re.compile(r"(?i)(?:^|[`.])(?:ai_\w+|vector_search|http_request)`?$")

_HINTS = {
    "DATA_SOURCE_NOT_FOUND|No suitable driver|ClassNotFoundException": "if its name is right, add "
    "the jar of the connector or JDBC driver with the setting spark.jars; for JDBC, also set "
    "option `driver`",
    "Illegal file pattern": "correct the wildcards of the path, or of option pathGlobFilter: `[` "
    "needs a `]`, and `{` a `}`; a backslash before them makes them plain characters",
    "must be executed with writeStream|CALL_ON_STREAMING_DATASET_UNSUPPORTED": "return the "
    "DataFrame itself: a query function does not collect, count, show or write the rows of a "
    "stream; a sink with an `append_flow` writes them to another system",
    "Schema must be specified when creating a streaming source": "declare its columns with "
    '.schema("id BIGINT, ..."), or use .format("cloudFiles"), which infers them',
}


class DatasetNotReadyError(BaseException):
    """A query function read a dataset that is not analysed yet.

    Not an `Exception`, so that `except Exception` in user code does not catch it.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


class DatasetCycleError(BaseException):
    """Query functions of views call each other in a cycle; the message is the path."""


def user_origin(trace: TracebackType | None, fallback: SourceLocation) -> SourceLocation:
    """The location of the innermost frame of user code."""
    origin = fallback
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        is_library = "site-packages" in file or "/lib/python" in file
        if not (file.startswith("<") or is_library or is_ours(file)):
            origin = source_location(file, line)
    return origin


@contextmanager
def user_code(flow: Flow, nearest: Callable[[str], str | None]) -> Iterator[None]:
    """Translate the exceptions of a query function to `DefinitionError` or `UserCodeError`."""
    try:
        with user_columns():
            yield
    except PenstockError as error:
        error.origin = error.origin or user_origin(error.__traceback__, flow.origin)
        raise
    except (Exception, SystemExit) as error:
        origin = user_origin(error.__traceback__, flow.origin)
        raise query_error(error, flow.name, origin, nearest) from error


def query_error(
    error: BaseException, flow: str, origin: SourceLocation, nearest: Callable[[str], str | None]
) -> PenstockError:
    condition, parameters = error_details(error)
    function = parameters.get("routineName") or parameters.get("identifier")
    if condition == "UNRESOLVED_ROUTINE" and _PLATFORM_FUNCTION.search(function or ""):
        return DefinitionError(
            "FEATURE_NOT_AVAILABLE",
            f"{flow!r} calls {str(function).replace('`', '')!r}, which calls a service "
            "of Databricks",
            origin=origin,
            hint="call a model from a pandas UDF instead",
        )
    # Spark has the same error for a table and a function whose name has three parts.
    is_table = condition in NO_TABLE and "asTableIdentifier" in str(
        getattr(error, "_stackTrace", "")
    )
    if condition in ("UNRESOLVED_ROUTINE", _THREE_PARTS) and function and not is_table:
        name = function.replace("`", "")
        close = similar.nearest(name, functions.__all__, cutoff=0.8)
        return DefinitionError(
            "FUNCTION_NOT_FOUND",
            f"{flow!r} calls the function {name!r}, which Spark does not have",
            origin=origin,
            hint=f"did you mean `{close}`?"
            if close
            else "functions of a workspace are not available: compute it in the query, or register "
            "a function under a one-part name with spark.udf.register in a source file",
        )
    if condition in NO_TABLE:
        keys = ("relationName", "schemaName", "namespace", "tableName", "identifier")
        known = next((parameters[key] for key in keys if key in parameters), None)
        name = shown(first_line(error)) if known is None else known.replace("`", "")
        near = nearest(name)
        return DefinitionError(
            "DATASET_NOT_FOUND",
            f"{flow!r} reads {name!r}, which is neither in the pipeline nor in the catalog",
            origin=origin,
            hint=f"did you mean {near!r}?"
            if near
            else "declare it, or map it under `tables` in the settings",
        )
    if condition == "PATH_NOT_FOUND":
        return DefinitionError(
            "PATH_NOT_FOUND",
            f"{flow!r} reads a path that does not exist: {parameters.get('path', '')}",
            origin=origin,
            hint=MISSING_PATH_HINT,
        )
    if lacks_file_system(error):
        return DefinitionError(
            "PATH_NOT_FOUND",
            f"{flow!r} reads a path that cannot be opened here: {shown(first_line(error))}",
            origin=origin,
            hint=f"{MAP_PATH}, or add the jars of that file system with the setting spark.jars",
        )
    if NO_BUCKET in str(error):
        return DefinitionError(
            "PATH_NOT_FOUND",
            f"{flow!r} reads a path on S3 whose bucket cannot be used: {NO_BUCKET}",
            origin=origin,
            hint=BUCKET_HINT,
        )
    if "NoSuchBucket" in str(error):
        return DefinitionError(
            "PATH_NOT_FOUND",
            f"{flow!r} reads a bucket that does not exist: {shown(first_line(error))}",
            origin=origin,
            hint=f"check its name and the endpoint; for a path of another platform, {MAP_PATH}",
        )
    if hint := permission_hint(str(error)):
        return DefinitionError(
            "PERMISSION_DENIED",
            f"{flow!r} reads a path without permission: {shown(first_line(error))}",
            origin=origin,
            hint=hint,
        )
    if "COLUMN_IS_NOT_VARIANT_TYPE" in str(error):  # Spark has no message for this condition
        return DefinitionError(
            "QUERY_INVALID",
            f"{flow!r}: `column:path` is read from a column that is neither VARIANT nor STRING",
            origin=origin,
            hint="read the field of a STRUCT as `column.field`, of a MAP as `column['key']`",
        )
    near = similar.attribute_hint(error)
    if condition or isinstance(error, AnalysisException | Py4JJavaError):
        text = shown(first_line(error))
        return DefinitionError(
            "QUERY_INVALID",
            f"{flow!r}: {text}",
            origin=origin,
            hint=next((hint for sign, hint in _HINTS.items() if re.search(sign, text)), near),
        )
    return UserCodeError(
        "QUERY_FUNCTION_RAISED",
        f"the query function of {flow!r} raised {type(error).__name__}: {shown(first_line(error))}",
        origin=origin,
        hint=MISSING_PATH_HINT if isinstance(error, FileNotFoundError) else near,
    )
