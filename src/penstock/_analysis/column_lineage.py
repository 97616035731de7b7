"""Column lineage of a query, from Spark's analysed plan; nothing is executed.

The plan is fetched once, as JSON: a call of py4j for each expression of each node would take
seconds in a large pipeline. Attributes are traced by their expression ids from the result to the
leaves.
"""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from penstock._model.lineage import ColumnInput, FlowLineage, LineageSource, place_of
from penstock._spark.plans import analyzed, kind_of, leaves, location_of

_MAX_COLUMNS = 1000
_MAX_INPUTS = 100
_RANKS = ("IDENTITY", "TRANSFORMATION", "AGGREGATION")
_NAMED = {
    "Project": "projectList",
    "Aggregate": "aggregateExpressions",
    "Window": "windowExpressions",
    "SerializeFromObject": "serializer",
    "CollectMetrics": "metrics",
}
_INFLUENCES = {
    "Filter": (("condition", "FILTER"),),
    "Join": (("condition", "JOIN"),),
    "Aggregate": (("groupingExpressions", "GROUP_BY"),),
    "Deduplicate": (("keys", "GROUP_BY"),),
    "DeduplicateWithinWatermark": (("keys", "GROUP_BY"),),
    "Sort": (("order", "SORT"),),
    "Window": (("partitionSpec", "WINDOW"), ("orderSpec", "WINDOW")),
}
_NEW_ATTRIBUTES = ("generatorOutput", "output", "outputAttrs", "outAttributes", "outputAttributes")

_logger = logging.getLogger(__name__)


def column_lineage(df: DataFrame, own: Callable[[str], str | None]) -> FlowLineage | None:
    """The lineage of a query's columns; `None` if it is unknown.

    Never raises: lineage must not fail an update.
    """
    try:
        plan = analyzed(df)
        reader = _Reader(_sources(plan, own))
        output = reader.read(_trees(json.loads(plan.toJSON()))[0])
        return reader.lineage(output, df.columns)
    except Exception as error:
        _logger.debug("no column lineage: %s", error)
        return None


# -- leaves ---------------------------------------------------------------------------------------


def _sources(plan: Any, own: Callable[[str], str | None]) -> dict[int, LineageSource]:
    sources = {}
    for leaf in leaves(plan):
        source = _source(kind_of(leaf), leaf, own)
        if source is not None and not leaf.output().isEmpty():
            sources[int(leaf.output().head().exprId().id())] = source
    return sources


def _source(kind: str, leaf: Any, own: Callable[[str], str | None]) -> LineageSource | None:
    if kind == "LogicalRelation":
        location = location_of(leaf)
        if location is None or location.rootPaths().isEmpty():
            return None
        path = str(location.rootPaths().head().toString())
    elif kind == "StreamingRelation":
        option = leaf.dataSource().options().get("path")
        paths = leaf.dataSource().paths()
        if option.isEmpty() and paths.isEmpty():
            return None
        path = str(paths.head() if option.isEmpty() else option.get())
    elif kind in ("StreamingRelationV2", "DataSourceV2Relation"):
        options = leaf.extraOptions() if kind == "StreamingRelationV2" else leaf.options()
        topics = map(options.get, ("subscribe", "subscribePattern", "assign"))
        topic = next((topic for topic in topics if topic is not None), None)
        servers = options.get("kafka.bootstrap.servers")
        if topic is not None and servers is not None:
            return LineageSource(namespace=f"kafka://{servers}", name=str(topic))
        if options.get("path") is None:
            return None
        path = str(options.get("path"))
    else:
        return None
    dataset = own(path)
    return LineageSource(dataset=dataset) if dataset is not None else place_of(path)


# -- the tree -------------------------------------------------------------------------------------


class _Node:
    """A node of Spark's JSON: its fields, and its children in order."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.kind = str(fields["class"]).rpartition(".")[2]
        self.fields = fields
        self.children: list[_Node] = []


def _trees(flat: list[Any]) -> list[_Node]:
    """The trees of a list in which the children of a node follow it."""
    items = iter(flat)

    def read(fields: dict[str, Any]) -> _Node:
        node = _Node(fields)
        node.children = [read(next(items)) for _ in range(fields["num-children"])]
        return node

    return [read(fields) for fields in items]


def _is_tree(value: Any) -> bool:
    return bool(
        isinstance(value, list) and value and isinstance(value[0], dict) and "class" in value[0]
    )


def _expressions(value: Any) -> Iterator[_Node]:
    """The expressions of a field: a single one, a list, or a list of lists."""
    if _is_tree(value):
        yield from _trees(value)
    elif isinstance(value, list):
        for item in value:
            yield from _expressions(item)


def _id(fields: dict[str, Any]) -> int | None:
    expr_id = fields.get("exprId")
    return int(expr_id["id"]) if isinstance(expr_id, dict) and "id" in expr_id else None


class _Reader:
    def __init__(self, sources: dict[int, LineageSource]) -> None:
        self._by_leaf = sources
        self._sources: dict[LineageSource, int] = {}
        self._leaves: dict[int, tuple[int, str]] = {}
        # The attributes that an attribute is derived from. The first branch of a union keeps its
        # ids, so an attribute of a leaf may also be derived from others.
        self._derived: dict[int, list[tuple[set[int], int]]] = {}
        self._influences: dict[tuple[int, str], None] = {}
        self._ctes: dict[Any, list[int]] = {}

    def read(self, node: _Node) -> list[int]:
        """Record the derivation of the attributes of a plan; return those of its result."""
        if node.kind == "WithCTE":
            last = node.fields["plan"]
            for at, child in enumerate(node.children):
                if at != last:
                    self._ctes[child.fields["id"]] = self.read(child)
            return self.read(node.children[last])
        below = [self.read(child) for child in node.children]
        if not node.children:
            return self._leaf(node)
        for name, kind in _INFLUENCES.get(node.kind, ()):
            for expression in _expressions(node.fields.get(name)):
                for reference in self._references(expression):
                    self._influences[reference, kind] = None
        if node.kind in _NAMED:
            named = [self._named(part) for part in _expressions(node.fields[_NAMED[node.kind]])]
            own = [expr_id for expr_id in named if expr_id is not None]
            return [*below[0], *own] if node.kind == "Window" else own
        if node.kind == "Union":
            for alike in zip(*below, strict=False):
                self._derive(alike[0], set(alike[1:]) - {alike[0]}, 0)
            return below[0]
        if node.kind == "Join":
            one_side = any(word in str(node.fields.get("joinType")) for word in ("Semi", "Anti"))
            return below[0] if one_side else [expr_id for ids in below for expr_id in ids]
        return self._others(node, below)

    def _others(self, node: _Node, below: list[list[int]]) -> list[int]:
        """Nodes that keep the attributes of their child, or produce opaque ones."""
        known = {expr_id for ids in below for expr_id in ids}
        for name in _NEW_ATTRIBUTES:
            output = [(_id(part.fields), part) for part in _expressions(node.fields.get(name))]
            ids = [number for number, _ in output if number is not None]
            if not ids:
                continue
            parts = known
            if name == "generatorOutput":
                (generator,) = _expressions(node.fields["generator"])
                parts = self._references(generator)
            projections = node.fields.get("projections") or []
            for at, expr_id in enumerate(ids):
                if expr_id not in known:
                    alike = [row[at] for row in projections if at < len(row)]
                    exact = {
                        part
                        for expression in _expressions(alike)
                        for part in self._references(expression)
                    }
                    self._derive(expr_id, exact if projections else parts, 1)
            return [*below[0], *ids] if name == "generatorOutput" else ids
        return below[0]

    def _leaf(self, node: _Node) -> list[int]:
        output = [expression.fields for expression in _expressions(node.fields.get("output"))]
        ids = [expr_id for fields in output if (expr_id := _id(fields)) is not None]
        if node.kind == "CTERelationRef":
            definition = self._ctes.get(node.fields.get("cteId"), ())
            for reference, other in zip(ids, definition, strict=False):
                if reference != other:
                    self._derive(reference, {other}, 0)
            return ids
        source = self._by_leaf.get(ids[0]) if ids else None
        if source is not None:
            number = self._sources.setdefault(source, len(self._sources))
            for expr_id, fields in zip(ids, output, strict=True):
                self._leaves[expr_id] = (number, str(fields["name"]))
        return ids

    def _named(self, expression: _Node) -> int | None:
        expr_id = _id(expression.fields)
        if expr_id is not None and expression.kind != "AttributeReference":
            inner = expression.children[0] if expression.children else expression
            rank = 0 if inner.kind == "AttributeReference" else 1
            if any(part.kind == "AggregateExpression" for part in _walk(expression)):
                rank = 2
            self._derive(expr_id, self._references(expression), rank)
        return expr_id

    def _derive(self, attribute: int, parts: set[int], rank: int) -> None:
        if parts:
            self._derived.setdefault(attribute, []).append((parts, rank))

    def _references(self, expression: _Node) -> set[int]:
        ids: set[int] = set()
        for part in _walk(expression):
            if part.kind == "AttributeReference" and (own := _id(part.fields)) is not None:
                ids.add(own)
            for name, value in part.fields.items():
                if name == "plan" and _is_tree(value):
                    ids.update(self.read(_trees(value)[0]))
                elif _is_tree(value):  # an expression that is not a child, as in an outer reference
                    for inner in _trees(value):
                        ids |= self._references(inner)
        return ids

    # -- result ----------------------------------------------------------------------------

    def lineage(self, output: list[int], names: list[str]) -> FlowLineage:
        """The lineage of the columns of the result."""
        columns = {}
        for name, attribute in list(zip(names, output, strict=True))[:_MAX_COLUMNS]:
            inputs = [
                ColumnInput(*self._leaves[leaf], _RANKS[rank])
                for leaf, rank in sorted(self._below(attribute).items())
            ]
            columns[name] = tuple(dict.fromkeys(inputs))[:_MAX_INPUTS]
        influences = [
            ColumnInput(*self._leaves[leaf], kind)
            for attribute, kind in self._influences
            for leaf in sorted(self._below(attribute))
        ]
        return FlowLineage(
            sources=tuple(self._sources),
            columns=columns,
            influences=tuple(dict.fromkeys(influences))[:_MAX_INPUTS],
        )

    def _below(self, attribute: int) -> dict[int, int]:
        """The leaf attributes of an attribute, each with its strongest transformation."""
        best: dict[int, int] = {}
        waiting = [(attribute, 0)]
        while waiting:
            part, rank = waiting.pop()
            if best.get(part, -1) >= rank:
                continue
            best[part] = rank
            for parts, more in self._derived.get(part, ()):
                waiting += [(below, max(rank, more)) for below in parts]
        return {part: rank for part, rank in best.items() if part in self._leaves}


def _walk(expression: _Node) -> Iterator[_Node]:
    if expression.kind == "WindowSpecDefinition":
        return
    yield expression
    for child in expression.children:
        yield from _walk(child)
