"""Computes rows from events: the target is a pure function of the set of events of each key.

Events of a key are ordered by (sequence, operation, hash): a delete overrides the upserts of its
sequence, and of several upserts the one with the higher hash is last. So the result does not depend
on the order of arrival, on batches, or on repeated batches.

State rows of SCD type 1 are for a key (`kind` 0), or for all keys (`kind` 1, the last truncate):

- `del`: the highest sequence of a delete; in the row for all keys, that of a truncate,
- `row`: the last upsert, `{seq, hash, v}`,
- `cols`: by column that events may leave unchanged, the last upsert that sets it,
- `at`: when the delete was applied last, in milliseconds, rounded up to a minute.

Each field is a maximum, so rows of the state can be merged in any order and grouping.

The state of SCD type 2 is the events themselves.
"""

from functools import cached_property

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from penstock._model.cdc import ScdType
from penstock._tables.write.cdc_events import (
    DELETE,
    END_AT,
    PLACEHOLDER,
    START_AT,
    TRUNCATE,
    UPSERT,
    TargetShape,
    comparable,
)


def upsert_order(register: Column) -> Column:
    """The position of an upsert among those of its key; NULL if there is no upsert."""
    return F.when(
        register.isNotNull(), F.struct(register.getField("seq"), register.getField("hash"))
    )


def survives(sequence: Column, deleted: Column, truncated: Column) -> Column:
    """Whether an upsert is later than the deletes of its key and the truncates of the table."""
    return outlives_delete(sequence, deleted) & outlives_truncate(sequence, truncated)


def outlives_delete(sequence: Column, deleted: Column) -> Column:
    """A delete overrides the upserts of its own sequence."""
    return deleted.isNull() | (sequence > deleted)


def outlives_truncate(sequence: Column, truncated: Column) -> Column:
    """A truncate keeps the upserts of its own sequence."""
    return truncated.isNull() | (sequence >= truncated)


def sets(column: str) -> Column:
    """Whether an upsert sets a column that it may leave unchanged."""
    return ~F.array_contains(F.col("skip"), column.lower())


def state_schema(
    shape: TargetShape, keys: T.StructType, values: T.StructType, sequence: T.DataType
) -> T.StructType:
    (nullable,) = T.StructType([T.StructField("seq", sequence)]).toNullable()
    seq = nullable.dataType
    if shape.scd_type is ScdType.TWO:
        skip = [T.StructField("skip", T.ArrayType(T.StringType()))] if shape.has_partial else []
        return T.StructType(
            [
                T.StructField("k", keys),
                T.StructField("seq", seq),
                T.StructField("op", T.IntegerType()),
                T.StructField("hash", T.LongType()),
                T.StructField("v", values),
                *skip,
                T.StructField("at", T.LongType()),
            ]
        )
    whole = T.StructType([f for f in values if not shape.is_partial(f.name)])
    partial = [f for f in values if shape.is_partial(f.name)]
    register = T.StructType([T.StructField("seq", seq), T.StructField("hash", T.LongType())])
    row = T.StructType([*register, T.StructField("v", whole)]) if len(whole) else register
    cols = [
        T.StructField(f.name, T.StructType([*register, T.StructField("v", f.dataType)]))
        for f in partial
    ]
    return T.StructType(
        [
            T.StructField("kind", T.IntegerType()),
            T.StructField("k", keys),
            T.StructField("at", T.LongType()),
            T.StructField("del", seq),
            T.StructField("row", row),
            *([T.StructField("cols", T.StructType(cols))] if cols else []),
        ]
    )


def stored_values(schema: T.StructType) -> T.StructType:
    if "kind" not in schema.fieldNames():
        return _field_type(schema, "v")
    row = _field_type(schema, "row")
    fields = list(_field_type(row, "v")) if "v" in row.fieldNames() else []
    if "cols" in schema.fieldNames():
        for register in _field_type(schema, "cols"):
            assert isinstance(register.dataType, T.StructType)
            fields.append(T.StructField(register.name, register.dataType["v"].dataType))
    return T.StructType(fields)


class StateColumns:
    """Expressions over the rows of a state; a writer builds them once.

    Building them takes many JVM calls, which would be a large part of the time of a small batch.
    """

    def __init__(self, schema: T.StructType) -> None:
        self.schema = schema
        self.has_kind = "kind" in schema.fieldNames()
        self.key_type = _field_type(schema, "k")

    @cached_property
    def of_events(self) -> list[Column]:
        """The state row of an event."""
        schema = self.schema
        columns: dict[str, Column] = {
            "kind": F.col("kind"),
            "k": F.col("k"),
            "at": F.when(removes(), F.col("at")),
            "del": F.when(removes(), F.col("seq")),
            "row": F.when(F.col("op") == UPSERT, _register(_field_type(schema, "row"), None)),
        }
        if "cols" in schema.fieldNames():
            registers = _field_type(schema, "cols")
            columns["cols"] = F.struct(
                *[
                    F.when(
                        (F.col("op") == UPSERT) & sets(f.name), _register(f.dataType, f.name)
                    ).alias(f.name)
                    for f in registers
                ]
            )
        return [column.alias(name) for name, column in columns.items()]

    @cached_property
    def newest(self) -> list[Column]:
        """Aggregates that compute the merged row of a key."""
        newest = [
            F.max("at").alias("at"),
            F.max("del").alias("del"),
            last_by(F.col("row"), upsert_order(F.col("row"))).alias("row"),
        ]
        if "cols" in self.schema.fieldNames():
            fields = _field_type(self.schema, "cols")
            registers = [(f.name, F.col("cols").getField(f.name)) for f in fields]
            columns = [last_by(v, upsert_order(v)).alias(name) for name, v in registers]
            newest.append(F.struct(*columns).alias("cols"))
        return newest

    @cached_property
    def not_truncated(self) -> "TargetColumns":
        return TargetColumns(self.schema, F.lit(None).cast(self.schema["del"].dataType))

    @cached_property
    def truncated(self) -> "TargetColumns":
        return TargetColumns(self.schema, F.col("truncated"))


class TargetColumns:
    """Expressions over merged rows of a state, given the sequence of the last truncate."""

    def __init__(self, schema: T.StructType, truncated: Column) -> None:
        row, deleted = F.col("row"), F.col("del")
        sequence = row.getField("seq")
        alive = row.isNotNull() & survives(sequence, deleted, truncated)
        self.is_alive = F.coalesce(alive, F.lit(False))
        """Whether the key has a row in the target."""
        key = [F.col("k").getField(n).alias(n) for n in _field_type(schema, "k").fieldNames()]
        values: list[Column] = []
        row_type = _field_type(schema, "row")
        if "v" in row_type.fieldNames():
            names = _field_type(row_type, "v").fieldNames()
            whole = row.getField("v")
            values += [whole.getField(name).alias(name) for name in names if name != PLACEHOLDER]
        if "cols" in schema.fieldNames():
            for name in _field_type(schema, "cols").fieldNames():
                register = F.col("cols").getField(name)
                lives = survives(register.getField("seq"), deleted, truncated)
                values.append(F.when(lives, register.getField("v")).alias(name))
        self.row = [*key, *values]
        """The row of the target."""


def state_rows(events: DataFrame, columns: StateColumns) -> DataFrame:
    if not columns.has_kind:
        return events.where(F.col("kind") == 0).select(*columns.schema.fieldNames())
    return events.select(*columns.of_events)


def removes() -> Column:
    return F.col("op").isin(DELETE, TRUNCATE)


def _register(kind: T.DataType, column: str | None) -> Column:
    """An upsert as a register: all its values, or one of them."""
    assert isinstance(kind, T.StructType)
    parts = [F.col("seq").alias("seq"), F.col("hash").alias("hash")]
    if "v" in kind.fieldNames():
        v = F.col("v")
        if column is not None:
            parts.append(v.getField(column).alias("v"))
        else:
            names = _field_type(kind, "v").fieldNames()
            parts.append(F.struct(*[v.getField(n).alias(n) for n in names]).alias("v"))
    return F.struct(*parts)


def _field_type(schema: T.StructType, name: str) -> T.StructType:
    kind = schema[name].dataType
    assert isinstance(kind, T.StructType)
    return kind


def merged(rows: DataFrame, columns: StateColumns) -> DataFrame:
    if not columns.has_kind:
        return rows.dropDuplicates(["k", "seq", "op", "hash"])
    return rows.groupBy("kind", "k").agg(*columns.newest)


def last_by(value: Column, order: Column) -> Column:
    """The last value of a group in an order; rows with a NULL order are ignored."""
    return F.max_by(value, order)


def with_truncate(rows: DataFrame) -> DataFrame:
    """Merged rows of the keys, with `truncated` from the row for all keys."""
    last = rows.where(F.col("kind") == 1).agg(F.max("del").alias("truncated"))
    return rows.where(F.col("kind") == 0).crossJoin(F.broadcast(last))


def current_rows(state: DataFrame, columns: StateColumns, *, truncates: bool) -> DataFrame:
    """SCD type 1: the rows of the target, from merged rows of the state.

    With `truncates`, there may be a row for all keys.
    """
    target = columns.truncated if truncates else columns.not_truncated
    rows = with_truncate(state) if truncates else state.where(F.col("kind") == 0)
    return rows.where(target.is_alive).select(*target.row)


def history_rows(events: DataFrame, schema: T.StructType, shape: TargetShape) -> DataFrame:
    """SCD type 2: the versions of keys, from all their events."""
    values = _field_type(schema, "v")
    partial = {f.name: f"p{i}" for i, f in enumerate(values) if shape.is_partial(f.name)}
    rows = rows_per_sequence(events, partial)
    by_key = Window.partitionBy("k").orderBy("seq")
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    if partial:
        in_life = Window.partitionBy("k", "life").orderBy("seq")
        in_life = in_life.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        rows = rows.withColumn("life", F.sum(F.col("dead").cast("int")).over(so_far))
        for name in partial.values():
            rows = rows.withColumn(name, last_set(F.col(name)).over(in_life))
    value = {
        f.name: F.col(partial[f.name]).getField("x")
        if f.name in partial
        else F.col("v").getField(f.name)
        for f in values
    }
    tracked = [
        comparable(value[f.name], f.dataType).alias(f.name)
        for f in values
        if shape.is_tracked(f.name)
    ]
    shown = F.struct(*tracked) if tracked else F.struct(F.lit(0).alias("none"))
    rows = rows.withColumn("shown", shown).withColumn("opens", opens_version(by_key))
    rows = rows.withColumn("next", F.lead("seq").over(by_key))
    rows = rows.withColumn("version", F.sum(F.col("opens").cast("int")).over(so_far))
    named = F.struct(*[column.alias(name) for name, column in value.items()])
    versions = (
        rows.where(~F.col("dead"))
        .groupBy("k", "version")
        .agg(
            F.min("seq").alias("start"),
            F.max_by(named, "seq").alias("last"),
            version_end().alias("end"),
        )
    )
    names = [f.name for f in values if f.name != PLACEHOLDER]
    return versions.select(
        *[F.col("k").getField(n).alias(n) for n in _field_type(schema, "k").fieldNames()],
        *[F.col("last").getField(n).alias(n) for n in names],
        F.col("start").alias(START_AT),
        F.col("end").alias(END_AT),
    )


def rows_per_sequence(events: DataFrame, partial: dict[str, str]) -> DataFrame:
    """One row per key and sequence: whether it is `dead`, and the values of the last upsert."""
    upsert = F.col("op") == UPSERT
    order = F.when(upsert, F.col("hash"))
    dead = F.max(F.col("op")) == DELETE
    rows = events.groupBy("k", "seq").agg(
        dead.alias("dead"),
        last_by(F.col("v"), order).alias("v"),
        *[
            last_by(
                F.struct(F.col("v").getField(name).alias("x")),
                F.when(upsert & sets(name), F.col("hash")),
            ).alias(alias)
            for name, alias in partial.items()
        ],
    )
    for alias in partial.values():
        rows = rows.withColumn(alias, F.when(~F.col("dead"), F.col(alias)))
    return rows


def last_set(value: Column) -> Column:
    return F.last(value, ignorenulls=True)


def opens_version(by_key: WindowSpec) -> Column:
    """Whether a version starts: after a delete, or when tracked values change."""
    before_dead = F.lag("dead").over(by_key)
    before = F.lag("shown").over(by_key)
    return ~F.col("dead") & (
        F.coalesce(before_dead, F.lit(True)) | ~F.col("shown").eqNullSafe(before)
    )


def version_end() -> Column:
    """End of a version: the next sequence of the key after it; NULL if there is none."""
    return F.max_by(F.col("next"), F.col("seq"))
