"""Assumptions about missing sources: empty relations with the columns that the pipeline uses.

For `penstock check`, which plans a project on a machine without its data. A missing table or folder
becomes an empty relation without columns. Every unresolved column of a query is added to one of the
missing sources that it reads, as VOID, which is compatible with every other type, and the query is
evaluated again.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from penstock._analysis.missing_sources import error_details, hinted_columns, missing_reason
from penstock._model.missing import plausible_value
from penstock._spark.plans import kind_of, walk
from penstock._tables.jvm import iterate

_FIXED: Mapping[str, str] = {
    "text": "value STRING",
    "binaryfile": "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY",
}
_PLACEHOLDER = "penstock_assumed"
_REQUIRED: tuple[tuple[str, DataType], ...] = (
    ("TIMESTAMP", TimestampType()),
    ("ARRAY", ArrayType(NullType())),
    ("MAP", MapType(StringType(), NullType())),
    ("STRUCT", MapType(StringType(), NullType())),
    ("BOOLEAN", BooleanType()),
    ("NUMERIC", DoubleType()),
    ("DOUBLE", DoubleType()),
    ("INTEGRAL", LongType()),
    ("STRING", StringType()),
)
# A pipeline uses some hundred columns; many more steps mean an endless loop.
_MOST_STEPS = 2000


@dataclass
class AssumedSource:
    """A missing source, such as `table a.b.c` or `json /Volumes/x`, and why it cannot be read.

    `columns` are the columns that queries use, in the order of their discovery. If `is_open`, the
    user did not declare a schema, and columns may be added.
    """

    name: str
    reason: str
    columns: dict[str, DataType] = field(default_factory=dict)
    is_open: bool = True

    def has(self, column: str) -> bool:
        """Whether it has a column of this name, ignoring case."""
        return column.lower() in map(str.lower, self.columns)

    @property
    def column_types(self) -> dict[str, str]:
        """The columns with their types; `void` means any type."""
        return {name: kind.simpleString() for name, kind in self.columns.items()}


class Assumptions:
    """The assumptions of one analysis, by name of source or setting. Not thread-safe."""

    def __init__(self, spark: SparkSession) -> None:
        self.sources: dict[str, AssumedSource] = {}
        self.settings: dict[str, str] = {}
        self.servers: dict[str, None] = {}
        self._spark = spark
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-assumed-")
        self._attempts: dict[tuple[str, ...], _Attempt] = {}
        self._steps = 0

    def close(self) -> None:
        """Remove the empty folder of the relations."""
        self._folder.cleanup()

    def frame(
        self,
        name: str,
        error: Exception,
        *,
        paths: Sequence[str] = (),
        streaming: bool,
        source_format: str = "",
        schema: Any = None,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """An empty relation for a missing source, whose read raised `error`.

        No columns are added to a `schema` from the user; the `options` of Auto Loader may contain
        schema hints.
        """
        known = schema if schema is not None else _FIXED.get(source_format.lower())
        if name not in self.sources:
            hinted = {column.name: column.dataType for column in hinted_columns(options or {})}
            self.sources[name] = AssumedSource(name, missing_reason(error, paths), hinted)
        source = self.sources[name]
        reader: Any = self._spark.readStream if streaming else self._spark.read
        folder = Path(self._folder.name).as_uri()
        if known is not None:
            source.is_open = False
            df: DataFrame = reader.schema(known).format("parquet").load(folder)
            source.columns = {column.name: column.dataType for column in df.schema}
            return df
        empty = reader.schema(f"{_PLACEHOLDER} BOOLEAN").format("parquet").load(folder)
        if not source.columns:
            return cast(DataFrame, empty)
        columns = [F.lit(None).cast(kind).alias(column) for column, kind in source.columns.items()]
        result: DataFrame = empty.select(*columns)
        return result

    def note(self, name: str, reason: str, schema: StructType) -> None:
        """Record a missing source that is read as empty, unless `frame` has recorded it."""
        columns = {column.name: column.dataType for column in schema}
        self.sources.setdefault(name, AssumedSource(name, reason, columns, is_open=False))

    def setting(self, key: str) -> str:
        """An assumed value of a setting: a name, a number or a path, depending on its key."""
        return self.settings.setdefault(key, plausible_value(key))

    def learn(self, flow: str, error: BaseException, candidates: Sequence[str]) -> str | None:
        """Change a source so that the analysis of a failed query may continue; return its name.

        `candidates` are the missing sources upstream, nearest first. `None` if no change can help.
        """
        self._steps += 1
        open_ones = [self.sources[name] for name in candidates if self.sources[name].is_open]
        if not open_ones or self._steps > _MOST_STEPS:
            return None
        names, is_needed_twice = _missing_columns(error)
        if _PLACEHOLDER in names or error_details(error)[0] == "NUM_COLUMNS_MISMATCH":
            # A union of a source with columns and a source whose columns are not known yet.
            return _share_columns(open_ones)
        if not names:
            return _retyped(error, open_ones)
        changed = self._add(flow, names, open_ones, keep=is_needed_twice)
        if changed == open_ones[0].name:
            self._add_others(flow, error, open_ones[0])
        return changed

    def _add_others(self, flow: str, error: BaseException, source: AssumedSource) -> None:
        """Add all other unresolved columns of the same operator at once, to save evaluations.

        A column of another source stays unresolved, and is then added to the next source.
        """
        for parts in _unresolved(error):
            names = _candidates(parts)
            first = next(iter(names))
            is_known = any(each.has(first) for each in self.sources.values())
            if (flow, *names) not in self._attempts and not is_known:
                source.columns[first] = names[first]
                self._attempts[flow, *names] = _Attempt(position=1, added=(source, first))

    def _add(
        self,
        flow: str,
        names: Mapping[str, DataType],
        sources: Sequence[AssumedSource],
        *,
        keep: bool,
    ) -> str | None:
        """Try the next source for a column; remove it from the previous one."""
        attempt = self._attempts.setdefault((flow, *names), _Attempt())
        if attempt.added is not None and not keep:
            source, column = attempt.added
            source.columns.pop(column, None)
        options = [(source, column) for column in names for source in sources]
        for source, column in options[attempt.position :]:
            attempt.position += 1
            if not source.has(column):
                source.columns[column] = names[column]
                attempt.added = (source, column)
                return source.name
        attempt.added = None
        if attempt.is_everywhere:
            return None
        # If sources are joined, each of them may have the column.
        attempt.is_everywhere = True
        first = next(iter(names))
        lacking = [source for source in sources if not source.has(first)]
        for source in lacking:
            source.columns[first] = names[first]
        return lacking[0].name if len(lacking) > 1 else None


@dataclass
class _Attempt:
    position: int = 0
    added: tuple[AssumedSource, str] | None = None
    is_everywhere: bool = False


def _missing_columns(error: BaseException) -> tuple[Mapping[str, DataType], bool]:
    """Possible names of the missing column, most likely first, and whether both sides need it.

    Columns are VOID, but a column with a field is a map: Spark resolves any key of a map.
    """
    condition, parameters = error_details(error)
    if condition == "ATTRIBUTE_NOT_SUPPORTED":
        return {parameters.get("attr_name", ""): NullType()}, False
    both = condition.startswith("UNRESOLVED_USING_COLUMN")
    if not both and not condition.startswith(("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND")):
        return {}, False
    text = parameters.get("objectName") or parameters.get("colName") or parameters.get("fieldName")
    parts = [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)+)`", text or "")]
    if not parts and text:
        parts = [text.strip('"')]
    return _candidates(parts), both


def _share_columns(sources: Sequence[AssumedSource]) -> str | None:
    """Give each source the columns of all others; return the name of the first changed source."""
    columns = {name: kind for source in sources for name, kind in source.columns.items()}
    lacking = [source for source in sources if source.columns.keys() != columns.keys()]
    for source in lacking:
        source.columns = dict(columns)
    return lacking[0].name if lacking else None


def _candidates(parts: Sequence[str]) -> dict[str, DataType]:
    """Candidates of a name: for `a.b`, column b of relation a, or field b of column a."""
    kind: DataType = NullType()
    names: dict[str, DataType] = dict.fromkeys(parts[-1:], kind)
    for _ in parts[1:]:
        kind = MapType(StringType(), kind)
    return {**names, **{part: kind for part in parts[:1] if part not in names}}


def _unresolved(error: Any) -> list[list[str]]:
    """The unresolved names, in parts, of the operator of the plan that an error refers to."""
    try:
        plan = error._origin.plan()
        if not plan.isDefined():
            return []
        paths: dict[tuple[str, ...], None] = {}
        for node in walk(plan.get()):
            if node.resolved() or not node.childrenResolved():
                continue
            names: list[tuple[str, ...]] = []
            aliases: set[str] = set()
            for expression in iterate(node.expressions()):
                _collect_names(expression, names, aliases)
            # An alias of the same list is resolved later; `GROUP BY ALL` is parsed as a column.
            hidden = {*aliases, "all"}
            paths |= {name: None for name in names if name[0].lower() not in hidden}
        return [list(name) for name in paths]
    except Exception:  # without a plan, only the column of the error itself is known
        return []


def _collect_names(expression: Any, names: list[tuple[str, ...]], aliases: set[str]) -> None:
    kind = kind_of(expression)
    if kind == "UnresolvedAttribute":
        names.append(tuple(str(part) for part in iterate(expression.nameParts())))
        return
    if kind == "Alias":
        aliases.add(str(expression.name()).lower())
    if kind == "LambdaFunction":
        return  # its variables are not columns
    for child in iterate(expression.children()):
        _collect_names(child, names, aliases)


def _retyped(error: BaseException, sources: Sequence[AssumedSource]) -> str | None:
    condition, parameters = error_details(error)
    if condition == "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE":
        return _set_type(parameters.get("eventName", ""), TimestampType(), sources)
    if condition == "INVALID_EXTRACT_BASE_FIELD_TYPE":
        # One level of maps per step: `a.b.c` needs a map of maps.
        return _set_type(parameters.get("base", ""), None, sources)
    if "DATATYPE_MISMATCH" not in condition:
        return None
    # An operator requires the same type on both sides.
    is_operator = condition.endswith("BINARY_OP_WRONG_TYPE")
    wanted = parameters.get("inputType" if is_operator else "requiredType", "")
    for word, kind in _REQUIRED:
        if word in wanted:
            if is_operator:
                return _set_void_types(parameters.get("sqlExpr", ""), kind, sources)
            return _set_type(parameters.get("inputSql", ""), kind, sources)
    return None


def _set_void_types(
    expression: str, kind: DataType, sources: Sequence[AssumedSource]
) -> str | None:
    """Set the type of the VOID columns of an expression; one source per step."""
    words = {word.lower() for word in re.findall(r"\w+", expression)}
    for source in sources:
        fields = [
            name
            for name, present in source.columns.items()
            if name.lower() in words and isinstance(present, NullType)
        ]
        for name in fields:
            source.columns[name] = kind
        if fields:
            return source.name
    return None


def _set_type(
    expression: str, kind: DataType | None, sources: Sequence[AssumedSource]
) -> str | None:
    """Set the type of the column or field in an expression; `None` adds a level of maps."""
    words = [word.lower() for word in re.findall(r"\w+", expression)]
    for source in sources:
        for name, present in source.columns.items():
            if name.lower() not in words:
                continue
            fields = words[words.index(name.lower()) + 1 :]
            wanted = _with_field(present, len(fields), kind)
            if wanted is not None and wanted != present:
                source.columns[name] = wanted
                return source.name
    return _set_element(sources) if kind is None else None


def _with_field(present: DataType, depth: int, kind: DataType | None) -> DataType | None:
    """A type with another type for the field at a depth; `None` adds a level of maps."""
    if depth == 0 and kind is not None:
        return kind
    if depth == 0 and isinstance(present, NullType):
        return MapType(StringType(), present)
    if isinstance(present, MapType | NullType):
        inner = present.valueType if isinstance(present, MapType) else present
        value = _with_field(inner, max(depth - 1, 0), kind)
        return None if value is None else MapType(StringType(), value)
    if kind is None and isinstance(present, ArrayType):
        element = _with_field(present.elementType, 0, None)
        return None if element is None else ArrayType(element)
    return kind


def _set_element(sources: Sequence[AssumedSource]) -> str | None:
    """Give the elements of an array fields: an exploded column does not have the array's name."""
    for source in sources:
        for name, present in source.columns.items():
            if isinstance(present, ArrayType) and isinstance(present.elementType, NullType):
                source.columns[name] = ArrayType(MapType(StringType(), NullType()))
                return source.name
    return None
