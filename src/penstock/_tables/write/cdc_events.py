"""Change events, in one schema for all flows and tables.

`resolve` checks a flow's declaration against the columns of its source; `EventShape.events`
converts rows of the source to events. An event has the columns

- `kind`: 0 for an event of a key, 1 for a truncate,
- `k`: the key, a struct; NULL for a truncate,
- `seq`, `op`, `hash`: its position in the total order of the events of its key,
- `v`: the values, a struct; NULL for a delete or a truncate,
- `skip`: names of values that the event leaves unchanged; only in tables with such events,
- `at`: when it was applied last, in milliseconds, rounded up to a minute.

The user's columns are within structs, so their names cannot conflict with these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock._model.cdc import CdcSpec, ScdType, TrackHistory
from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._model.similar import nearest
from penstock._model.sql_text import quoted
from penstock._tables.write.schema import columns_as, nested_types, plain_schema
from penstock.errors import DefinitionError

START_AT = "__START_AT"
END_AT = "__END_AT"
UPSERT, DELETE, TRUNCATE = 0, 1, 2
PLACEHOLDER = "penstock_none"
"""The only field of `v` in tables that have only key columns."""


@dataclass(frozen=True, kw_only=True)
class TargetShape:
    """The declarations that all flows into one table share."""

    keys: tuple[str, ...]
    scd_type: ScdType
    track_history: TrackHistory
    specs: tuple[CdcSpec, ...] = ()

    @classmethod
    def of(cls, specs: Sequence[CdcSpec]) -> "TargetShape":
        first = specs[0]
        return cls(
            keys=first.keys,
            scd_type=first.scd_type,
            track_history=first.track_history,
            specs=tuple(specs),
        )

    @property
    def truncates(self) -> bool:
        return any(spec.apply_as_truncates is not None for spec in self.specs)

    @property
    def has_partial(self) -> bool:
        return any(
            spec.ignore_null_updates or spec.columns_to_update is not None for spec in self.specs
        )

    def is_key(self, column: str) -> bool:
        return column.lower() in {key.lower() for key in self.keys}

    def is_partial(self, column: str) -> bool:
        return column != PLACEHOLDER and any(is_partial(spec, column) for spec in self.specs)

    def is_tracked(self, column: str) -> bool:
        """Whether a change of a column starts a new version."""
        only, but = self.track_history.columns, self.track_history.except_columns
        if only is not None:
            return column.lower() in {name.lower() for name in only}
        return but is None or column.lower() not in {name.lower() for name in but}


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """The rows of a flow's source, as events or as a snapshot."""

    shape: TargetShape
    columns: tuple[T.StructField, ...]  # the selected columns of the source, in its order
    sequence: T.DataType  # type of the sequence, or of the snapshot's version

    @property
    def keys(self) -> tuple[T.StructField, ...]:
        by_name = {field.name.lower(): field for field in self.columns}
        return tuple(by_name[key.lower()] for key in self.shape.keys)

    @property
    def values(self) -> tuple[T.StructField, ...]:
        return tuple(field for field in self.columns if not self.shape.is_key(field.name))

    def target_schema(self) -> T.StructType:
        fields = list(plain_schema(T.StructType(list(self.columns)), nullable=True))
        if self.shape.scd_type is ScdType.TWO:
            fields += _nullable([T.StructField(name, self.sequence) for name in (START_AT, END_AT)])
        return T.StructType(fields)


@dataclass(frozen=True, kw_only=True)
class EventShape(RowShape):
    spec: CdcSpec

    def key_type(self) -> T.StructType:
        return _nullable(self.keys)

    def value_type(self) -> T.StructType:
        return _nullable(self.values or (T.StructField(PLACEHOLDER, T.BooleanType()),))

    def op(self) -> Column:
        """The operation of a source row; a delete overrides an upsert, and a truncate both."""
        op = F.lit(UPSERT)
        for condition, code in (
            (self.spec.apply_as_deletes, DELETE),
            (self.spec.apply_as_truncates, TRUNCATE),
        ):
            if condition is not None:
                op = F.when(F.coalesce(as_column(condition), F.lit(False)), code).otherwise(op)
        return op

    def has_sequence(self) -> Column:
        return _is_set(as_column(self.spec.sequence_by), self.sequence)

    def has_key(self) -> Column:
        present = reduce(
            Column.__and__, [F.col(quoted(field.name)).isNotNull() for field in self.keys]
        )
        truncates = self.spec.apply_as_truncates is not None
        return present | (self.op() == TRUNCATE) if truncates else present

    def event_columns(
        self, key_type: T.StructType, value_type: T.StructType
    ) -> tuple[list[Column], list[Column]]:
        """Expressions for `events`, which a writer builds once.

        Stored keys may be spelled in another case; stored values include all columns of the flow.
        """
        skip = [self._skip().alias("skip")] if self.shape.has_partial else []
        first = [
            self.op().alias("op"),
            as_column(self.spec.sequence_by).alias("seq"),
            F.struct(*columns_as(key_type, self.keys)).alias("k"),
            F.struct(*columns_as(value_type, self.values)).alias("v"),
            *skip,
        ]
        op, extra = F.col("op"), (["skip"] if self.shape.has_partial else [])
        upsert = op == UPSERT
        hashed = digest(F.col("v"), value_type, *[F.col(name) for name in extra])
        second = [
            F.when(op == TRUNCATE, 1).otherwise(0).alias("kind"),
            F.when(op != TRUNCATE, F.col("k")).alias("k"),
            F.col("seq"),
            op,
            F.when(upsert, hashed).otherwise(F.lit(0).cast("bigint")).alias("hash"),
            F.when(upsert, F.col("v")).alias("v"),
            *[F.when(upsert, F.col(name)).alias(name) for name in extra],
        ]
        return first, second

    def events(
        self, df: DataFrame, columns: tuple[list[Column], list[Column]], now_ms: int
    ) -> DataFrame:
        """The events of rows of the source that have a sequence and a key."""
        first, second = columns
        at = F.lit(now_ms).cast("bigint").alias("at")
        return df.select(*first).select(*second, at)

    def _skip(self) -> Column:
        """Names, in lower case, of the columns that an upsert leaves unchanged."""
        partial = [f.name for f in self.values if is_partial(self.spec, f.name)]
        if self.spec.columns_to_update is not None:
            names = F.array(*[F.lit(name.lower()) for name in partial]).cast("array<string>")
            updated = F.transform(F.col(quoted(self.spec.columns_to_update)), F.lower)
            absent = F.array_except(names, updated)
            return F.coalesce(absent, F.array().cast("array<string>"))
        nulls = [F.when(F.col(quoted(n)).isNull(), F.lit(n.lower())) for n in partial]
        return F.array_compact(F.array(*nulls).cast("array<string>"))


def is_partial(spec: CdcSpec, column: str) -> bool:
    """Whether an event of a flow may leave a column unchanged."""
    folded = column.lower()
    if spec.columns_to_update is not None:
        return folded != spec.columns_to_update.lower()
    if not spec.ignore_null_updates:
        return False
    if spec.ignore_null_columns is not None:
        return folded in {name.lower() for name in spec.ignore_null_columns}
    return folded not in {name.lower() for name in spec.ignore_null_except_columns or ()}


def as_column(expression: "str | Column") -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def _is_set(value: Column, kind: T.DataType) -> Column:
    """Whether a value and, within structs, all of its fields are not NULL."""
    fields = kind.fields if isinstance(kind, T.StructType) else []
    nested = [_is_set(value.getField(field.name), field.dataType) for field in fields]
    return reduce(Column.__and__, nested, value.isNotNull())


# -- equality and digests of every type ---------------------------------------------------------


def comparable(value: Column, kind: T.DataType) -> Column:
    """Convert a value to a type that can be compared and hashed, unlike maps and variants."""
    if not _is_opaque(kind):
        return value
    if isinstance(kind, T.VariantType):
        return F.to_json(value)
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda element: comparable(element, kind.elementType))
    if isinstance(kind, T.MapType):
        pairs = F.transform(
            F.map_entries(value),
            lambda pair: F.struct(
                comparable(pair.getField("key"), kind.keyType).alias("key"),
                comparable(pair.getField("value"), kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(pairs)
    assert isinstance(kind, T.StructType)
    fields = [comparable(value.getField(f.name), f.dataType).alias(f.name) for f in kind]
    return F.when(value.isNotNull(), F.struct(*fields))


def digest(values: Column, kind: T.StructType, *more: Column) -> Column:
    """A hash of the values of an event, independent of the order of stored columns.

    Spark's hash skips NULL, so `(1, NULL)` and `(NULL, 1)` would have the same hash. Therefore, the
    names of the fields that are not NULL are also hashed, and nested fields as JSON with NULLs.
    """
    fields = sorted(kind, key=lambda field: field.name.lower())
    parts = {field.name: values.getField(field.name) for field in fields}
    names = [F.when(parts[f.name].isNotNull(), F.lit(f.name.lower())) for f in fields]
    texts = [
        F.to_json(F.struct(comparable(parts[f.name], f.dataType)), {"ignoreNullFields": "false"})
        for f in fields
        if isinstance(f.dataType, T.ArrayType | T.MapType | T.StructType)
    ]
    return F.xxhash64(
        F.array_compact(F.array(*names)),
        *[comparable(parts[f.name], f.dataType) for f in fields],
        *texts,
        *more,
    )


def _is_opaque(kind: T.DataType) -> bool:
    return any(isinstance(nested, T.MapType | T.VariantType) for nested in nested_types(kind))


def _nullable(fields: Sequence[T.StructField]) -> T.StructType:
    return T.StructType([T.StructField(f.name, f.dataType) for f in fields]).toNullable()


# -- the declaration against the source ---------------------------------------------------------


def resolve(
    df: DataFrame, spec: CdcSpec, shape: TargetShape, *, flow: str, origin: SourceLocation
) -> EventShape:
    """Check a flow's declaration against the columns of its source."""
    check = _Check(df.schema, flow, origin)
    for parameter, names in _lists(spec).items():
        check.columns(parameter, names)
    columns = check.selected(spec)
    check.reserved(columns)
    for key in spec.keys:
        check.key(key, columns)
    sequence = check.expression(df, "sequence_by", spec.sequence_by)
    if _is_opaque(sequence) or isinstance(sequence, T.NullType):
        raise check.type_error("sequence_by", sequence, "cannot be ordered")
    for parameter, condition in (
        ("apply_as_deletes", spec.apply_as_deletes),
        ("apply_as_truncates", spec.apply_as_truncates),
    ):
        if condition is not None:
            kind = check.expression(df, parameter, condition)
            if not isinstance(kind, T.BooleanType):
                raise check.type_error(parameter, kind, "is not BOOLEAN")
    if spec.columns_to_update is not None:
        listed = check.field(spec.columns_to_update).dataType
        if not isinstance(listed, T.ArrayType) or not isinstance(listed.elementType, T.StringType):
            raise check.type_error("columns_to_update", listed, "is not ARRAY<STRING>")
    return EventShape(spec=spec, shape=shape, columns=columns, sequence=sequence)


def _lists(spec: CdcSpec) -> Mapping[str, Sequence[str]]:
    single = spec.columns_to_update
    return {
        "keys": spec.keys,
        "column_list": spec.columns or (),
        "except_column_list": spec.except_columns or (),
        "track_history_column_list": spec.track_history.columns or (),
        "track_history_except_column_list": spec.track_history.except_columns or (),
        "ignore_null_updates_column_list": spec.ignore_null_columns or (),
        "ignore_null_updates_except_column_list": spec.ignore_null_except_columns or (),
        "columns_to_update": () if single is None else (single,),
    }


class _Check:
    def __init__(self, schema: T.StructType, flow: str, origin: SourceLocation) -> None:
        self._fields = {field.name.lower(): field for field in schema}
        self._flow = flow
        self._origin = origin

    def field(self, name: str) -> T.StructField:
        return self._fields[name.lower()]

    def reserved(self, columns: Sequence[T.StructField]) -> None:
        for field in columns:
            if field.name.lower() in (START_AT.lower(), END_AT.lower()):
                raise self._error(
                    "COLUMN_NAME_RESERVED",
                    f"its source has a column {field.name!r}, which is reserved for auto CDC",
                    "name it in `except_column_list`, or rename it in a view and read that",
                )

    def columns(self, parameter: str, names: Sequence[str]) -> None:
        for name in names:
            if name.lower() not in self._fields:
                near = nearest(name, self._fields, cutoff=0.5)
                hint = f"did you mean {self._fields[near].name!r}?" if near else None
                raise self._error(
                    "CDC_COLUMN_NOT_FOUND",
                    f"`{parameter}` names {name!r}, which its source does not have",
                    hint or self._known(),
                )

    def _known(self) -> str:
        names = ", ".join(field.name for field in self._fields.values())
        return f"columns of the source: {names}"

    def selected(self, spec: CdcSpec) -> tuple[T.StructField, ...]:
        only = None if spec.columns is None else {name.lower() for name in spec.columns}
        but = {name.lower() for name in spec.except_columns or ()}
        return tuple(
            field
            for name, field in self._fields.items()
            if (only is None or name in only) and name not in but
        )

    def key(self, key: str, columns: Sequence[T.StructField]) -> None:
        if key.lower() not in {field.name.lower() for field in columns}:
            raise self._error(
                "CDC_KEY_NOT_SELECTED",
                f"key {key!r} is not among the columns of its target",
                "add it to column_list, or remove it from except_column_list",
            )
        kind = self.field(key).dataType
        if _is_opaque(kind) or isinstance(kind, T.NullType):
            raise self.type_error("keys", kind, "cannot be compared", name=key)

    def expression(self, df: DataFrame, parameter: str, value: "str | Column") -> T.DataType:
        try:
            return df.select(as_column(value).alias("value")).schema[0].dataType
        except AnalysisException as error:
            raise self._error(
                "CDC_EXPRESSION_INVALID",
                f"`{parameter}` cannot be used: {first_line(error)}",
                self._known(),
            ) from error

    def type_error(
        self, parameter: str, kind: T.DataType, problem: str, *, name: str | None = None
    ) -> DefinitionError:
        subject = f"`{parameter}`" + (f" ({name})" if name else "")
        return self._error(
            "CDC_TYPE_NOT_SUPPORTED",
            f"{subject} is {kind.simpleString().upper()}, which {problem}",
            "cast it in a view that the flow reads",
        )

    def _error(self, condition: str, message: str, hint: str | None) -> DefinitionError:
        text = f"auto CDC flow {self._flow!r}: {message}"
        return DefinitionError(condition, text, origin=self._origin, hint=hint)
