"""Rules about datasets: partitions, retention, expectations, quarantine."""

import re
from collections.abc import Iterator, Mapping

from penstock._lint.catalogue import RULES
from penstock._lint.finding import Finding
from penstock._model.dataset import Dataset, DatasetKind
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.origin import SourceLocation
from penstock._model.query_facts import QueryFacts, RuleFacts

_MANY_VALUES = ("timestamp", "timestamp_ntz", "float", "double", "decimal", "binary")
_IDENTITY = re.compile(r"(^|_)(id|uuid|guid|key|offset|email|phone|ip|ts|timestamp|hash)$", re.I)
_SOME_VALUES = re.compile(
    r"(country|region|tenant|store|type|category|status|(^|_)(date|day|week|month|year))_?(id|key)$",
    re.I,
)
_MOST_PARTITION_COLUMNS = 3
_INTERVAL = re.compile(
    r"\s*(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week|month|year)s?", re.I
)
_DAYS = {"second": 1 / 86400, "minute": 1 / 1440, "hour": 1 / 24, "day": 1, "week": 7}
_RETENTION = {"delta.deletedfileretentionduration": 7, "delta.logretentionduration": 7}


def findings_of_dataset(
    dataset: Dataset,
    queries: Mapping[str, QueryFacts],
    rules: Mapping[str, RuleFacts],
    *,
    quarantine: bool,
) -> Iterator[Finding]:
    """Findings about a dataset.

    `queries` and `rules` are the facts of flows and expectations that could be evaluated;
    `quarantine` is the default of the pipeline.
    """

    def finding(rule: str, message: str, at: SourceLocation | None = None) -> Finding:
        return Finding(
            rule=RULES[rule],
            origin=at or dataset.origin,
            message=message,
            flow=dataset.name,
            declared=dataset.origin,
        )

    columns: dict[str, str] = {}
    for facts in queries.values():
        columns |= {name.lower(): kind for name, kind in facts.columns.items()}
    for message in _partitions(dataset, columns):
        yield finding("PSL309", message)
    for key, value in dataset.table_properties.items():
        least = _RETENTION.get(key.lower())
        days = _days(value)
        if least is not None and days is not None and days < least:
            yield finding("PSL310", f"{key} is {value}")
    is_streaming = any(facts.is_streaming for facts in queries.values())
    for rule in dataset.expectations:
        for name, message in _of_rule(rule, rules.get(rule.name)):
            yield finding(name, message, rule.origin)
        if rule.on_violation is OnViolation.FAIL and is_streaming:
            yield finding(
                "PSL505", f"a row that violates {rule.name!r} stops the flow", rule.origin
            )
        kept = quarantine if dataset.quarantine is None else dataset.quarantine
        if dataset.kind is DatasetKind.TEMPORARY_VIEW:
            if rule.on_violation is not OnViolation.FAIL:
                lost = "dropped, neither counted nor kept"
                consequence = lost if rule.on_violation.removes else "not counted"
                yield finding(
                    "PSL507", f"rows that violate {rule.name!r} are {consequence}", rule.origin
                )
        elif rule.on_violation is OnViolation.DROP and not kept:
            yield finding("PSL504", f"rows that violate {rule.name!r} are not kept", rule.origin)
    if dataset.kind is DatasetKind.TEMPORARY_VIEW or dataset.expectations:
        return
    for facts in queries.values():
        if facts.is_streaming and facts.functions:
            parser = min(facts.functions)
            yield finding("PSL506", f"{parser} is used, and {dataset.name} has no expectation")
            return


def _of_rule(rule: Expectation, facts: RuleFacts | None) -> Iterator[tuple[str, str]]:
    if facts is None:
        return
    if facts.constant:
        yield "PSL503", f"{rule.name!r} is {facts.constant} for every row"
        return
    passes = [name for name in facts.passes if name not in facts.mentioned]
    if passes:
        yield "PSL502", f"a row passes {rule.name!r} when {' or '.join(passes)} is NULL"
    breaks = [name for name in facts.breaks if name not in facts.mentioned]
    if breaks:
        yield (
            "PSL501",
            f"a row violates {rule.name!r} when {' or '.join(breaks)} is NULL"
            + (", and is removed" if rule.on_violation.removes else ""),
        )


def _partitions(dataset: Dataset, columns: Mapping[str, str]) -> Iterator[str]:
    if len(dataset.partition_cols) > _MOST_PARTITION_COLUMNS:
        yield f"{dataset.name} is partitioned by {len(dataset.partition_cols)} columns"
    for name in dataset.partition_cols:
        kind = columns.get(name.lower(), "")
        if kind.startswith(_MANY_VALUES):
            yield f"{dataset.name} is partitioned by {name}, a {kind}"
        elif kind in ("date", "boolean") or _SOME_VALUES.search(name):
            continue
        elif _IDENTITY.search(name):
            yield f"{dataset.name} is partitioned by {name}, whose name suggests one value per row"


def _days(text: str) -> float | None:
    match = _INTERVAL.match(text)
    if match is None:
        return None
    unit = match.group(2).lower()
    return int(match.group(1)) * _DAYS.get(unit, 30)
