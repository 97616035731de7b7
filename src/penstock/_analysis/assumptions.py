"""Sources that are not here, stood in for by empty ones with the columns that the pipeline uses.

For `penstock check`: a foreign project shall be planned on a machine that has none of its data. A
missing table or folder becomes an empty relation without columns. Every column that a query then
misses is added to one of the missing sources it reads, as VOID, which fits every other type, and
the query is evaluated again.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from penstock._analysis.missing_sources import hinted_columns, missing_reason
from penstock._model.missing import plausible_value
from penstock._spark.plans import iterate, kind_of, walk

_FIXED: Mapping[str, str] = {
    "text": "value STRING",
    "binaryfile": "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY",
}
_PLACE = "penstock_assumed"
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
# One pipeline uses some hundred columns; more than that is a loop.
_MOST_STEPS = 2000


@dataclass
class AssumedSource:
    """A source that is not here.

    Attributes:
        name: In words: `table a.b.c`, `json /Volumes/x`.
        reason: Why it cannot be read.
        columns: Those that queries use, in the order of their discovery.
        is_open: Whether columns may be added: the user gave no schema.
    """

    name: str
    reason: str
    columns: dict[str, DataType] = field(default_factory=dict)
    is_open: bool = True

    @property
    def column_types(self) -> dict[str, str]:
        """The columns with their types; `void` where any type would do."""
        return {name: kind.simpleString() for name, kind in self.columns.items()}


class Assumptions:
    """All that one analysis had to assume. Not thread-safe.

    Attributes:
        sources: Missing sources by name.
        settings: Values of settings that nobody gave, by key.
        servers: Kafka brokers that the code names.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.sources: dict[str, AssumedSource] = {}
        self.settings: dict[str, str] = {}
        self.servers: dict[str, None] = {}
        self._spark = spark
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-assumed-")
        self._attempts: dict[tuple[str, ...], _Attempt] = {}
        self._steps = 0

    def close(self) -> None:
        """Remove the empty folder that the stand-ins read."""
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
        """An empty relation in the place of a missing source.

        Args:
            name: In words; the same source has the same name.
            error: What reading it raised.
            paths: Of a source of files.
            streaming: Whether a stream is wanted.
            source_format: Of the reader.
            schema: StructType or DDL that the user gave; such a source gets no more columns.
            options: Of Auto Loader: their hints are columns that it has among others.
        """
        known = schema if schema is not None else _FIXED.get(source_format.lower())
        if name not in self.sources:
            hinted = {column.name: column.dataType for column in hinted_columns(options or {})}
            self.sources[name] = AssumedSource(name, missing_reason(error, paths), hinted)
        source = self.sources[name]
        reader: Any = self._spark.readStream if streaming else self._spark.read
        place = Path(self._folder.name).as_uri()
        if known is not None:
            source.is_open = False
            df: DataFrame = reader.schema(known).format("parquet").load(place)
            source.columns = {column.name: column.dataType for column in df.schema}
            return df
        empty = reader.schema(f"{_PLACE} BOOLEAN").format("parquet").load(place)
        if not source.columns:
            return cast(DataFrame, empty)
        columns = [F.lit(None).cast(kind).alias(column) for column, kind in source.columns.items()]
        result: DataFrame = empty.select(*columns)
        return result

    def note(self, name: str, reason: str, schema: StructType) -> None:
        """A source that is not here and can be read all the same: as empty.

        Args:
            name: As for `frame`, which may have made a relation of it already.
            reason: Likewise.
            schema: Its columns.
        """
        columns = {column.name: column.dataType for column in schema}
        self.sources.setdefault(name, AssumedSource(name, reason, columns, is_open=False))

    def setting(self, key: str) -> str:
        """A value for a setting that nobody gave: a name, a number or a path, as its key sounds."""
        return self.settings.setdefault(key, plausible_value(key))

    def learn(self, flow: str, error: BaseException, candidates: Sequence[str]) -> str | None:
        """Change a source so that a query may get further.

        Args:
            flow: Whose query failed.
            error: Spark's exception.
            candidates: Names of the missing sources below the flow, nearest first.

        Returns:
            The name of the source that is different now; `None` if nothing can be done.
        """
        self._steps += 1
        open_ones = [self.sources[name] for name in candidates if self.sources[name].is_open]
        if not open_ones or self._steps > _MOST_STEPS:
            return None
        names, is_needed_twice = _missing_columns(error)
        if not names:
            return _retyped(error, open_ones)
        changed = self._add(flow, names, open_ones, keep=is_needed_twice)
        if changed == open_ones[0].name:
            self._add_others(flow, error, open_ones[0])
        return changed

    def _add_others(self, flow: str, error: BaseException, source: AssumedSource) -> None:
        """Give a source all else that the same step of the query misses: one round, not many.

        A column that belongs to another source is missed again, and tried there then.
        """
        for parts in _unresolved(error):
            names = _candidates(parts)
            known = {name.lower() for each in self.sources.values() for name in each.columns}
            first = next(iter(names))
            if (flow, *names) not in self._attempts and first.lower() not in known:
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
        """Try the next place for a column; what did not help before is taken back."""
        attempt = self._attempts.setdefault((flow, *names), _Attempt())
        if attempt.added is not None and not keep:
            source, column = attempt.added
            source.columns.pop(column, None)
        places = [(source, column) for column in names for source in sources]
        for source, column in places[attempt.position :]:
            attempt.position += 1
            if column.lower() not in {name.lower() for name in source.columns}:
                source.columns[column] = names[column]
                attempt.added = (source, column)
                return source.name
        attempt.added = None
        if attempt.is_everywhere:
            return None
        # Of two sources that are joined, each may have it.
        attempt.is_everywhere = True
        first = next(iter(names))
        lacking = [s for s in sources if first.lower() not in {name.lower() for name in s.columns}]
        for source in lacking:
            source.columns[first] = names[first]
        return lacking[0].name if len(lacking) > 1 else None


@dataclass
class _Attempt:
    position: int = 0
    added: tuple[AssumedSource, str] | None = None
    is_everywhere: bool = False


def reachable(
    flow: str, read_by: Callable[[str], tuple[Sequence[str], Sequence[str]]]
) -> Iterator[str]:
    """Missing sources below a flow, nearest first, each once.

    Args:
        flow: Where to begin.
        read_by: The missing sources and the flows that a flow reads directly.
    """
    seen_flows, seen_sources = {flow}, set()
    level = [flow]
    while level:
        following: list[str] = []
        for name in level:
            sources, flows = read_by(name)
            for source in sources:
                if source not in seen_sources:
                    seen_sources.add(source)
                    yield source
            for upstream in flows:
                if upstream not in seen_flows:
                    seen_flows.add(upstream)
                    following.append(upstream)
        level = following


def _details(error: Any) -> tuple[str, dict[str, str]]:
    try:
        return str(error.getCondition() or ""), dict(error.getMessageParameters() or {})
    except Exception:
        return "", {}


def _missing_columns(error: BaseException) -> tuple[Mapping[str, DataType], bool]:
    """Names that may be the missing column, the most likely first; whether two sides need it.

    Any type will do, but what is read with a field is a map: of a VOID Spark takes any field, too,
    and says nothing.
    """
    condition, parameters = _details(error)
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


def _candidates(parts: Sequence[str]) -> dict[str, DataType]:
    """What the parts of a name may be: of `a.b`, column b of relation a, or field b of column a."""
    kind: DataType = NullType()
    names: dict[str, DataType] = dict.fromkeys(parts[-1:], kind)
    for _ in parts[1:]:
        kind = MapType(StringType(), kind)
    return {**names, **{part: kind for part in parts[:1] if part not in names}}


def _unresolved(error: Any) -> list[list[str]]:
    """The names, in parts, that an operator of the plan behind an error does not find below it."""
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
            # A name given in the same list is found once the rest is.
            # `GROUP BY ALL` looks like a column, too.
            hidden = {*aliases, "all"}
            paths |= {name: None for name in names if name[0].lower() not in hidden}
        return [list(name) for name in paths]
    except Exception:  # an error without a plan: only its own column is learnt
        return []


def _collect_names(expression: Any, names: list[tuple[str, ...]], aliases: set[str]) -> None:
    kind = kind_of(expression)
    if kind == "UnresolvedAttribute":
        names.append(tuple(str(part) for part in iterate(expression.nameParts())))
        return
    if kind == "Alias":
        aliases.add(str(expression.name()).lower())
    if kind == "LambdaFunction":
        return  # its variables are no columns
    for child in iterate(expression.children()):
        _collect_names(child, names, aliases)


def _retyped(error: BaseException, sources: Sequence[AssumedSource]) -> str | None:
    """Give a column of type VOID the type that an operation wants."""
    condition, parameters = _details(error)
    if condition == "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE":
        return _set_type(parameters.get("eventName", ""), TimestampType(), sources)
    if condition == "INVALID_EXTRACT_BASE_FIELD_TYPE":
        # One level of maps per step: `a.b.c` needs a map of maps.
        return _set_type(parameters.get("base", ""), None, sources)
    if "DATATYPE_MISMATCH" not in condition:
        return None
    # Of an operator, what it wants is the type of both sides.
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
    """Give the columns of an expression a type that have none yet; one source per step."""
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
    """Give the column that an expression reads, or the field of it, a type; `None` = one deeper."""
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
    """A type with another one for the field so many levels below."""
    if depth == 0:
        return kind if kind is not None else _deeper(present)
    if isinstance(present, MapType | NullType):
        inner = present.valueType if isinstance(present, MapType) else NullType()
        value = _with_field(inner, depth - 1, kind)
        return None if value is None else MapType(StringType(), value)
    return _deeper(present) if kind is None else kind


def _set_element(sources: Sequence[AssumedSource]) -> str | None:
    """Give the elements of an array fields: what is exploded has another name than its column."""
    for source in sources:
        for name, present in source.columns.items():
            if isinstance(present, ArrayType) and isinstance(present.elementType, NullType):
                source.columns[name] = ArrayType(MapType(StringType(), NullType()))
                return source.name
    return None


def _deeper(kind: DataType) -> DataType | None:
    if isinstance(kind, NullType):
        return MapType(StringType(), NullType())
    if isinstance(kind, MapType):
        value = _deeper(kind.valueType)
        return None if value is None else MapType(StringType(), value)
    if isinstance(kind, ArrayType):
        element = _deeper(kind.elementType)
        return None if element is None else ArrayType(element)
    return None
