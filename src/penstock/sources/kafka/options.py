"""Checks of the options of Spark's Kafka source and sink, before Spark gets them.

Spark ignores unknown options, so the typo `startingOffset` would silently read from the wrong
offset, and some client options make a configuration run foreign code. Option names are
case-insensitive; values are never shown, because they may be secrets.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock._model.similar import nearest
from penstock.errors import ConnectorError

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")

_SOURCE_OPTIONS = (
    "startingOffsets startingOffsetsByTimestamp startingTimestamp "
    "startingOffsetsByTimestampStrategy endingOffsets endingOffsetsByTimestamp endingTimestamp "
    "failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
    "fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay "
    "minPartitions maxRecordsPerPartition groupIdPrefix includeHeaders"
)
_SOURCE_DEFAULTS = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed"}
# For brokers that do not respond: 3 x 30 s to get offsets (default 60 s), and how long a task waits
# for a record (default 120 s). Neither is set together with a request timeout (default 30 s), which
# may be longer.
_TIMEOUTS = {"kafka.default.api.timeout.ms": "30000", "kafkaConsumer.pollTimeoutMs": "60000"}
_SINK_OPTIONS = ("topic", "includeHeaders", "rowIds", "checkpointLocation", "queryName")

# Options of the Kafka client that users forget to prefix; Spark would ignore them.
_CLIENT_OPTIONS = (
    "bootstrap.servers group.id isolation.level security.protocol sasl.mechanism "
    "sasl.jaas.config sasl.login.callback.handler.class sasl.client.callback.handler.class "
    "ssl.truststore.location ssl.truststore.password ssl.truststore.type ssl.keystore.location "
    "ssl.keystore.password ssl.keystore.type ssl.key.password "
    "ssl.endpoint.identification.algorithm request.timeout.ms default.api.timeout.ms "
    "session.timeout.ms max.poll.records fetch.max.bytes max.partition.fetch.bytes acks "
    "compression.type linger.ms batch.size max.request.size delivery.timeout.ms enable.idempotence"
)

_OFFSETS_EXAMPLE = 'JSON like `{"topic": {"0": 23, "1": -2}}`'
_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_WORDS = {
    "failOnDataLoss": ("true", "false"),
    "includeHeaders": ("true", "false"),
    "startingOffsetsByTimestampStrategy": ("error", "latest"),
}
_POSITIVE = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions")

_REFUSED = {
    "databricks.servicecredential": "there are no service credentials outside of Databricks: set "
    "`kafka.security.protocol` and the options `kafka.sasl.*`",
}
_REFUSED_SOURCE = {
    **_REFUSED,
    "kafka.auto.offset.reset": "use `startingOffsets`; Spark itself keeps track of offsets",
    "kafka.key.deserializer": "keys are always bytes; convert with `cast` or `from_json`",
    "kafka.value.deserializer": "values are always bytes; convert with `cast` or `from_json`",
    "kafka.enable.auto.commit": "remove it; Spark keeps offsets in the checkpoint",
}
_REFUSED_SINK = {
    **_REFUSED,
    "kafka.key.serializer": "give `key` as a string or binary column",
    "kafka.value.serializer": "give `value` as a string or binary column",
    "kafka.transactional.id": "remove it; Spark's producer does not begin transactions",
    "checkpointlocation": "remove it; each flow has a checkpoint that Penstock manages",
}

_TOPIC = re.compile(r"[A-Za-z0-9._-]{0,249}")
# As parsed by Spark; a number without a unit is in milliseconds.
_DURATION = re.compile(r"\d+\s*(us|ms|s|m|min|h|d)?")
_HANDLER_OPTION = re.compile(r"(.*\.)?sasl\.(login|client|server)?[a-z.]*class")
_KNOWN_HANDLERS = frozenset(
    {
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
        "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler",
    }
)
_KNOWN_LOGIN_MODULES = frozenset(
    {
        "org.apache.kafka.common.security.plain.PlainLoginModule",
        "org.apache.kafka.common.security.scram.ScramLoginModule",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
        "com.sun.security.auth.module.Krb5LoginModule",
        "software.amazon.msk.auth.iam.IAMLoginModule",
    }
)
SERVERS = "kafka.bootstrap.servers"
_MAX_BLOCK = "kafka.max.block.ms"
# The scheme of brokers in the setting `paths`.
_SCHEME = "kafka://"

# The prefixes of Databricks' shaded packages of Kafka's client and of the MSK client.
_SHADED = re.compile(r"(?<![\w.])(?:kafkashaded|shadedmskiam)\.")
_LOGIN_MODULE = re.compile(r"(?:^|;)\s*([\w.$]+)(?=\s)")
# What Kafka's own tokenizer skips (comments) or takes as a whole (quoted text, up to a line's end).
_JAAS_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?(?:\*/|\Z)|//[^\r\n]*)"""
    r"""|(?P<quoted>"(?:\\.|[^"\\\r\n])*"?|'(?:\\.|[^'\\\r\n])*'?)"""
    r"""|(?P<plain>(?:(?!/[/*])[^"'])+)""",
    re.DOTALL,
)


def prepare_source_options(options: Mapping[str, str], *, streaming: bool = True) -> dict[str, str]:
    """Check the options of a Kafka source and add Penstock's defaults.

    Values of the user take precedence. Options without a `kafka.` prefix that are not similar to a
    known option are passed unchanged.
    """
    by_name = _by_lower_name(options)
    _refuse_unknown(options, (*_SUBSCRIPTIONS, *_SOURCE_OPTIONS.split()))
    _refuse(by_name, _REFUSED_SOURCE)
    _require_servers(by_name)
    chosen = [name for name in _SUBSCRIPTIONS if name.lower() in by_name]
    if len(chosen) != 1:
        raise ConnectorError(
            "KAFKA_SUBSCRIPTION_INVALID",
            f"a Kafka source takes exactly one of {', '.join(_SUBSCRIPTIONS)}, "
            f"not {' and '.join(chosen) if chosen else 'none'}",
        )
    if not by_name[chosen[0].lower()].strip():
        raise ConnectorError("KAFKA_SUBSCRIPTION_INVALID", f"option `{chosen[0]}` is empty")
    if "assign" in by_name:
        _read_topics("assign", by_name["assign"], 'JSON like `{"topic": [0, 1]}`', _are_partitions)
    _check_offsets(by_name, streaming=streaming)
    for name in _POSITIVE:
        value = by_name.get(name.lower())
        if value is not None and not (value.strip().isdecimal() and int(value) > 0):
            raise _invalid(f"option `{name}` must be a whole number above zero")
    for name, words in _WORDS.items():
        if by_name.get(name.lower(), words[0]).strip().lower() not in words:
            raise _invalid(f"option `{name}` must be {' or '.join(words)}")
    least, most = by_name.get("minoffsetspertrigger"), by_name.get("maxoffsetspertrigger")
    if least is not None and most is not None and int(least) > int(most):
        raise _invalid("option `minOffsetsPerTrigger` is above `maxOffsetsPerTrigger`")
    if not _DURATION.fullmatch(by_name.get("maxtriggerdelay", "0").strip().lower()):
        raise _invalid("option `maxTriggerDelay` must be a duration such as `30s`, `5m` or `1h`")
    timeouts = {} if "kafka.request.timeout.ms" in by_name else _TIMEOUTS
    defaults = {**_SOURCE_DEFAULTS, **timeouts}
    return {
        **_made_safe(options),
        **{name: value for name, value in defaults.items() if name.lower() not in by_name},
    }


def at_mapped_servers(options: Mapping[str, str], map_path: Callable[[str], str]) -> dict[str, str]:
    """The options with the brokers that the settings map theirs to, without authentication."""
    name = next((name for name in options if name.lower() == SERVERS), None)
    if name is None:
        return dict(options)
    uri = f"{_SCHEME}{options[name].strip()}"
    mapped = map_path(uri)
    if mapped == uri:
        return dict(options)
    changed = {**options, name: mapped.removeprefix(_SCHEME)}
    return changed | {
        name: "PLAINTEXT" for name in options if name.lower() == "kafka.security.protocol"
    }


def prepare_sink_options(options: Mapping[str, str]) -> dict[str, str]:
    """Check the options of a Kafka sink; the producer waits 20 s for a topic by default."""
    by_name = _by_lower_name(options)
    _refuse_unknown(options, _SINK_OPTIONS)
    _refuse(by_name, _REFUSED_SINK)
    _require_servers(by_name)
    if by_name.get("rowids", "true").strip().lower() not in ("true", "false"):
        raise _invalid("option `rowIds` must be true or false")
    if not _TOPIC.fullmatch(by_name.get("topic", "").strip()):
        raise _invalid("option `topic` may have letters, digits, `.`, `_` and `-` only, up to 249")
    if by_name.get("kafka.acks", "").strip() == "0":
        raise ConnectorError(
            "KAFKA_OPTION_REFUSED",
            "option `kafka.acks` cannot be 0: messages that brokers refuse would be lost silently",
            hint="remove it; by default, all replicas in sync confirm each message",
        )
    # With Kafka's default of one minute per attempt, a missing topic would be noticed late.
    return {_MAX_BLOCK: "20000", **_made_safe(options)}


def refuse_misspelt(options: Mapping[str, str], jvm: Any) -> None:
    """Refuse an unknown `kafka.` option that is similar to a known one: Kafka would ignore it."""
    clients = jvm.org.apache.kafka.clients
    known = (
        clients.consumer.ConsumerConfig.configNames(),
        clients.producer.ProducerConfig.configNames(),
    )
    for name in options:
        prefix, _, client_name = name.lower().partition(".")
        if prefix != "kafka" or any(names.contains(client_name) for names in known):
            continue
        near = nearest(client_name, [each for names in known for each in names], cutoff=0.9)
        if near is not None:
            raise _unknown(name, f"kafka.{near}")


def _unknown(name: str, near: str) -> ConnectorError:
    return ConnectorError(
        "KAFKA_OPTION_UNKNOWN",
        f"Spark's Kafka connector would ignore the option `{name}`",
        hint=f"did you mean `{near}`?",
    )


def _by_lower_name(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _require_servers(options: Mapping[str, str]) -> None:
    if not options.get(SERVERS, "").strip():
        raise ConnectorError(
            "KAFKA_BOOTSTRAP_SERVERS_MISSING",
            "option `kafka.bootstrap.servers` is missing or empty",
            hint='.option("kafka.bootstrap.servers", "host:9092,other:9092")',
        )


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    known_lower = {name.lower() for name in known}
    for name in options:
        lower = name.lower()
        if lower.startswith("kafka.") or lower in known_lower:
            continue
        if lower in _CLIENT_OPTIONS.split():
            near: str | None = f"kafka.{lower}"
        else:
            near = nearest(lower, known, cutoff=0.8)
        if near is not None:
            raise _unknown(name, near)


def _refuse(options: Mapping[str, str], refused: Mapping[str, str]) -> None:
    for name, instead in refused.items():
        if name in options:
            raise ConnectorError(
                "KAFKA_OPTION_REFUSED", f"option `{name}` cannot be set here", hint=instead
            )


def _made_safe(options: Mapping[str, str]) -> dict[str, str]:
    """Refuse client options that load foreign code; drop the prefix of shaded class names."""
    prepared: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if not lower.startswith("kafka."):
            prepared[name] = value
            continue
        client_name = lower.removeprefix("kafka.")
        if "config.providers" in client_name:
            raise _unsafe(name, "use a `${secret:...}` reference instead of a config provider")
        if client_name == "interceptor.classes":
            raise _unsafe(name, "interceptors run foreign code; work on the DataFrame instead")
        if _HANDLER_OPTION.fullmatch(client_name):
            value = _SHADED.sub("", value)
            if value.strip() not in _KNOWN_HANDLERS:
                raise _unsafe(name, f"allowed are: {', '.join(sorted(_KNOWN_HANDLERS))}")
        if client_name.endswith("sasl.jaas.config"):
            value, modules = _read_jaas(value)
            if not modules or any(module not in _KNOWN_LOGIN_MODULES for module in modules):
                raise _unsafe(
                    name,
                    "it must start with one of the login modules "
                    + ", ".join(sorted(_KNOWN_LOGIN_MODULES)),
                )
        prepared[name] = value
    return prepared


def _read_jaas(text: str) -> tuple[str, list[str]]:
    """The text without shaded prefixes, and the login modules that it names.

    Comments are dropped; quoted strings, such as a password, are neither changed nor searched.
    """
    kept: list[str] = []
    outline: list[str] = []
    for token in _JAAS_TOKEN.finditer(text):
        if token["quoted"] is not None:
            kept.append(token["quoted"])
            outline.append('""')
        else:
            plain = " " if token["plain"] is None else _SHADED.sub("", token["plain"])
            kept.append(plain)
            outline.append(plain)
    return "".join(kept), _LOGIN_MODULE.findall("".join(outline).strip())


def _invalid(message: str) -> ConnectorError:
    return ConnectorError("KAFKA_OPTION_INVALID", message)


def _unsafe(name: str, hint: str) -> ConnectorError:
    return ConnectorError(
        "KAFKA_OPTION_UNSAFE",
        f"the value of option `{name}` could make the Kafka client run foreign code",
        hint=hint,
    )


def _check_offsets(options: Mapping[str, str], *, streaming: bool) -> None:
    if streaming:
        for name in _ENDING:
            if name.lower() in options:
                raise ConnectorError(
                    "KAFKA_OPTION_REFUSED",
                    f"option `{name}` is for batch reads; a stream has no end",
                    hint="read with `spark.read`, or remove the option",
                )
    keyword_rules: dict[str, tuple[str, ...]] = {
        "startingOffsets": ("earliest", "latest") if streaming else ("earliest",),
        "endingOffsets": ("latest",),
        "startingOffsetsByTimestamp": (),
        "endingOffsetsByTimestamp": (),
    }
    for name, keywords in keyword_rules.items():
        value = options.get(name.lower())
        if value is not None and value.strip().lower() not in keywords:
            words = [*(f"`{word}`" for word in keywords), _OFFSETS_EXAMPLE]
            topics = _read_topics(name, value, " or ".join(words), _are_offsets)
            if keywords:
                _check_ends(name, topics, streaming=streaming)
    for name in ("startingTimestamp", "endingTimestamp"):
        value = options.get(name.lower())
        if value is not None and not value.strip().isdecimal():
            raise _invalid(f"option `{name}` must be a timestamp in milliseconds since the epoch")


def _are_offsets(partitions: Any) -> bool:
    return isinstance(partitions, dict) and all(
        number.isdecimal() and isinstance(offset, int) and not isinstance(offset, bool)
        for number, offset in partitions.items()
    )


def _are_partitions(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(
        isinstance(number, int) and number >= 0 for number in numbers
    )


def _check_ends(name: str, topics: Mapping[str, Any], *, streaming: bool) -> None:
    """Refuse a batch read that begins at the latest offset or ends at the earliest."""
    if name == "startingOffsets":
        refused, meaning = (() if streaming else (-1,)), "latest"
    else:
        refused, meaning = (-2,), "earliest"
    for topic, partitions in topics.items():
        for number, offset in partitions.items():
            if offset in refused or offset < -2:
                said = f"{offset} ({meaning})" if offset in refused else str(offset)
                raise ConnectorError(
                    "KAFKA_OFFSETS_INVALID",
                    f"option `{name}`: the offset of partition {number} of topic {topic!r} cannot "
                    f"be {said}",
                    hint="use an offset of at least 0, -2 (earliest) to start at, or -1 (latest) "
                    "to end at; a stream may also start at -1",
                )


def _read_topics(
    name: str, text: str, hint: str, is_sound: Callable[[Any], bool]
) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConnectorError(
            "KAFKA_OFFSETS_INVALID",
            f"option `{name}` is not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}",
            hint=hint,
        ) from None
    if not isinstance(parsed, dict) or not parsed:
        raise ConnectorError(
            "KAFKA_OFFSETS_INVALID", f"option `{name}` does not name a topic", hint=hint
        )
    for topic, value in parsed.items():
        if not is_sound(value):
            raise ConnectorError(
                "KAFKA_OFFSETS_INVALID",
                f"option `{name}`: the value for topic {topic!r} has the wrong format",
                hint=hint,
            )
    return parsed
