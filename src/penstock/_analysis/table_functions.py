"""Table functions of Databricks SQL: `read_files`, `cloud_files`, `read_kafka`, `event_log`, ...

Open-source Spark has none of them. Each call becomes a read; the caller replaces it by a temporary
view of the result.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import to_str

from penstock._analysis.sql_names import FunctionCall
from penstock._observe.segments import plan_query
from penstock.errors import DefinitionError

_REFUSED = {
    "read_pubsub": "use Kafka, files or Delta as the source",
    "read_pulsar": "use Kafka, files or Delta as the source",
    "cloud_files_state": "the files of a flow are in its checkpoint",
}
_NAMES = {
    *("read_files", "cloud_files", "read_kafka", "read_kinesis"),
    *("event_log", "table_changes", "read_stream"),
    *_REFUSED,
}
_SECRET = re.compile(r"\b(?:try_)?secret\('([^'\\]+)', *'([^'\\]+)'\)", re.IGNORECASE)
# Fields of `origin` in Databricks; those that only exist on the platform are NULL here.
_ORIGIN = (
    *("cloud", "region", "org_id", "host", "pipeline_id", "pipeline_name", "pipeline_type"),
    *("cluster_id", "update_id", "request_id", "maintenance_id", "table_id", "table_name"),
    *("dataset_name", "sink_name", "flow_id", "flow_name", "materialization_name"),
)
EVENT_COLUMNS = (
    "id STRING, sequence STRUCT<control_plane_seq_no: BIGINT, "
    "data_plane_id: STRUCT<instance: STRING, seq_no: BIGINT>>, "
    f"origin STRUCT<{', '.join(f'{name}: STRING' for name in _ORIGIN)}, batch_id: BIGINT>, "
    "timestamp TIMESTAMP, message STRING, level STRING, maturity_level STRING, "
    "error STRUCT<fatal: BOOLEAN, exceptions: ARRAY<STRUCT<"
    "class_name: STRING, message: STRING, condition: STRING>>>, "
    "details STRING, event_type STRING"
)
"""Columns of the event log in SQL, as on Databricks."""


ReadFiles = Callable[[str, Mapping[str, str], str | None, bool], DataFrame]
"""Auto Loader's reader: path, options, schema, and whether to stream."""


def call_function(
    spark: SparkSession, call: FunctionCall, read_files: ReadFiles, events: Path | None
) -> DataFrame | None:
    """The rows of a table function; `None` for a function of Spark."""
    if call.name not in _NAMES:
        return None
    if call.name in _REFUSED:
        raise DefinitionError(
            "FEATURE_NOT_AVAILABLE",
            f"the SQL function `{call.name}` is not available",
            hint=_REFUSED[call.name],
        )
    if call.name == "event_log":
        return _event_log(spark, events)
    positional, named = _arguments(spark, call)
    if call.name == "read_files":
        path = _required(call, positional, named, "path")
        options = {"inferColumnTypes": "true", **_options(named)}
        schema = _take(options, "schema")
        return read_files(path, options, schema, call.is_streaming)
    if call.name == "cloud_files":
        path = _required(call, positional, named, "path")
        options = _options(positional[2]) if len(positional) > 2 else {}
        if len(positional) > 1:
            options["cloudFiles.format"] = str(positional[1])
        schema = _take(options, "schema")
        return read_files(path, options, schema, True)
    if call.name == "read_kafka":
        return _kafka(spark, _options(named), call.is_streaming)
    if call.name == "read_kinesis":
        # Always a stream, even without STREAM.
        return spark.readStream.format("kinesis").options(**_options(named)).load()
    name = _required(call, positional, named, "table")
    if call.name == "read_stream":
        return spark.readStream.options(**_options(named)).table(name)
    bounds = [str(value) for value in positional[1:3]]
    options = {"readChangeFeed": "true"}
    for bound, kind in zip(bounds, ("starting", "ending"), strict=False):
        options[f"{kind}{'Version' if bound.isdecimal() else 'Timestamp'}"] = bound
    return spark.read.options(**options).table(name)


def _required(call: FunctionCall, positional: list[Any], named: dict[str, Any], what: str) -> str:
    value = positional[0] if positional else named.pop(what, None)
    if isinstance(value, str) and value.strip():
        return value
    raise DefinitionError(
        "SQL_FUNCTION_INVALID",
        f"the SQL function `{call.name}` needs a {what} as its first argument",
        hint=f"{call.name}('...', ...)",
    )


def _options(argument: Any) -> dict[str, str]:
    if not isinstance(argument, Mapping):
        return {}
    return {
        str(key): text for key, value in argument.items() if (text := to_str(value)) is not None
    }


def _take(options: dict[str, str], key: str) -> str | None:
    for name in list(options):
        if name.lower() == key:
            return options.pop(name)
    return None


def _kafka(spark: SparkSession, options: dict[str, str], streaming: bool) -> DataFrame:
    reader: Any = (spark.readStream if streaming else spark.read).format("kafka")
    for key, value in options.items():
        is_servers = key.lower() in ("bootstrapservers", "bootstrap_servers", "bootstrap.servers")
        reader = reader.option("kafka.bootstrap.servers" if is_servers else key, value)
    result: DataFrame = reader.load()
    return result


def _event_log(spark: SparkSession, folder: Path | None) -> DataFrame:
    if folder is None or not any(folder.glob("*")):
        return spark.createDataFrame([], EVENT_COLUMNS)
    reader = spark.read.schema(EVENT_COLUMNS).option("recursiveFileLookup", "true")
    # Files that the query does not need, and expired updates, may be deleted while it runs.
    reader = reader.option("ignoreMissingFiles", "true")
    while True:
        left_out = plan_query(folder)
        events = reader.json(folder.as_uri())
        # Spark must not list the folder while a roll-up is published.
        if plan_query(folder) == left_out:
            break
    return events.where(~F.col("_metadata.file_name").isin(left_out)) if left_out else events


def _arguments(spark: SparkSession, call: FunctionCall) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for key, expression in call.arguments:
        value = _constant(spark, call, expression)
        if key is None:
            positional.append(value)
        else:
            named[key.replace("`", "")] = value
    return positional, named


def _constant(spark: SparkSession, call: FunctionCall, expression: Any) -> Any:
    # The secret is resolved when the option is read, so that plans do not contain it.
    text = _SECRET.sub(r"'${secret:\1/\2}'", str(expression.sql()))
    if match := re.fullmatch(r"'([^'\\]*)'", text):
        return match.group(1)
    try:
        row: Any = spark.sql(f"SELECT {text} AS value").first()
    except Exception as error:
        raise DefinitionError(
            "SQL_FUNCTION_INVALID",
            f"an argument of the SQL function `{call.name}` is not a constant: {text}",
            hint="write a literal, or set it in the pipeline's configuration and use ${key}",
        ) from error
    return row["value"]
