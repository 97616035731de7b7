"""Generated names in the text of a plan, which differ between processes.

Text that is stored and compared with a later update must not contain them: ids of expressions,
temporary views of datasets in SQL (ours, and PySpark's for `{df}` in `spark.sql`), variables of
Python lambdas, common table expressions, and hashes of Java objects.
"""

import re
from collections.abc import Iterable

VIEW_PREFIX = "__penstock_"
"""Prefix of the temporary views of datasets, sources and files in a query."""
GENERATED_VIEW = re.compile(rf"\b{VIEW_PREFIX}\d+\b")

_EXPRESSION_ID = re.compile(r"#\d+L?")
# A view as the qualifier of a column. PySpark's name contains a UUID.
_VIEW = re.compile(rf"`?\b(?:{VIEW_PREFIX}\d+|_pyspark_[0-9a-f]{{32}})\b`?\.")
# PySpark numbers the variables of all lambdas of a process: `lambda x_7`.
_LAMBDA = re.compile(r"\b(lambda) (\w+_\d+)\b")
_CTE = re.compile(r"\b(CTERelation(?:Def|Ref)) (\d+)\b")
# A recursive common table expression. Only nodes of the plan: literals may have the same text.
_LOOP = re.compile(r"^([\s:+'-]*UnionLoop(?:Ref)?) (\d+)\b", re.M)
# Each analysis chooses a seed, unless the query has one: `rand(864940256487)`,
# `uuid(Some(-483183193914))`.
_SEED = re.compile(r"\b((?:rand|randn|randstr|shuffle|uuid)\(.*?)-?\d{12,}")
WINDOWS = " in windows of "
"""Text before the durations in a line of `plans.stateful_operators`, since 2026-11-30."""
# Each call of `withWatermark` has a UUID.
_WATERMARK = re.compile(r"(\bEventTimeWatermark )[0-9a-f]{8}-[0-9a-f-]{27}, ")
_OBJECT = re.compile(r"\b([A-Za-z_$][\w$]*)@[0-9a-f]{1,8}\b")


def without_generated_names(text: str) -> str:
    """The text of an expression or a stateful operator without generated names.

    Also applied to text that earlier versions stored.
    """
    text = _VIEW.sub("", _EXPRESSION_ID.sub("", text))
    return _renumbered(_LAMBDA, text)


def stable_operators(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines of `plans.stateful_operators`, of this or an earlier version, for comparison."""
    return tuple(without_generated_names(line) for line in lines)


def stable_plan(text: str) -> str:
    """The text of a canonical plan without generated names.

    Spark canonicalizes ids of expressions, but not the ids of common table expressions, seeds, or
    objects of data sources.
    """
    text = _SEED.sub(r"\1", _renumbered(_LOOP, _renumbered(_CTE, text)))
    return _OBJECT.sub(r"\1", _WATERMARK.sub(r"\1", text))


def _renumbered(pattern: re.Pattern[str], text: str) -> str:
    """Number names by first appearance, so that different ones stay different."""
    numbers: dict[str, int] = {}
    return pattern.sub(lambda m: f"{m[1]} {numbers.setdefault(m[2], len(numbers))}", text)
