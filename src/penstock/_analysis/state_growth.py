"""Queries with unbounded state, detected from the plan before they start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock._analysis.late_rows import is_watermarked
from penstock._model.flow import OutputMode
from penstock._spark.plans import analyzed, is_stateful, kind_of, shown_expression, walk
from penstock._tables.jvm import iterate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Any watermark: only the existence of a bound is checked. The value is too large for a Java int, so
# that py4j passes the long that Spark expects.
_SOME_WATERMARK = 1_000_000_000_000


def growing_state(df: "DataFrame", mode: OutputMode | None) -> tuple[str, ...]:
    """Distinct sentences about stateful operations with unbounded state, with the remedy."""
    jvm: Any = df.sparkSession._jvm
    texts = (text for node in walk(analyzed(df)) for text in _grows(jvm, node, mode))
    return tuple(dict.fromkeys(texts))


def _grows(jvm: Any, node: Any, mode: OutputMode | None) -> Iterator[str]:
    if not is_stateful(node):
        return
    kind = kind_of(node)
    if kind == "Aggregate":
        keys = list(iterate(node.groupingExpressions()))
        if keys and not any(is_watermarked(key) for key in keys):
            names = ", ".join(shown_expression(key) for key in keys)
            yield (
                f"the aggregation keeps every group of ({names}) forever: group by a window of a "
                "column with withWatermark as well, or aggregate in a materialized view"
            )
        elif keys and mode is OutputMode.COMPLETE:
            yield (
                "complete mode keeps every window forever, regardless of the watermark: use "
                'output_mode="update" or append mode'
            )
    elif kind in ("Deduplicate", "Distinct"):
        keys = list(iterate(node.keys() if kind == "Deduplicate" else node.output()))
        if not any(is_watermarked(key) for key in keys):
            yield (
                "the de-duplication keeps every key forever: withWatermark and "
                "dropDuplicatesWithinWatermark, or deduplicate_by=[...] on the table"
            )
    elif kind == "Join" and (sides := growing_sides(jvm, join_as_run(jvm, node))):
        yield (
            f"the stream-stream join keeps every row of its {' and '.join(sides)} side forever: "
            "give both sides withWatermark, and the join a condition that bounds the time between "
            "them, such as click_time <= seen_time + INTERVAL 10 MINUTES"
        )


def join_as_run(jvm: Any, node: Any) -> Any:
    """An optimized join: BETWEEN becomes two comparisons without casts."""
    rules = jvm.org.apache.spark.sql.catalyst.optimizer
    for rule in (rules.ReplaceExpressions, rules.RewriteWithExpression, rules.SimplifyCasts):
        node = rule.apply(node)
    return node


def growing_sides(jvm: Any, node: Any) -> list[str]:
    """Sides of an optimized join whose rows are all kept forever: `left`, `right`."""
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(node):
        return []
    left, right = node.left().outputSet(), node.right().outputSet()
    some = jvm.scala.Option.apply(_SOME_WATERMARK)
    return [
        side
        for side, kept, other in (("left", left, right), ("right", right, left))
        if not helper.getStateValueWatermark(kept, other, node.condition(), some).isDefined()
    ]
