"""Facts from Spark's analysed logical plan: merge keys, state, sources."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from penstock._model.flow import Flow
from penstock._spark.generated_names import (
    WINDOWS,
    stable_operators,
    stable_plan,
    without_generated_names,
)
from penstock._tables.jvm import iterate
from penstock.errors import DefinitionError

MERGE_KEYS_PROPERTY = "penstock.mergeKeys"
"""Table property: the columns that identify a row of an update-mode table, comma separated."""

_TRANSPARENT = {"Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "View", "ResolvedHint"}
_STATEFUL = {
    "Aggregate",
    "Distinct",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Join",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
    "GlobalLimit",
}
_WITHOUT_FILES = {
    "LocalRelation",
    "OneRowRelation",
    "Range",
    "LogicalRDD",
    "CTERelationRef",
    "UnionLoopRef",
}
# Metadata keys of the columns that `window` and `session_window` create.
WINDOW_MARKS = ("spark.timeWindow", "spark.sessionWindow")
_CONSTANT = re.compile(r"'[^']*'|\b\d+")
_RESULT_CONFS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
# Further settings, if they are set. The plan contains substituted parameters.
_OTHER_CONFS = re.compile(
    r"^(spark\.sql\.(?:legacy\.(?!parameterSubstitution\b)|decimalOperations\.|jsonGenerator\."
    r"|mapKeyDedupPolicy)\S*) -> ",
    re.M,
)
_COMMENT = re.compile(r',?"comment":"(?:[^"\\]|\\.)*"')
# Folder and columns: a new column of an upstream table does not change queries without it.
_FILES = re.compile(r"FileSource\[[^\]]*\](, \[[^\]]*\])?")
_CHANGING = re.compile(
    r"current_timestamp|current_date|current_time\b|localtimestamp|\bnow\(|\brand\(|\brandn\(|uuid\("
    r"|\b(?:(?:current|session)_)?user\("
    # A sample without a seed.
    r"|\bSample [\d.]+, [\d.]+, \w+, [A-Z]"
    # Strings that the optimizer replaces by dates and times; they may have a time zone.
    r"|cast\((now|today|tomorrow|yesterday)\b[^()]* as ",
    re.I,
)


def kind_of(node: Any) -> str:
    """The class name of a node or an expression."""
    return str(node.getClass().getSimpleName())


def analyzed(df: DataFrame) -> Any:
    """Spark's analysed logical plan of a DataFrame."""
    return df._jdf.queryExecution().analyzed()


def shown_expression(expression: Any) -> str:
    return without_generated_names(str(expression.sql())).replace("`", "")


def walk(plan: Any) -> Iterator[Any]:
    """All nodes of a plan, or of an expression, from its root."""
    yield plan
    for child in iterate(plan.children()):
        yield from walk(child)


def has_filter(df: DataFrame) -> bool:
    return any(kind_of(node) == "Filter" for node in walk(analyzed(df)))


def merge_keys(df: DataFrame, flow: Flow, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Columns that identify a row of an update-mode flow: declared, or the grouping columns.

    Empty for a query without an aggregation, whose updates are appends.
    """
    declared = properties.get(MERGE_KEYS_PROPERTY, "")
    if declared.strip():
        keys = tuple(key.strip() for key in declared.split(","))
        for key in keys:
            if key.lower() not in {column.lower() for column in df.columns}:
                raise DefinitionError(
                    "MERGE_KEY_NOT_A_COLUMN",
                    f"{MERGE_KEYS_PROPERTY} of {flow.target!r} names {key!r}",
                    origin=flow.origin,
                    hint=f"columns: {', '.join(df.columns)}",
                )
        return keys
    return _grouping_columns(df, flow)


def _grouping_columns(df: DataFrame, flow: Flow) -> tuple[str, ...]:
    # Attributes are followed from the top of the plan down to the first aggregate: an output
    # column is a key if all its references are grouping columns.
    node = analyzed(df)
    columns: list[tuple[str, set[int]]] = [
        (attribute.name(), {attribute.exprId().id()}) for attribute in iterate(node.output())
    ]
    while kind_of(node) in _TRANSPARENT:
        if kind_of(node) == "Project":
            references_of = {
                item.exprId().id(): _references(item) for item in iterate(node.projectList())
            }
            columns = [
                (name, set().union(*(references_of.get(i, {i}) for i in ids)))
                for name, ids in columns
            ]
        node = node.children().head()
    if kind_of(node) != "Aggregate":
        if any(is_stateful(part) for part in walk(node)):
            raise _keys_unknown(flow)
        return ()
    grouping: set[int] = set()
    for expression in iterate(node.groupingExpressions()):
        grouping |= _references(expression)
    grouped: dict[int, set[int]] = {}  # columns of the aggregate, with their grouping columns
    for item in iterate(node.aggregateExpressions()):
        references = _references(item)
        is_grouped = references and references <= grouping
        if is_grouped and not any(kind_of(part) == "AggregateExpression" for part in walk(item)):
            grouped[item.exprId().id()] = references
    keys: list[str] = []
    covered: set[int] = set()
    for name, ids in columns:
        if ids and ids <= grouped.keys():
            keys.append(name)
            covered = covered.union(*(grouped[i] for i in ids))
    if not grouping or not grouping <= covered:
        raise _keys_unknown(flow)
    return tuple(keys)


def _references(expression: Any) -> set[int]:
    """Ids of the columns in an expression."""
    return {attribute.exprId().id() for attribute in iterate(expression.references().toSeq())}


def is_stateful(node: Any) -> bool:
    """Whether a node of a logical plan keeps state."""
    kind = kind_of(node)
    if kind not in _STATEFUL or not node.isStreaming():
        return False
    return kind != "Join" or all(child.isStreaming() for child in iterate(node.children()))


def keeps_state(df: DataFrame) -> bool:
    return any(is_stateful(node) for node in walk(analyzed(df)))


def _keys_unknown(flow: Flow) -> DefinitionError:
    return DefinitionError(
        "MERGE_KEYS_UNKNOWN",
        f"flow {flow.name!r} is in update mode, but its result does not identify a "
        "row: not every grouping column is selected",
        origin=flow.origin,
        hint=f'select the grouping columns, or set the table property "{MERGE_KEYS_PROPERTY}"',
    )


def stateful_operators(df: DataFrame) -> tuple[str, ...]:
    """One line per stateful operator and per streaming source, in plan order.

    The lines are the same in every process: they have no generated names.
    """
    return stable_operators(_operators(analyzed(df)))


def has_state(operators: Sequence[str]) -> bool:
    """Whether a query keeps state, by its `stateful_operators`."""
    return len(operators) > 1 or any(not line.startswith("source") for line in operators)


def _operators(node: Any) -> Iterator[str]:
    if not node.isStreaming():
        return
    kind = kind_of(node)
    children = list(iterate(node.children()))
    if kind == "Aggregate":
        keys = ", ".join(str(e.sql()) for e in iterate(node.groupingExpressions()))
        values = ", ".join(str(e.sql()) for e in iterate(node.aggregateExpressions()))
        yield f"aggregate by [{keys}] of [{values}]{_windows(children[0])}"
    elif kind == "Join":
        if all(child.isStreaming() for child in children):
            condition = node.condition().toString()
            yield f"stream-stream join {node.joinType().sql()} on {condition}"
    elif kind in ("Deduplicate", "DeduplicateWithinWatermark"):
        keys = ", ".join(sorted(key.name() for key in iterate(node.keys())))
        yield f"{kind} by [{keys}]"
    elif kind in _STATEFUL:
        yield f"{kind} with [{', '.join(a.name() for a in iterate(node.output()))}]"
    elif not children:
        yield f"source {kind}"
    for child in children:
        yield from _operators(child)


def _windows(node: Any) -> str:
    """The durations of the windows that an aggregate over this node groups by.

    Spark computes windows below the aggregate. Only the numbers of the expression are compared:
    its columns may have other names, and its form depends on the version of Spark.
    """
    durations: set[str] = set()
    while (kind := kind_of(node)) in _TRANSPARENT or kind == "Expand":
        is_expand = kind == "Expand"
        columns = node.projectList() if kind == "Project" else node.output()
        for index, column in enumerate(iterate(columns)):
            if any(column.metadata().contains(mark) for mark in WINDOW_MARKS):
                window = node.projections().apply(0).apply(index) if is_expand else column
                constants = (text.strip("'") for text in _CONSTANT.findall(str(window.sql())))
                durations |= {_duration(text) for text in constants if re.search("[1-9]", text)}
        node = node.children().apply(0)
    return f"{WINDOWS}{', '.join(sorted(durations))}" if durations else ""


def _duration(text: str) -> str:
    """An interval unchanged; a number of microseconds in seconds."""
    return f"{int(text) / 1_000_000:.15g} s" if text.isdigit() else text


def query_text(df: DataFrame) -> str:
    """Canonical text of a query: equal texts mean an equal result for equal sources.

    Canonical plans number attributes by position and drop names, so the schema is part of the text,
    without comments.
    """
    plan, own = analyzed(df), own_class(df)
    text = whole_text(plan.canonicalized()) if own is None else str(own.canonical(plan))
    text = stable_plan(text)
    # A Delta relation has the version of its analysis; versions are compared separately.
    return re.sub(r"version=\d+", "version", text) + _COMMENT.sub("", df.schema.json())


def whole_text(plan: Any) -> str:
    """`toString` of a plan with all columns: Spark's own has 25 of each list."""
    arguments = (True, False, 2**31 - 1, False)
    try:
        return str(plan.treeString(*arguments, False))
    except Py4JError:  # a Spark version without `printOutputColumns`
        return str(plan.treeString(*arguments))


def is_deterministic(df: DataFrame) -> bool:
    """Whether a query has the same result for the same rows of its sources."""
    plan, own = analyzed(df), own_class(df)
    return bool(plan.deterministic() if own is None else own.isDeterministic(plan))


def own_class(df: DataFrame) -> Any:
    """`PlanText` of the JVM; `None` in a borrowed session without Penstock's Java classes."""
    jvm: Any = df.sparkSession._jvm
    java_class = jvm.penstock.delta.PlanText
    return None if isinstance(java_class, JavaPackage) else java_class


def runs_python(df: DataFrame) -> bool:
    """Whether a query calls functions whose code its plan does not contain."""
    jvm: Any = df.sparkSession._jvm
    plan = analyzed(df)
    udf = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    text = whole_text(plan)
    return bool(plan.containsPattern(udf)) or "Python" in text or "UDF" in text


def declared_query(df: DataFrame) -> str:
    """Digest of a query and of settings that change its result, without its streams' locations."""
    confs = [] if df.isStreaming else result_confs(df)
    return fingerprint(_FILES.sub("FileSource", query_text(df)), *confs)


def result_confs(df: DataFrame) -> list[str]:
    """Settings that change the rows of a query: rows of different values must not be mixed."""
    conf: Any = df.sparkSession.conf
    # In one JVM call: `getAll` of PySpark makes several for each setting.
    others = sorted(_OTHER_CONFS.findall(conf._jconf.getAll().mkString("\n")))
    return [f"{key}={conf.get(key)}" for key in (*_RESULT_CONFS, *others)]


def fingerprint(text: str, *more: str) -> str:
    """A short digest of strings."""
    return hashlib.sha256("\0".join((text, *more)).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class BatchSources:
    """Versions of the sources of a batch query, or why they are unknown.

    `versions` maps the path of a Delta table to its version, and of a file to size and modification
    time. `table_ids` has the ids of the Delta tables, by path, and `paths` their paths in the order
    of the query. `needs_files` is true if other files with the same rows may change the result.
    """

    versions: Mapping[str, str]
    table_ids: Mapping[str, str]
    paths: tuple[str, ...]
    unversioned: str | None
    needs_files: bool


def batch_sources(df: DataFrame) -> BatchSources:
    """Versions of the sources of a batch query, from its plan."""
    jvm: Any = df.sparkSession._jvm
    versions: dict[str, str] = {}
    table_ids: dict[str, str] = {}
    paths: list[str] = []
    mixed: set[str] = set()
    unversioned: str | None = None
    text = query_text(df)
    needs_files = "Sample " in text
    if is_changing(text) or not is_deterministic(df):
        unversioned = "its result is not deterministic"
    for leaf in leaves(analyzed(df)):
        kind = kind_of(leaf)
        if kind in _WITHOUT_FILES:
            if kind == "LogicalRDD":
                unversioned = unversioned or "it reads an RDD"
            continue
        location = location_of(leaf)
        if location is None:
            unversioned = unversioned or f"it reads {kind}, which has no versions"
        elif (index := kind_of(location)).startswith("Tahoe"):
            path = str(location.deltaLog().dataPath().toString())
            # `location.version()` is the newest version that the `DeltaLog` knows now.
            version = str(location.snapshotAtAnalysis().version())
            table_ids[path] = str(location.metadata().id())
            paths.append(path)
            # Further columns are those of `_metadata`.
            needs_files |= leaf.output().size() > leaf.relation().schema().size()
            if versions.setdefault(path, version) != version:
                mixed.add(path)
                unversioned = unversioned or "it reads two versions of a table"
        else:
            if index == "CatalogFileIndex":  # a partitioned table in Spark's catalog
                none = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
                location = location.filterPartitions(none)
            for file in iterate(location.allFiles()):
                path = str(file.getPath().toString())
                versions[path] = f"{file.getLen()}@{file.getModificationTime()}"
    for path in mixed:  # the rows are those of neither version
        del versions[path]
    return BatchSources(versions, table_ids, tuple(paths), unversioned, needs_files)


def is_changing(text: str) -> bool:
    """Whether the result of an expression or a query may change between executions."""
    return _CHANGING.search(text) is not None


def leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a plan, then those of its subqueries."""
    yield from iterate(plan.collectLeaves())
    for subquery in iterate(plan.subqueriesAll()):
        yield from iterate(subquery.collectLeaves())


def location_of(leaf: Any) -> Any | None:
    """Spark's index of the files that a leaf reads; `None` if it reads none."""
    if kind_of(leaf) != "LogicalRelation":
        return None
    relation = leaf.relation()
    # Delta uses an anonymous subclass.
    parent = relation.getClass()
    while parent is not None and parent.getSimpleName() != "HadoopFsRelation":
        parent = parent.getSuperclass()
    return relation.location() if parent is not None else None
