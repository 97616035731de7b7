"""Azure Event Hubs through its Kafka endpoint, with the options and columns of `eventhubs`.

An event hub is a topic; its namespace is a cluster that requires SASL PLAIN over TLS.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock._model.redaction import remember_secret
from penstock.errors import ConnectorError

_PORT = 9093
_STRING = "eventhubs.connectionString"
_IGNORED = (
    "eventhubs.consumergroup eventhubs.receivertimeout eventhubs.operationtimeout "
    "eventhubs.prefetchcount eventhubs.threadpoolsize eventhubs.useexclusivereceiver"
)
_RENAMED = {
    "maxeventspertrigger": "maxOffsetsPerTrigger",
    "eventhubs.maxeventspertrigger": "maxOffsetsPerTrigger",
    "failondataloss": "failOnDataLoss",
}


def kafka_options(connection_string: str) -> dict[str, str]:
    """Options of Spark's Kafka source and sink; with `subscribe` if there is an EntityPath."""
    remember_secret(connection_string)
    parts: dict[str, str] = {}
    for piece in connection_string.strip().strip(";").split(";"):
        name, separator, value = piece.partition("=")
        if not separator or not value.strip():
            raise _invalid_string("it must consist of Name=Value pairs, separated by semicolons")
        parts[name.strip().lower()] = value.strip()
    if "sharedaccesskey" in parts:
        remember_secret(parts["sharedaccesskey"])
    needed = ("Endpoint", "SharedAccessKeyName", "SharedAccessKey")
    missing = [name for name in needed if name.lower() not in parts]
    if missing:
        raise _invalid_string(f"it lacks {', '.join(missing)}")
    endpoint = re.fullmatch(r"(?:sb|amqps)://([\w.-]+)(?::(\d+))?/?", parts["endpoint"])
    if endpoint is None:
        raise _invalid_string("its Endpoint is not sb://NAMESPACE.servicebus.windows.net/")
    if '"' in connection_string or "\n" in connection_string:
        raise _invalid_string("it contains a quotation mark or a line break")
    password = connection_string.strip().replace("\\", "\\\\")
    options = {
        "kafka.bootstrap.servers": f"{endpoint[1]}:{endpoint[2] or _PORT}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="$ConnectionString" password="{password}";',
        # The service closes idle connections after four minutes.
        "kafka.connections.max.idle.ms": "180000",
        "kafka.metadata.max.age.ms": "180000",
        "kafka.request.timeout.ms": "60000",
    }
    if "entitypath" in parts:
        options["subscribe"] = parts["entitypath"]
    return options


def source_options(options: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Options of `eventhubs` as those of Spark's Kafka source; `kafka.` options take precedence."""
    by_lower_name = {name.lower(): value for name, value in options.items()}
    if _STRING.lower() not in by_lower_name:
        raise _invalid_string(f"option `{_STRING}` is missing")
    made = kafka_options(by_lower_name.pop(_STRING.lower()))
    if name := by_lower_name.pop("eventhubs.name", None):
        made["subscribe"] = name
    if "subscribe" not in made:
        raise _invalid_string("it names no event hub: add ;EntityPath=NAME")
    made["startingOffsets"] = "latest" if streaming else "earliest"
    made["includeHeaders"] = "true"
    for place, prefix in (
        ("eventhubs.startingposition", "starting"),
        ("eventhubs.endingposition", "ending"),
    ):
        position = by_lower_name.pop(place, None)
        if position is not None:
            made |= _position(place, position, prefix, made)
    for name, value in by_lower_name.items():
        if name in _RENAMED:
            made[_RENAMED[name]] = value
        elif name.startswith("kafka."):
            made[name] = value
        elif name not in _IGNORED.split():
            raise ConnectorError(
                "EVENTHUBS_OPTION_INVALID",
                f"the option `{name}` of the eventhubs format is not supported",
                hint='read with format("kafka") and the options of '
                "penstock.sources.kafka.event_hubs.kafka_options(...)",
            )
    if "startingTimestamp" in made:
        del made["startingOffsets"]
        # As in the connector: a partition without events since then begins with its next one.
        made["startingOffsetsByTimestampStrategy"] = "latest"
    return made


def as_events(df: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source with the columns of the `eventhubs` format."""
    every = F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
    # The last of several headers with the same name is kept: a map has each key once.
    last = F.filter(
        every,
        lambda header, at: (
            ~F.exists(
                F.slice(every, at + 2, F.size(every)), lambda later: later["key"] == header["key"]
            )
        ),
    )
    headers = F.map_from_entries(F.transform(last, lambda h: F.struct(h["key"], h["value"])))
    nothing = F.create_map().cast("map<string,string>")
    return df.select(
        F.col("value").alias("body"),
        F.col("partition").cast("string").alias("partition"),
        F.col("offset").cast("string").alias("offset"),
        F.col("offset").alias("sequenceNumber"),
        F.col("timestamp").alias("enqueuedTime"),
        F.lit(None).cast("string").alias("publisher"),
        F.col("key").cast("string").alias("partitionKey"),
        F.transform_values(headers, lambda _, v: v.cast("string")).alias("properties"),
        nothing.alias("systemProperties"),
    )


def _position(name: str, text: str, prefix: str, made: Mapping[str, str]) -> dict[str, str]:
    """Options for `{"offset": "-1", "seqNo": -1, "enqueuedTime": null, "isInclusive": true}`."""
    try:
        position: dict[str, Any] = json.loads(text)
        offset, sequence, at = (position.get(k) for k in ("offset", "seqNo", "enqueuedTime"))
        if at:
            time = datetime.fromisoformat(str(at))
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return {f"{prefix}Timestamp": str(round(time.timestamp() * 1000))}
    except (ValueError, AttributeError):
        offset = sequence = None  # refused below
    if str(offset) == "-1" or (offset is None and sequence == -1):
        return {f"{prefix}Offsets": "earliest"}
    if str(offset) == "@latest":
        return {f"{prefix}Offsets": "latest"}
    raise ConnectorError(
        "EVENTHUBS_OPTION_INVALID",
        f'option `{name}` must be JSON with an offset "-1" or "@latest", or an enqueuedTime in '
        "ISO 8601",
        hint='other positions: format("kafka") with `startingOffsets`, per partition',
    )


def _invalid_string(reason: str) -> ConnectorError:
    return ConnectorError(
        "EVENTHUBS_CONNECTION_STRING_INVALID",
        f"the connection string of Event Hubs cannot be used: {reason}",
        hint="Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;"
        "SharedAccessKey=KEY;EntityPath=HUB, from a secret: ${secret:eventhubs/connection}",
    )
