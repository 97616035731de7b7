"""Rules about jobs, which start their streaming queries themselves; only the text is checked."""

import ast
import re
from collections.abc import Callable, Iterator

from penstock._lint.bindings import Bindings, is_stable
from penstock._lint.calls import Hit
from penstock._lint.job_queries import (
    DEDUPLICATION,
    GROUPS,
    Query,
    Step,
    are_known,
    joins_stream,
    options,
    queries,
    unrolled,
)
from penstock._lint.plans import findings_of_read
from penstock._model.origin import SourceLocation
from penstock._model.query_facts import ReadFacts
from penstock.sinks.delta import DeltaSink
from penstock.sinks.files import FileSink
from penstock.sinks.registry import sink_of
from penstock.sinks.spark import ConsoleSink, MemorySink, NoopSink

DEFAULT_CHECKPOINT = "spark.sql.streaming.checkpointLocation"

_FILES = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
_TEMPORARY = re.compile(r"(?:file:/{0,2})?/(?:tmp|var/tmp|dev/shm)(?:/|$)")
_CHANGING = re.compile(
    r"\{[^}]*\b(?:uuid[14]|now|utcnow|today|time|strftime|random|randint|token_hex|getpid|mkdtemp"
    r"|mktemp|TemporaryDirectory|gettempdir)\("
)
_AGGREGATES = ("agg", "count", "sum", "avg", "mean", "min", "max")
# Steps that define, or may define, a watermark.
_WATERMARKS = ("withWatermark", "transform", "pipe")
_ENDS = ("awaitTermination", "awaitAnyTermination", "processAllAvailable", "stop")
# Rules about an option that is missing.
_OF_ABSENCE = ("PSL201", "PSL205", "PSL211")


def job_findings(tree: ast.Module, *, has_default_checkpoint: bool) -> Iterator[Hit]:
    """Findings about the queries of a program.

    `has_default_checkpoint`: whether the session has a location for queries without one.
    """
    code = Bindings(tree)
    started = list(queries(code))
    for query in started:
        yield from _checkpoint(query, has_default_checkpoint)
        yield from _sink(query)
        if query.is_complete:
            yield from _state(query)
    yield from _shared(started, tree)
    for call, function in code.calls:
        if getattr(call.func, "attr", "") in ("load", "table", *_FILES):
            yield from _read(call, code, function)


# -- checkpoints --------------------------------------------------------------------------------


def _checkpoint(query: Query, has_default_checkpoint: bool) -> Iterator[Hit]:
    location = query.option("checkpointlocation")
    line = query.start.line
    if location is not None:
        text, at = location[1].beginning(location[0]), location[0].lineno
        if folder := _TEMPORARY.match(text):
            begins = folder.group().rstrip("/")
            yield Hit("PSL702", at, f"the checkpoint location begins with {begins}")
        elif _CHANGING.search(text):
            yield Hit("PSL702", at, "the checkpoint location is another one at each start")
        return
    name = query.text_of("format")
    is_function = query.has("foreachBatch", "foreach")
    if not query.has_known_options or isinstance(
        sink_of(name or ""), ConsoleSink | MemorySink | NoopSink
    ):
        return
    if name is None and query.has("format") and not is_function:
        return
    if not has_default_checkpoint:
        sink = "the function" if is_function else f"{name or 'the default format'}"
        yield Hit("PSL701", line, f"the query into {sink} has no checkpointLocation")
    elif not query.has("queryName"):
        message = f"without queryName, {DEFAULT_CHECKPOINT} gives another location at each start"
        yield Hit("PSL702", line, message)


def _shared(started: list[Query], tree: ast.Module) -> Iterator[Hit]:
    """Queries with the same checkpoint that may run at the same time."""
    ends = sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ENDS
    )
    by_text: dict[str, list[tuple[int, Query]]] = {}
    for query in started:
        location = query.option("checkpointlocation")
        text = None if location is None else location[1].text(location[0])
        if location is not None and text is not None and is_stable(text):
            by_text.setdefault(text.rstrip("/"), []).append((location[0].lineno, query))
    apart = _exclusive(tree)
    for text, users in by_text.items():
        for position, (line, query) in enumerate(users):
            rivals = [other for at, (_, other) in enumerate(users) if at != position]
            if any(
                not _in_turn(query, other, ends) and not apart(query.start.line, other.start.line)
                for other in rivals
            ):
                yield Hit("PSL301", line, f"{len(users)} queries have the checkpoint {text}")


def _in_turn(query: Query, other: Query, ends: list[int]) -> bool:
    """Whether two queries have the same target and one starts after the end of the other."""
    first, second = sorted((query.start.line, other.start.line))
    same = [step.texts()[:1] for step in (query.start, other.start)]
    return same[0] == same[1] and any(first <= line < second for line in ends)


def _exclusive(tree: ast.Module) -> Callable[[int, int], bool]:
    """A function that returns whether two lines are in different branches of an `if` or `try`."""
    pairs = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            pairs.append((_lines(node.body), _lines(node.orelse)))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise):
            pairs.append((_lines(node.body), range((node.end_lineno or 0) + 1, 1 << 30)))
        elif isinstance(node, ast.Try):
            pairs += [(_lines(node.body), _lines(handler.body)) for handler in node.handlers]

    def apart(first: int, second: int) -> bool:
        first, second = sorted((first, second))
        return any(first in before and second in after for before, after in pairs)

    return apart


def _lines(body: list[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or 0) + 1)


# -- sinks --------------------------------------------------------------------------------------


def _sink(query: Query) -> Iterator[Hit]:
    name, mode = query.text_of("format"), query.text_of("outputMode")
    if name is None or query.has("foreachBatch", "foreach"):
        return
    sink = sink_of(name)
    if not isinstance(sink, DeltaSink | FileSink):
        return
    if mode in [str(refused) for refused in sink.refused_modes]:
        line = next((step.line for step in query.steps("outputMode")), query.start.line)
        yield Hit("PSL703", line, f"{name} does not take the output mode {mode}")
    if not query.has("trigger"):
        yield Hit("PSL704", query.start.line, f"the query into {name} has no trigger")


# -- state --------------------------------------------------------------------------------------


def _state(query: Query) -> Iterator[Hit]:
    if query.text_of("outputMode") == "complete":
        return  # all groups are kept intentionally
    if query.has("outputMode") and query.text_of("outputMode") is None:
        return
    yield from _state_of(query.rows)


def _state_of(rows: list[Step]) -> Iterator[Hit]:
    grouped: Step | None = None
    for position, step in enumerate(rows):
        before = rows[:position]
        if any(known.name in _WATERMARKS for known in before):
            return
        if step.name in GROUPS:
            # Without keys there is one group.
            grouped = step if step.call is not None and step.call.args else None
        elif grouped is not None and step.name in _AGGREGATES:
            yield Hit("PSL101", grouped.line, f"{grouped.name} on a stream without a watermark")
            return
        elif step.name in DEDUPLICATION and step.call is not None:
            yield Hit("PSL103", step.line, f"{step.name} on a stream without a watermark")
        elif (
            step.name == "join"
            and step.call is not None
            and joins_stream(step, without=_WATERMARKS)
        ):
            yield Hit("PSL104", step.line, "a join of two streams without a watermark")


# -- sources ------------------------------------------------------------------------------------


def _read(call: ast.Call, code: Bindings, function: ast.FunctionDef | None) -> Iterator[Hit]:
    for scope in code.scopes(function):
        steps, is_complete = unrolled(call, scope)
        if not is_complete or len(steps) < 2 or steps[-1].call is not call:
            continue
        last = steps[-1]
        source = last.name if last.name not in ("load", "table") else ""
        values: dict[str, str] = {}
        for step in steps:
            if step.name == "format":
                source = (step.texts() or [""])[0] or ""
            for key, value in options(step):
                text = step.scope.text(value)
                values[key.lower()] = "?" if text is None or "{" in text else text
        facts = ReadFacts(
            source=source.lower(),
            is_streaming=True,
            options=values,
            has_schema=any(
                step.name == "schema"
                or (step.call and any(word.arg == "schema" for word in step.call.keywords))
                for step in steps
            ),
            origin=SourceLocation("", last.line),
        )
        for finding in findings_of_read("", facts.origin, facts):
            rule = finding.rule.id
            if rule in _OF_ABSENCE and not are_known(steps):
                continue
            servers = values.get("kafka.bootstrap.servers")
            known = servers and "?" not in (servers, values.get("kafka.security.protocol"))
            if rule == "PSL211" and not known:
                continue
            yield Hit(rule, last.line, finding.message)
