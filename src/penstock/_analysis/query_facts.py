"""Facts about a query from Spark's analysed plan; nothing is executed."""

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock._analysis.late_rows import is_watermarked
from penstock._analysis.state_growth import growing_sides, join_as_run
from penstock._model.query_facts import QueryFacts, StateFacts, StateKind
from penstock._spark.plans import (
    analyzed,
    is_deterministic,
    kind_of,
    shown_expression,
    walk,
)
from penstock._tables.jvm import iterate

_NONDETERMINISTIC = re.compile(
    r"\b(rand|randn|random|uuid|shuffle|monotonically_increasing_id)\(", re.I
)
_CLOCK = re.compile(
    r"\b(current_timestamp|current_date|localtimestamp|now|unix_timestamp)\(\)", re.I
)
_NOTED = re.compile(r"\b(from_json|from_csv|from_xml)\(", re.I)
_PARSERS = {"JsonToStructs": "from_json", "CsvToStructs": "from_csv", "XmlToStructs": "from_xml"}
_COORDINATES = ("partition", "offset")
# The state of an operator, and the method that returns its keys.
_KEYED = {
    "Aggregate": (StateKind.AGGREGATE, "groupingExpressions"),
    "Distinct": (StateKind.AGGREGATE, "output"),
    "Deduplicate": (StateKind.DEDUPLICATE, "keys"),
    "DeduplicateWithinWatermark": (StateKind.DEDUPLICATE_WITHIN, "keys"),
}
_TIMELESS = {"NoTimeout", "NoTimeout$", "NoTime", "NoTime$"}


def query_facts(df: DataFrame) -> QueryFacts:
    reader = _Reader(df)
    for node in reader.nodes:
        reader.read(node)
    return reader.facts()


class _Reader:
    def __init__(self, df: DataFrame) -> None:
        self.plan = analyzed(df)
        self._df = df
        self._jvm: Any = df.sparkSession._jvm
        # References and SQL text of the expression of each attribute.
        self._derived: dict[int, tuple[set[int], str]] = {}
        self.nodes = list(walk(self.plan))
        self._watermarks: dict[str, int] = {}
        self._coordinates: dict[int, str] = {}
        self._texts: list[str] = []
        self._strict: set[str] = set()
        self._lenient: set[str] = set()

    def read(self, node: Any) -> None:
        kind = kind_of(node)
        if kind in ("Project", "Aggregate"):
            name = "projectList" if kind == "Project" else "aggregateExpressions"
            for item in iterate(getattr(node, name)()):
                self._note(item)
        elif kind == "Filter":
            self._texts.append(str(node.condition().sql()))
        elif kind == "EventTimeWatermark":
            # Spark counts a month of the interval as 31 days.
            event_time = self._jvm.org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark
            self._watermarks[str(node.eventTime().name())] = int(
                event_time.getDelayMs(node.delay())
            )
        elif kind == "StreamingRelationV2" and str(node.sourceName()).lower() == "kafka":
            for attribute in iterate(node.output()):
                if attribute.name() in _COORDINATES:
                    self._coordinates[attribute.exprId().id()] = str(attribute.name())

    def facts(self) -> QueryFacts:
        text = "\n".join([*self._texts, *(sql for _, sql in self._derived.values())])
        nondeterministic = _names(_NONDETERMINISTIC, text)
        if not nondeterministic and not is_deterministic(self._df):
            nondeterministic = ("a function that is declared as not deterministic",)
        result = set()
        for attribute in iterate(self.plan.output()):
            result |= self._all_parts(attribute.exprId().id())
        is_aggregated = any(kind_of(node) == "Aggregate" for node in self.nodes)
        lost = {name for i, name in self._coordinates.items() if i not in result}
        return QueryFacts(
            is_streaming=self._df.isStreaming,
            watermarks=self._watermarks,
            state=tuple(self._stateful()) if self._df.isStreaming else (),
            nondeterministic=nondeterministic,
            clock=_names(_CLOCK, text),
            functions=frozenset(_names(_NOTED, text)) - (self._strict - self._lenient),
            dropped_offset_columns=() if is_aggregated else tuple(sorted(lost)),
            columns={field.name: field.dataType.simpleString() for field in self._df.schema},
        )

    # -- expressions of attributes -----------------------------------------------------------

    def _note(self, item: Any) -> None:
        if kind_of(item) != "Alias":
            return
        references = {a.exprId().id() for a in iterate(item.references().toSeq())}
        # Auto Loader's own parsers rescue what they cannot parse.
        text = "" if str(item.name()).startswith("__files_") else str(item.child().sql())
        self._derived[item.exprId().id()] = references, text
        for part in walk(item) if _NOTED.search(text) else ():
            if name := _PARSERS.get(kind_of(part)):
                is_strict = "(mode,failfast)" in _options(part)
                (self._strict if is_strict else self._lenient).add(name)

    def _all_parts(self, attribute: int) -> set[int]:
        seen: set[int] = set()
        waiting = [attribute]
        while waiting:
            part = waiting.pop()
            if part in seen:
                continue
            seen.add(part)
            if part in self._derived:
                waiting += self._derived[part][0]
        return seen

    def _changing(self, expressions: list[Any]) -> dict[str, tuple[str, ...]]:
        """Functions in keys, for `StateFacts`."""
        texts = []
        for expression in expressions:
            texts.append(str(expression.sql()))
            for attribute in iterate(expression.references().toSeq()):
                parts = self._all_parts(attribute.exprId().id())
                texts += [self._derived[part][1] for part in parts if part in self._derived]
        text = "\n".join(texts)
        return {
            "nondeterministic_keys": _names(_NONDETERMINISTIC, text),
            "clock_keys": _names(_CLOCK, text),
        }

    # -- state ---------------------------------------------------------------------------------

    def _stateful(self) -> Iterator[StateFacts]:
        for node in self.nodes:
            if not node.isStreaming():
                continue
            kind = kind_of(node)
            if kind in _KEYED:
                state, method = _KEYED[kind]
                yield self._keyed(node, state, list(iterate(getattr(node, method)())))
            elif kind == "Join":
                if all(child.isStreaming() for child in iterate(node.children())):
                    yield self._join(node)
            elif "WithState" in kind:
                yield self._arbitrary(node)

    def _keyed(self, node: Any, kind: StateKind, keys: list[Any]) -> StateFacts:
        return StateFacts(
            kind=kind,
            keys=tuple(shown_expression(key) for key in keys),
            has_watermark=_has_watermark(node),
            # Without keys, there is one row or group.
            is_bounded=kind is StateKind.DEDUPLICATE_WITHIN
            or not keys
            or any(map(is_watermarked, keys)),
            **self._changing(keys),
        )

    def _join(self, node: Any) -> StateFacts:
        node = join_as_run(self._jvm, node)
        condition = node.condition()
        conditions = [condition.get()] if condition.isDefined() else []
        return StateFacts(
            kind=StateKind.JOIN,
            keys=tuple(shown_expression(part) for part in conditions),
            has_watermark=_has_watermark(node),
            is_bounded=not growing_sides(self._jvm, node),
            **self._changing(conditions),
        )

    def _arbitrary(self, node: Any) -> StateFacts:
        timeless = False
        methods = {method.getName() for method in node.getClass().getMethods()}
        for name in (name for name in ("timeout", "timeMode") if name in methods):
            value = getattr(node, name)()
            timeless = {kind_of(value), str(value.toString())} & _TIMELESS != set()
        return StateFacts(
            kind=StateKind.ARBITRARY, has_watermark=_has_watermark(node), is_bounded=not timeless
        )


def _names(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(sorted({match.group(1).lower() for match in pattern.finditer(text)}))


def _options(parser: Any) -> str:
    return str(parser.options().toSeq().toString()).lower()


def _has_watermark(node: Any) -> bool:
    return any(kind_of(part) == "EventTimeWatermark" for part in walk(node))
