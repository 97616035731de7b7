"""Rules about queries: the state, sources and expressions of their plans."""

import re
from collections.abc import Iterator, Mapping

from penstock._lint.catalogue import RULES
from penstock._lint.finding import Finding
from penstock._model.dataset import DatasetKind
from penstock._model.origin import SourceLocation
from penstock._model.query_facts import QueryFacts, ReadFacts, StateFacts, StateKind

_FILES = {"json", "csv", "parquet", "orc", "text", "avro", "xml", "cloudfiles", "binaryfile"}
_INFERRED = _FILES - {"text", "binaryfile", "cloudfiles"}
_LIMITS = {
    "kafka": ("maxOffsetsPerTrigger",),
    "eventhubs": ("maxEventsPerTrigger", "eventhubs.maxEventsPerTrigger"),
    # Delta and Auto Loader have a limit by default.
    **dict.fromkeys(_FILES - {"cloudfiles"}, ("maxFilesPerTrigger", "maxBytesPerTrigger")),
}
_STARTS = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?$", re.I)


def findings_of_query(
    flow: str, declared: SourceLocation, facts: QueryFacts, target: DatasetKind | None
) -> Iterator[Finding]:
    """Findings about the query of a flow; `target` is `None` for a sink."""

    def finding(rule: str, message: str) -> Finding:
        return Finding(
            rule=RULES[rule], origin=declared, message=message, flow=flow, declared=declared
        )

    for state in facts.state:
        for rule, message in _of_state(state):
            yield finding(rule, message)
        if state.nondeterministic_keys:
            yield finding("PSL401", f"{_a(state.kind)} by {_listed(state.nondeterministic_keys)}")
        if state.clock_keys:
            yield finding("PSL404", f"{_a(state.kind)} by {_listed(state.clock_keys)}")
    if facts.is_streaming:
        for column, delay in facts.watermarks.items():
            if delay == 0:
                yield finding("PSL105", f"the watermark on {column} has no delay")
            if not facts.state and target is not DatasetKind.TEMPORARY_VIEW:
                yield finding("PSL108", f"nothing in this flow uses the watermark on {column}")
    if facts.nondeterministic and not any(state.nondeterministic_keys for state in facts.state):
        yield finding("PSL402", f"the query uses {_listed(facts.nondeterministic)}")
    if facts.clock and target is DatasetKind.MATERIALIZED_VIEW:
        yield finding("PSL403", f"the query uses {_listed(facts.clock)}")
    if facts.dropped_offset_columns and target is DatasetKind.STREAMING_TABLE:
        columns = " and ".join(facts.dropped_offset_columns)
        yield finding("PSL204", f"the result does not use {columns} of the Kafka source")


def _of_state(state: StateFacts) -> Iterator[tuple[str, str]]:
    keys = ", ".join(state.keys) or "nothing"
    match state.kind:
        case StateKind.AGGREGATE if not state.is_bounded and not state.has_watermark:
            yield "PSL101", f"the aggregation by {keys} has no watermark below it"
        case StateKind.AGGREGATE if not state.is_bounded:
            yield "PSL102", f"the aggregation by {keys} has no event time among its keys"
        case StateKind.DEDUPLICATE if not state.is_bounded:
            missing = "" if state.has_watermark else ", and there is no watermark"
            yield "PSL103", f"dropDuplicates by {keys} keeps every key{missing}"
        case StateKind.JOIN if not state.is_bounded:
            yield "PSL104", f"the join of two streams on {keys} keeps all rows"
        case StateKind.ARBITRARY if not state.is_bounded:
            yield "PSL106", "the state function is called without a timeout"


def findings_of_read(flow: str, declared: SourceLocation, read: ReadFacts) -> Iterator[Finding]:
    """Findings about a read of a source.

    `declared` is the declaration of the flow, where a comment also suppresses the findings.
    """
    for rule, message in _of_read(read):
        yield Finding(
            rule=RULES[rule], origin=read.origin, message=message, flow=flow, declared=declared
        )


def _of_read(read: ReadFacts) -> Iterator[tuple[str, str]]:
    options = read.options
    if read.source == "kafka":
        yield from _of_kafka(read)
    if not read.is_streaming:
        return
    if read.source == "eventhubs":
        start = options.get("eventhubs.startingposition", "@latest")
        if "@latest" in start:
            yield "PSL201", "the stream begins at the end of the event hub"
    if read.source == "kinesis" and options.get("initialposition", "latest").lower() == "latest":
        yield "PSL201", "the stream begins at the end of the Kinesis stream"
    if options.get("startingversion", "").lower() == "latest":
        yield "PSL201", "the stream begins at the newest version of the table"
    if _is(options.get("failondataloss"), "false"):
        yield "PSL202", "the stream continues after data loss"
    if _is(options.get("ignorechanges"), "true"):
        yield "PSL210", "the stream reads rewritten rows again"
    if read.source == "socket":
        yield "PSL206", "the stream reads a socket source"
    if read.source in _FILES:
        if _is(options.get("latestfirst"), "true"):
            yield "PSL207", "the stream reads new files before old ones"
        if _is(_option(options, "cleansource"), "delete"):
            yield "PSL208", "the stream deletes files that it has read"
        if read.source in _INFERRED and not read.has_schema:
            yield "PSL203", f"the stream infers the schema of {read.source} files"
    limits = _LIMITS.get(read.source, ())
    if limits and not read.is_own and not any(limit.lower() in options for limit in limits):
        yield "PSL205", f"the {read.source} stream has no limit per batch, such as {limits[0]}"


def _of_kafka(read: ReadFacts) -> Iterator[tuple[str, str]]:
    options = read.options
    if read.is_streaming:
        said = [options[key] for key in _STARTS if key in options]
        if not said:
            yield "PSL201", "no startingOffsets: the stream begins at the end of the topic"
        elif options.get("startingoffsets", "").strip().lower() == "latest":
            yield "PSL201", "the stream begins at the end of the topic"
    if "kafka.group.id" in options:
        yield "PSL209", "the source reads with a consumer group of its own"
    servers = options.get("kafka.bootstrap.servers", "")
    protocol = options.get("kafka.security.protocol", "PLAINTEXT").upper()
    away = [server.strip() for server in servers.split(",") if not _LOOPBACK.match(server.strip())]
    if away and protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        yield "PSL211", f"{away[0]} is read with {protocol}"


def _option(options: Mapping[str, str], name: str) -> str | None:
    return options.get(name) or options.get(f"cloudfiles.{name}")


def _is(value: str | None, wanted: str) -> bool:
    return value is not None and value.strip().lower() == wanted


def _a(word: str) -> str:
    return f"an {word}" if word[:1] in "aeio" else f"a {word}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(name if " " in name else f"{name}()" for name in names)
