"""All expectations of a dataset in one pass: the destination of a row, and a bit per violated rule.

The result is a DataFrame with additional columns, built once before the flow starts. The writer
(`_tables.write.writer`) writes rows to two tables by the destination column and counts violated
rules by the mask columns of the written rows.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock._model.expectation import FAILED_RULES, ROW, SOURCE, Expectation, OnViolation
from penstock._model.sql_text import quoted
from penstock.errors import DefinitionError
from penstock.quality.rules import (
    check_expectations,
    condition_column,
    hidden_plan,
    row_guard,
    tolerant,
)

DESTINATION = "penstock_dest"
TO_TABLE = "table"
TO_QUARANTINE = "quarantine"
MASK_PREFIX = "penstock_dq_"
QUARANTINE_COLUMNS = (FAILED_RULES, ROW, SOURCE)

FAILURE_MARK = "PENSTOCK_EXPECTATION_FAILED "
_SHOWN_ROW_CHARACTERS = 2000
_BETWEEN_NAMES = "\x01"  # separator; a name that contains it is shown as two
# Bits of a mask column, without the sign bit.
_MASK_BITS = 63
_KINESIS_COLUMNS = ("stream", "shardId", "sequenceNumber")
_KAFKA_COLUMNS = {"topic": "string", "partition": "int", "offset": "bigint"}
_KAFKA_PREFIXES = ("", "_", "kafka_", "_kafka_", "source_", "_source_")
_FILE_COLUMNS = ("_metadata", "source_file", "_source_file", "input_file", "file_path", "_file")


@dataclass(frozen=True, kw_only=True)
class RowSplit:
    """A DataFrame with a destination for each row."""

    df: DataFrame  # the destination is the last column
    data_columns: tuple[str, ...]  # columns of the user's query
    masks: tuple[str, ...]  # mask columns (BIGINT); NULL where none of their rules is violated
    bits: dict[str, tuple[str, int]]  # mask column and bit of each warn and drop rule
    rules: tuple[str, ...]  # names of all rules, in order; fail rules have no bit
    quarantine: bool  # rows that violate a drop rule are kept
    null_in_valid: tuple[str, ...]  # helper columns that are NULL in all valid rows


@dataclass(frozen=True)
class ExpectationFailure:
    """The row that violated fail rules, as truncated JSON, and the names of the rules."""

    rules: tuple[str, ...]
    row: str


def split_rows(
    df: DataFrame, expectations: Sequence[Expectation], *, quarantine: bool = True
) -> RowSplit | None:
    """Add columns to a query that apply its expectations; `None` without expectations.

    A row violates a rule if the condition is false, NULL or fails. Fail rules have priority over
    drop rules: they raise while the row is computed, before anything is written.

    Args:
        df: The user's query, streaming or not.
        expectations: Expectations in the order of declaration.
        quarantine: Whether rows that violate a drop rule are kept.

    Raises:
        DefinitionError: A condition is invalid, or a column has a reserved name.
    """
    expectations = [rule for rule in expectations if rule.rows is None]
    if not expectations:
        return None
    data = tuple(df.columns)
    _check_names(data, expectations, quarantine)
    plain = [F.col(quoted(column)) for column in data]
    judged = _judge(df, expectations)
    try:
        with_masks = judged.df.select(*judged.columns, *plain)
    except AnalysisException:
        judged = _judge(*_with_hidden(df, expectations))
        with_masks = judged.df.select(*judged.columns, *plain)
    broken = judged.broken

    drop = [r.name for r in expectations if r.on_violation.removes]
    fail = [r.name for r in expectations if r.on_violation is OnViolation.FAIL]
    drop_bits: Counter[str] = Counter()
    for name in drop:
        mask, bit = judged.bits[name]
        drop_bits[mask] += bit
    bad = _any([is_broken(mask, bits) for mask, bits in drop_bits.items()])
    destination = F.when(bad, F.lit(TO_QUARANTINE)).otherwise(F.lit(TO_TABLE))
    if fail:
        raised = F.raise_error(_failure_message(with_masks, data, fail, broken))
        failed = _any([broken[name] for name in fail])
        destination = F.when(failed, raised.cast("string")).otherwise(destination)
    keeps = quarantine and bool(drop)
    extra: list[Column] = []
    if keeps:
        extra = [
            F.when(bad, _names(drop, broken)).alias(FAILED_RULES),
            F.when(bad, row_json(with_masks, data)).alias(ROW),
            F.when(bad, source_column(df)).alias(SOURCE),
        ]
    masks = [F.when(F.col(name) != 0, F.col(name)).alias(name) for name in judged.masks]
    warns = any(rule.on_violation is OnViolation.WARN for rule in expectations)
    columns = [*masks, *plain] if warns else [*plain, *masks]
    result = with_masks.select(*columns, *extra, destination.alias(DESTINATION))
    return RowSplit(
        df=result,
        data_columns=data,
        masks=judged.masks,
        bits=judged.bits,
        rules=tuple(rule.name for rule in expectations),
        quarantine=keeps,
        null_in_valid=QUARANTINE_COLUMNS if warns else (*judged.masks, *QUARANTINE_COLUMNS),
    )


def filter_view(df: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Apply the expectations of a temporary view to its query.

    Drop rules filter, fail rules raise where the view is read, warn rules have no effect.
    """
    split = split_rows(
        df, [r for r in expectations if r.on_violation is not OnViolation.WARN], quarantine=False
    )
    if split is None:
        return df
    plain = [F.col(quoted(column)) for column in split.data_columns]
    return split.df.where(F.col(DESTINATION) == TO_TABLE).select(*plain)


def parse_failure(message: str) -> ExpectationFailure | None:
    """The failure of a fail rule from the message of a failed job; `None` for other causes."""
    start = message.find(FAILURE_MARK)
    if start < 0:
        return None
    try:
        content, _ = json.JSONDecoder().raw_decode(message, start + len(FAILURE_MARK))
        return ExpectationFailure(tuple(content["rules"]), str(content["row"]))
    except (ValueError, KeyError, TypeError):
        return ExpectationFailure((), "")


@dataclass(frozen=True)
class _Judged:
    """Columns for the rules that a row violates: masks, then one boolean per fail rule."""

    df: DataFrame
    columns: list[Column]
    masks: tuple[str, ...]
    bits: dict[str, tuple[str, int]]
    broken: dict[str, Column]


def _judge(df: DataFrame, expectations: Sequence[Expectation]) -> _Judged:
    spark = df.sparkSession
    guard = row_guard(df.schema)
    counts = {  # number of rows with the same key, for each rule about uniqueness
        _count_name(rule): F.count(F.lit(1)).over(
            Window.partitionBy(*[F.col(quoted(column)) for column in rule.unique])
        )
        for rule in expectations
        if rule.unique
    }
    if counts:
        df = df.withColumns(counts)
    masks: dict[str, Column] = {}
    fails: list[Column] = []
    bits: dict[str, tuple[str, int]] = {}
    broken: dict[str, Column] = {}
    for rule in expectations:
        if rule.unique:
            passed = F.col(_count_name(rule)) == 1
        else:
            passed = tolerant(spark, condition_column(spark, rule), guard)
        if rule.on_violation is OnViolation.FAIL:
            name = f"{MASK_PREFIX}fail_{len(fails)}"
            fails.append(F.when(passed, F.lit(False)).otherwise(F.lit(True)).alias(name))
            broken[rule.name] = F.col(name)
            continue
        position, exponent = divmod(len(bits), _MASK_BITS)
        name, bit = f"{MASK_PREFIX}{position}", 1 << exponent
        mask = F.when(passed, F.lit(0).cast("bigint")).otherwise(F.lit(bit).cast("bigint"))
        masks[name] = masks[name].bitwiseOR(mask) if name in masks else mask
        bits[rule.name] = (name, bit)
        broken[rule.name] = is_broken(name, bit)
    columns = [*(mask.alias(name) for name, mask in masks.items()), *fails]
    return _Judged(df, columns, tuple(masks), bits, broken)


def _with_hidden(
    df: DataFrame, expectations: Sequence[Expectation]
) -> tuple[DataFrame, list[Expectation]]:
    """Evaluate rules about columns that a query reads, but does not return.

    As on Databricks, rules resolve them like a `WHERE` over the query: columns that were renamed or
    dropped, and those of both sides of a join. The result of such a rule becomes a column.
    """
    rules: list[Expectation] = []
    for rule in expectations:
        if not rule.unique:
            column = condition_column(df.sparkSession, rule)
            try:
                df.select(column)
            except AnalysisException:
                plan = hidden_plan(df, column)
                if plan is None:
                    check_expectations(df, [rule])  # raises an error with the reason
                    raise
                name = f"{MASK_PREFIX}hidden_{len(rules)}"
                df = _with_result(df, plan, name)
                rule = replace(rule, condition=F.col(name))
        rules.append(rule)
    return df, rules


def _with_result(df: DataFrame, plan: Any, name: str) -> DataFrame:
    jvm: Any = df.sparkSession._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    where = plan.child()
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(df._jdf.sparkSession(), where.child())
    # Columns by expression id: a hidden column may have the name of another one.
    output = plan.output()
    columns = [Column(utils.column(output.apply(i))) for i in range(output.size())]
    condition = Column(utils.column(where.condition()))
    passed = tolerant(df.sparkSession, condition, row_guard(df.schema, columns))
    return DataFrame(rows, df.sparkSession).select(*columns, passed.alias(name))


def _count_name(rule: Expectation) -> str:
    # Hexadecimal, for a name without dots that is unique for each list of columns.
    return f"{MASK_PREFIX}same_{'_'.join(name.lower().encode().hex() for name in rule.unique)}"


def is_broken(mask: str, bit: int) -> Column:
    """Whether the rule with this mask column and bit is violated; NULL where the mask is NULL."""
    return F.col(mask).bitwiseAND(F.lit(bit).cast("bigint")) != 0


def _check_names(
    data: tuple[str, ...], expectations: Sequence[Expectation], quarantine: bool
) -> None:
    reserved = {DESTINATION, *(QUARANTINE_COLUMNS if quarantine else ())}
    for column in data:
        if column.lower() in reserved or column.lower().startswith(MASK_PREFIX):
            raise DefinitionError(
                "COLUMN_NAME_RESERVED",
                f"column {column!r} has a name that is reserved in a dataset with expectations",
                origin=expectations[0].origin,
                hint="rename the column",
            )


def _any(conditions: Sequence[Column]) -> Column:
    return reduce(Column.__or__, conditions) if conditions else F.lit(False)


def _names(rules: Sequence[str], broken: dict[str, Column]) -> Column:
    """The names of the violated rules, of which there is at least one.

    `array_compact` is not used: it disables code generation for the whole projection.
    """
    names = F.concat_ws(_BETWEEN_NAMES, *[F.when(broken[name], F.lit(name)) for name in rules])
    return F.split(names, _BETWEEN_NAMES)


def row_json(df: DataFrame, columns: Sequence[str]) -> Column:
    """A row as JSON, with NULLs; as a string if it has types that JSON does not support."""
    row = F.struct(*[F.col(quoted(column)) for column in columns])
    as_json = F.to_json(row, {"ignoreNullFields": "false"})
    try:
        df.select(as_json)
    except AnalysisException:
        # Types that JSON does not support, such as intervals.
        return row.cast("string")
    return as_json


def _failure_message(
    df: DataFrame, columns: Sequence[str], fail: Sequence[str], broken: dict[str, Column]
) -> Column:
    content = F.struct(
        _names(fail, broken).alias("rules"),
        F.substring(row_json(df, columns), 1, _SHOWN_ROW_CHARACTERS).alias("row"),
    )
    return F.concat(F.lit(FAILURE_MARK), F.to_json(content))


def source_column(df: DataFrame) -> Column:
    """The source of a row, if it is in the columns: position in Kafka or Kinesis, or a file."""
    types = {field.name.lower(): field.dataType.simpleString() for field in df.schema}
    for prefix in _KAFKA_PREFIXES:
        names = [f"{prefix}{name}" for name in _KAFKA_COLUMNS]
        if [types.get(name) for name in names] == list(_KAFKA_COLUMNS.values()):
            pairs = zip(names, _KAFKA_COLUMNS, strict=True)
            return F.to_json(F.struct(*[F.col(name).alias(plain) for name, plain in pairs]))
    if all(types.get(name.lower()) == "string" for name in _KINESIS_COLUMNS):
        return F.to_json(F.struct(*_KINESIS_COLUMNS))
    for name in _FILE_COLUMNS:
        column_type = types.get(name)
        if column_type == "string":
            return F.to_json(F.struct(F.col(name).alias("file")))
        if column_type is not None and re.search(r"\bfile_path:string\b", column_type):
            return F.to_json(F.struct(F.col(f"{name}.file_path").alias("file")))
    return F.lit(None).cast("string")
