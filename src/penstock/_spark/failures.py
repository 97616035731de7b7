"""Translates exceptions of Spark, and decides whether a retry can help."""

import json
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock._model.exception_text import first_line
from penstock._model.flow import Flow
from penstock._model.origin import is_ours
from penstock._observe.masking import shown
from penstock.errors import (
    CheckpointError,
    ExpectationFailedError,
    FlowError,
    InternalError,
    PenstockError,
    SetupError,
)
from penstock.quality.split import parse_failure

# User code runs in query functions and Spark's workers; elsewhere these are bugs of Penstock.
_OUR_BUGS = (AttributeError, TypeError, KeyError, NameError, AssertionError)

_CHECKPOINT = re.compile(
    r"STREAMING_CHECKPOINT_\w+|STATE_STORE_\w*(?:SCHEMA|CHECKPOINT|PROVIDER)\w*|STATEFUL_OPERATOR_\w+"
    r"|Incomplete log file|Log file was malformed"
    r"|Checksum error: \S*/checkpoints/|batch \d+ doesn't exist"
    # Offsets or files of another source: a view became a table, or two sources were swapped.
    r"|There are \[\d+\] sources in the checkpoint|DELTA_INVALID_SOURCE_VERSION|Wrong basePath",
    re.IGNORECASE,
)
_CHECKPOINT_IN_USE = re.compile(r"concurrent (?:update to the log|stream log)", re.IGNORECASE)
_DETERMINISTIC = re.compile(
    r"AnalysisException|ParseException|SparkArithmeticException|SparkDateTimeException"
    r"|SparkNumberFormatException|ArrayIndexOutOfBounds|ClassCastException|MatchError"
    r"|PythonException|NotSerializableException|DeltaUnsupportedOperationException"
    r"|SparkUnsupportedOperationException|DELTA_SOURCE_TABLE_IGNORE_CHANGES"
    r"|DELTA_SOURCE_IGNORE_DELETE|DELTA_ILLEGAL_OPTION|DELTA_STARTING_VERSION_AND_TIMESTAMP_BOTH_SET"
    r"|SchemaColumnConvertNotSupported|PatternSyntaxException"
    r"|(?:Sasl|Ssl)AuthenticationException|TopicAuthorizationException"
    r"|ConfigException: Invalid value"
    r"|USER_RAISED_EXCEPTION|InvariantViolationException|ArithmeticException: long overflow"
    r"|CAST_INVALID_INPUT|CAST_OVERFLOW|DIVIDE_BY_ZERO|ARITHMETIC_OVERFLOW"
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system")
_DISK_PATH = re.compile(
    r"""['"]?((?:file:)?/[^\s'":()]+)['"]?:? ?\((?:No space|Disk quota|Read-only)"""
    r"""|(?:device|exceeded|system): ['"]([^'"]+)['"]"""
)
LOST_FILE = re.compile(
    r"FileNotFoundException: .*does not exist|\bNoSuchFileException\b|FILE_NOT_EXIST\b"
)
# Errors of ANSI mode at run time; without it the result is NULL, or overflows.
_ANSI = re.compile(
    r"\b(?:CAST_INVALID_INPUT|CAST_OVERFLOW|(?:INTERVAL_)?DIVIDED?_BY_ZERO|REMAINDER_BY_ZERO"
    r"|(?:\w+_)?ARITHMETIC_OVERFLOW|INVALID_ARRAY_INDEX(?:_IN_ELEMENT_AT)?|CANNOT_PARSE_TIMESTAMP"
    r"|NUMERIC_VALUE_OUT_OF_RANGE|DATETIME_FIELD_OUT_OF_BOUNDS)\b"
)
# The place of the expression that failed: in the text of SQL, or a line of Python.
_SQL_EXPRESSION = re.compile(r"== SQL.*==\n(?:.*\n)*?(.*)\n( *)(\^+)")
_PYTHON_EXPRESSION = re.compile(r'== DataFrame ==\n"\w+" was called from\n(.+):(\d+)')
# Spark's JDBC reader gets a value that does not fit the type of its column, before the query.
_JDBC_VALUE = re.compile(
    r"(?s)(?:NUMERIC_VALUE_OUT_OF_RANGE|Bad value for type \w+ :"
    r"|COLUMN_ARRAY_ELEMENT_TYPE_MISMATCH).*JdbcUtils\$\.\$anonfun\$makeGetter"
)
# Frames of that reader while it connects and between two rows; exceptions of JDBC drivers.
JDBC_READER = re.compile(r"JDBCRDD|JdbcUtils\$\$anon\$1\.getNext")
JDBC_DRIVER_FAILED = re.compile(r"(?:org\.postgresql\.util\.PSQL|java\.sql\.SQL)\w*Exception: (.+)")
_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|failOnDataLoss|Some data may have been lost")
# The topics and offsets, after Spark's general text.
_DATA_LOSS_REASON = re.compile(r"set the source option failOnDataLoss to false\.\s+Reason:\s+(.+)")
# Raised in Spark's Python workers; only the message is returned.
_REGISTRY = re.compile(r"\[(SCHEMA_REGISTRY_UNREACHABLE|SCHEMA_REGISTRY_REFUSED)\] ([^\n]+)")
# The response of S3 to credentials that are wrong or expired, or lack a permission.
_REFUSED = re.compile(r"\(Service: S3, Status Code: 40[013]\b")
# Hadoop's errors for a store that is unreachable or temporarily refuses requests.
_STORE_FAILED = re.compile(
    r"\(Service: S3, Status Code: 5\d\d\b|SdkClientException: Unable to execute HTTP request"
    r'|AbfsRestOperationException: Operation failed: "[^"]*", 5\d\d\b'
    r"|GoogleJsonResponseException: 5\d\d\b"
)
# Hadoop's error for a bucket for which Java's URI parser returns no host.
NO_BUCKET = "bucket is null/empty"
BUCKET_HINT = (
    "write s3a://BUCKET/PATH; Hadoop cannot use a bucket with an underscore in its name, or with a "
    "digit after its last dot: use another bucket"
)
_PERMISSION = re.compile(
    r"Permission denied[:)]|Operation not permitted|AccessDeniedException: (?!s3)"
    r"|Mkdirs failed to create"
)
_PERMISSION_HINT = "give the user that runs the command access to it, or run it as another user"
_WRITTEN_TO = re.compile(r"Task failed while writing rows to (s3a?://\S+?)\.?(?:\s|$)")
_NO_FORMAT = re.compile(r"ClassNotFoundException: (\S+)\.DefaultSource\b")
# Hints for Kafka sources and sinks, with the options to check.
_KAFKA_HINTS = {
    "SaslAuthenticationException": "check user and password in `kafka.sasl.jaas.config`, or the "
    "connection string of Event Hubs, and `kafka.sasl.mechanism`",
    "SslAuthenticationException": "check `kafka.security.protocol`, and `kafka.ssl.truststore.*`: "
    "the client must trust the certificate of the brokers",
    "TopicAuthorizationException": "the brokers do not permit this user to use "
    "the topic: a source needs the operations Describe and Read, a sink Describe and Write",
}
_MAY_PASS = (
    "SCHEMA_REGISTRY_UNREACHABLE",
    "DISK_FULL",
    "EXECUTOR_LOST",
    "JDBC_SOURCE_UNAVAILABLE",
)
_LEASE_LOST = re.compile(r"LEASE_LOST (\{.*\})")
_LEASE_HINT = (
    "this process was stopped, or could not reach the storage, for longer than "
    "`penstock.lease.duration`"
)
_REAL_TIME = re.compile(r"\[STREAMING_REAL_TIME_MODE\.(\w+)\]")
_MOST_CAUSES = 20


def is_refused_by_ansi(text: str) -> bool:
    """Whether ANSI mode refused a value, or the types of an expression."""
    return "[DATATYPE_MISMATCH" in text or _ANSI.search(text) is not None


def flow_error(
    error: BaseException | str,
    flow: Flow,
    *,
    batch_id: int | None = None,
    query_id: str | None = None,
) -> PenstockError:
    """The error to report for an exception that ended a flow."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, _OUR_BUGS):
        return InternalError(
            "INTERNAL_ERROR",
            f"flow {flow.name!r}: {type(error).__name__}: {error}",
            origin=flow.origin,
            hint="this is a bug in Penstock: please report it with the Spark log and --debug",
        )
    text = error if isinstance(error, str) else full_text(error)
    batch = "" if batch_id is None else f" in batch {batch_id}"
    raised: type[FlowError] = FlowError
    hint: str | None = None
    is_jdbc_value = _JDBC_VALUE.search(text) is not None
    violation = parse_failure(text)
    registry = _REGISTRY.search(text)
    if violation is not None:
        raised, condition = ExpectationFailedError, "EXPECTATION_VIOLATED"
        rules = ", ".join(violation.rules)
        message = f"a row violated expect_or_fail {rules}{batch}: {violation.row}"
        hint = (
            "nothing of the batch was written; correct the source, or make the rule drop rows "
            "(expect_or_drop puts them in quarantine)"
        )
    elif registry is not None:
        condition, message = registry[1], f"the query failed{batch}: {shown(registry[2])}"
        hint = (
            "nothing of the batch was written; check url and auth of the registry"
            if condition == "SCHEMA_REGISTRY_REFUSED"
            else "nothing of the batch was written; it is read again when the registry responds"
        )
    elif disk := _DISK.search(text):
        condition, message = "DISK_FULL", f"{disk[0].lower()}{_on_file_system(text)}{batch}"
        hint = (
            "free some space (or make it writable) and start again: no row is lost, and the batch "
            "is run again. Spark also writes to spark.local.dir, by default the temporary folder"
        )
    elif lost := _LEASE_LOST.search(text):
        condition, message = "LEASE_LOST", f"another update has taken over{batch}{_holder(lost[1])}"
        hint = f"{_LEASE_HINT}; the other update continues from the last commit"
    elif (
        not is_jdbc_value
        and JDBC_READER.search(text)
        and (database := JDBC_DRIVER_FAILED.search(text))
    ):
        condition = "JDBC_SOURCE_UNAVAILABLE"
        message = f"the database failed{batch}: {shown(database[1])}"
        hint = (
            "check that the database runs, and that its table and its user still exist; nothing "
            "of the batch was written, and it is read again"
        )
    elif "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in text:
        condition = "EXECUTOR_LOST"
        message = f"an executor was lost with rows that were still needed{batch}"
        hint = "nothing of the batch was written; it is run again as a whole"
    elif (absent := _NO_FORMAT.search(text)) is not None:
        condition, message = "SINK_FORMAT_NOT_SUPPORTED", f"Spark has no format {absent[1]!r}"
        hint = (
            "correct the format of the sink; or add its jar to `spark.jars.packages`, or register "
            "its Python data source"
        )
    elif _REAL_TIME.search(text):
        condition, message = "REAL_TIME_NOT_SUPPORTED", f"real-time mode: {cause(text)}"
        hint = (
            'Spark does not support this query in real-time mode; "processingTime=0 seconds" '
            "starts a batch as soon as the last one is done"
        )
    elif _CHECKPOINT_IN_USE.search(text):
        raised, condition = CheckpointError, "CHECKPOINT_IN_USE"
        message = f"another query writes to its checkpoint: {cause(text)}"
        hint = "stop one of the two queries, and start the other again: the checkpoint is intact"
    elif _CHECKPOINT.search(text):
        raised, condition = CheckpointError, "CHECKPOINT_UNUSABLE"
        message = f"cannot continue from its checkpoint: {cause(text)}"
        hint = (
            "if its query was changed, names its sources in another order, or reads another folder "
            f"than before, revert that; --full-refresh {flow.target} starts it over from its "
            f"sources{flow.sink_reset}"
        )
    elif _DATA_LOSS.search(text):
        condition = "SOURCE_ROWS_LOST"
        lost_rows = _DATA_LOSS_REASON.search(text)
        reason = shown(lost_rows[1]) if lost_rows is not None else cause(text)
        message = f"the source no longer has rows that were not read yet{batch}: {reason}"
        hint = (
            'set failOnDataLoss to "false" to continue without them, or --full-refresh '
            f"{flow.target}{flow.sink_reset}"
        )
    else:
        condition, message = "FLOW_FAILED", f"the query failed{batch}: {cause(text)}"
        if is_jdbc_value:
            hint = (
                "a value in the database does not fit the type that Spark chose for its column: "
                'set another one on the reader, as in .option("customSchema", "amount '
                'DECIMAL(38,2)") for greater numbers; STRING fits all values'
            )
        elif _ANSI.search(text):
            message += _expression(text)
            hint = (
                f"a value is invalid in the query of {flow.target}: try_cast, "
                "try_divide, try_add or get() return NULL instead; for the whole query "
                'spark_conf={"spark.sql.ansi.enabled": "false"} of its table or flow, for all '
                "queries the setting `spark.sql.ansi.enabled: false`"
            )
        elif "ArithmeticException: long overflow" in text:
            hint = (
                "a value is out of range, mostly the event time of a watermark or join: replace or "
                "filter such values before, as with cap_future of penstock.timing"
            )
        elif "OutOfMemoryError" in text:
            hint = (
                "Spark's memory is used up: raise `spark.driver.memory`, on a cluster also "
                "`spark.executor.memory`, or limit what a batch reads, as with maxFilesPerTrigger"
            )
        elif "TABLE_OR_VIEW_NOT_FOUND" in text:
            hint = (
                "correct the name; a temporary view of the rows that a function gets is in the "
                "session of the batch: query it with df.sparkSession.sql"
            )
        elif LOST_FILE.search(text):
            hint = (
                "if the file was moved, or its storage is not mounted, put it back; if it is lost, "
                "restore the table that it belongs to from a copy, or write it again"
            )
        else:
            hint = next((h for name, h in _KAFKA_HINTS.items() if name in text), None)
            hint = hint or permission_hint(text)
    return raised(
        condition,
        f"flow {flow.name!r}: {message}",
        flow=flow.name,
        batch_id=batch_id,
        query_id=query_id,
        retryable=condition in _MAY_PASS
        or (condition == "FLOW_FAILED" and not (is_jdbc_value or _DETERMINISTIC.search(text))),
        origin=flow.origin,
        hint=hint,
    )


def _expression(text: str) -> str:
    """The expression that failed, or its line in Python, if Spark's error has it."""
    if sql := _SQL_EXPRESSION.search(text):
        return f" (in `{shown(sql[1][len(sql[2]) :][: len(sql[3])].strip())}`)"
    if python := _PYTHON_EXPRESSION.search(text):
        return f" ({Path(python[1]).name}:{python[2]})"
    return ""


def permission_hint(text: str) -> str | None:
    """The hint for an error about a file, folder or object that may not be read or written."""
    if _REFUSED.search(text):
        # Hadoop reports the object that it writes without its bucket.
        written = _WRITTEN_TO.search(text)
        return (
            f"check the credentials for {'this location' if written is None else written[1]}: "
            "they may be wrong or expired. They must allow to list and read, and in the "
            "storage also to write and delete"
        )
    return _PERMISSION_HINT if _PERMISSION.search(text) else None


def command_error(error: Exception, command: str) -> PenstockError | None:
    """The error to report for an exception of the JVM that ended a command, while the JVM runs.

    `None` for any other exception.
    """
    if getattr(error, "java_exception", None) is None and getattr(error, "_origin", None) is None:
        return None
    text = full_text(error)
    if disk := _DISK.search(text):
        return SetupError(
            "DISK_FULL",
            f"{disk[0].lower()}{_on_file_system(text)} while running {command}",
            hint="free some space (or make it writable), and run the command again",
        )
    if lost := _LEASE_LOST.search(text):
        message = f"another update has taken over during the {command}{_holder(lost[1])}"
        return SetupError("LEASE_LOST", message, hint=f"{_LEASE_HINT}; run the command again")
    message = f"the {command} failed: {cause(text)}"
    if hint := permission_hint(text):
        return SetupError("PERMISSION_DENIED", message, hint=hint)
    if _STORE_FAILED.search(text):
        hint = "the object store does not respond, or is overloaded: run the command again later"
        return SetupError("STORAGE_NOT_READABLE", message, hint=hint)
    return InternalError("UNEXPECTED_ERROR", message)


def _holder(record: str) -> str:
    holder = json.loads(record)
    if not holder:
        return ""
    return f": process {holder['pid']} on {holder['host']}, since {holder['since']}"


def _on_file_system(text: str) -> str:
    """The path on a full disk, if the error has it, and its mount point."""
    match = _DISK_PATH.search(text)
    if match is None:
        return ""
    path = Path((match[1] or match[2]).removeprefix("file:"))
    mounts = (parent for parent in (path, *path.parents) if parent.is_mount())
    return f" for {path}, on the file system of {next(mounts, path.anchor)}"


def full_text(error: BaseException) -> str:
    """The messages of an exception, of its JVM exception and of its causes."""
    parts: list[str] = []
    for current in with_causes(error):
        parts.append(f"{type(current).__name__}: {current}")
        java: Any = getattr(current, "java_exception", None)
        if java is not None:
            parts.append(str(java.toString()))
        origin: Any = getattr(current, "_origin", None)
        if origin is not None:
            parts.append(str(origin.toString()))
    return "\n".join(parts)


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and its causes, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def java_causes(error: BaseException) -> str:
    """The causes of an exception in the JVM; Python has only the outermost."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    lines: list[str] = []
    while cause is not None and len(lines) < _MOST_CAUSES:
        lines.append(f"Caused by: {cause.toString()}")
        cause = cause.getCause()
    return "\n".join(lines)


# The exception's name is kept if the message is a single word, such as a path.
_NOISE = re.compile(
    r"^(?:(?:(?:py4j|org|java|scala|pyspark|io)\.[\w.$]+(?:Exception|Error)?|\w+(?:Exception|Error))"
    r":\s*(?=\S+\s)"
    r"|\[STREAM_FAILED\] Query .*? terminated with exception:\s*)+"
)


_AWS = "software.amazon.awssdk."
_FRAME = re.compile(r'  File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"/(?:pyspark|py4j|site-packages|dist-packages|lib/python[\d.]+)/|^<")
_EXCEPTION = re.compile(r"(?m)^(?:[\w<>]+\.)*(\w+(?:: .*)?)$")
_UNREADABLE = re.compile(r"\[FAILED_READ_FILE[.\w]*\] [^\n]*? reading file (\S+?)\.?(?:\s|$)")
_TRACEBACK = "Traceback (most recent call last):\n"


def traced_text(error: BaseException) -> str:
    """`full_text` of an exception of a user's function, and the lines of its traceback.

    The code of these lines is left out: `flow_error` could take it for another failure.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = "".join(f'  File "{frame.filename}", line {frame.lineno}\n' for frame in frames)
    return f"{full_text(error)}\n{_TRACEBACK}{lines}{type(error).__name__}: {error}"


def _raised_in_python(text: str) -> str | None:
    """The exception of a user's function, with the last line in the user's code.

    Such a function runs in the driver (`foreachBatch`) or in a worker.
    """
    trace = text.rpartition(_TRACEBACK)[2]
    exception, frames = _EXCEPTION.search(trace), _FRAME.findall(trace)
    # Py4J's own exceptions contain only the called object.
    if exception is None or not frames or exception[1].startswith("Py4J"):
        return None
    users = (f for f in reversed(frames) if not (_LIBRARY.search(f[0]) or is_ours(f[0])))
    own = next((f" ({Path(file).name}:{line})" for file, line in users), "")
    return f"{exception[1]}{own}"


def cause(text: str) -> str:
    """The exception in a `full_text` that describes the failure: mostly the deepest."""
    if _TRACEBACK in text and (raised := _raised_in_python(text)):
        return shown(raised)[:600]
    causes = re.findall(r"(?m)^Caused by: (.+)$", text)
    # The deepest one with a message: that of a crashed Python worker is a plain `EOFException`.
    # Hadoop's own exception around one of AWS has the file name.
    described = (cause for cause in reversed(causes) if ": " in cause)
    line = next((c for c in described if not c.startswith(_AWS)), first_line(text))
    line = _NOISE.sub("", line).strip()
    if causes and ": " not in causes[-1]:
        line = f"{line} (caused by {causes[-1]})"
    file = _UNREADABLE.search(text)
    where = f"{file[1]}: " if file is not None and Path(file[1]).name not in line else ""
    return shown(f"{where}{line}")[:600]
