"""Evaluates the selection of rows of a quarantine with Spark.

Returns the rows of the files with a selected row, so that a rewrite leaves other files unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark import errors
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType

from penstock._model.exception_text import first_line
from penstock._model.expectation import FAILED_RULES
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.read.live_files import LiveFiles
from penstock._tables.read.log_scan import file_identity
from penstock._tables.read.row_selection import RowSelection, file_key
from penstock.errors import PlanError, SpecError
from penstock.quality.rules import nearest_column, refusals, row_wise
from penstock.quality.split import MASK_PREFIX

SELECTED = f"{MASK_PREFIX}selected"
_METADATA = f"{MASK_PREFIX}file"
_SHOWN_IDS = 3
# Errors that a condition of the user can raise for single rows.
_ROW_ERRORS = (
    errors.ArithmeticException,
    errors.ArrayIndexOutOfBoundsException,
    errors.DateTimeException,
    errors.IllegalArgumentException,
    errors.NumberFormatException,
    errors.SparkRuntimeException,
    errors.SparkUpgradeException,
)


@dataclass(frozen=True, kw_only=True)
class SelectedRows:
    version: int
    files: frozenset[tuple[str, str]] | None  # with a selected row, by `file_identity`; None: all
    rows: DataFrame | None  # all rows of these files, with the column `SELECTED`


class RowSearch:
    """Evaluates a selection that is not of all rows on the newest version."""

    def __init__(self, delta: DeltaJvm, quarantine: TableRef, selection: RowSelection) -> None:
        self._delta = delta
        self._quarantine = quarantine
        self._selection = selection
        self._snapshot = delta.begin(quarantine.path).snapshot()
        self._version = int(self._snapshot.version())
        self._base = str(delta.log(quarantine.path).dataPath().toUri().getPath())
        contents = delta.file_contents(LiveFiles(delta, quarantine.path).all(self._snapshot))
        self._files = {self._path(content["path"]): content for content in contents}

    def find(self, declared: Sequence[str]) -> SelectedRows:
        """Find the files with a selected row, and their rows.

        `declared` rules of the table may be selected even if no row violated them.
        """
        all_rows = self._read(None)
        condition = self._condition(all_rows)
        if self._selection.rules:
            self._check_rules(all_rows, declared)
        try:
            if self._selection.rows:
                paths, condition = self._with_ids(condition)
            else:
                path = F.col(_METADATA)["file_path"]
                counts = all_rows.where(condition).groupBy(path).count().collect()
                paths = {self._path(row[0]) for row in counts}
        except _ROW_ERRORS as error:
            where = self._selection.where
            if where is None:
                raise
            raise SpecError(
                "QUARANTINE_SELECTION_INVALID",
                f"the condition {where!r} cannot be computed for every row: {first_line(error)}",
                hint="try_cast, try_divide and similar functions return NULL, which selects no row",
            ) from error
        if not paths:
            return SelectedRows(version=self._version, files=frozenset(), rows=None)
        contents = [content for path, content in self._files.items() if path in paths]
        rows = self._read(contents).withColumn(SELECTED, condition).drop(_METADATA)
        files = frozenset(map(file_identity, contents))
        return SelectedRows(version=self._version, files=files, rows=rows)

    def _condition(self, all_rows: DataFrame) -> Column:
        parts = []
        if self._selection.rules:
            rules = F.array(*[F.lit(name) for name in self._selection.rules])
            parts.append(F.arrays_overlap(F.col(FAILED_RULES), rules))
        if self._selection.where is not None:
            parts.append(_checked(all_rows.drop(_METADATA), self._selection.where))
        return F.coalesce(reduce(and_, parts), F.lit(False)) if parts else F.lit(True)

    def _check_rules(self, all_rows: DataFrame, declared: Sequence[str]) -> None:
        unknown = set(self._selection.rules) - set(declared)
        if not unknown:
            return
        exploded = all_rows.select(F.explode(FAILED_RULES).alias("rule"))
        occurring = sorted(row[0] for row in exploded.distinct().collect() if row[0] is not None)
        unknown -= set(occurring)
        if unknown:
            names = ", ".join(map(repr, sorted(unknown)))
            raise SpecError(
                "QUARANTINE_SELECTION_INVALID",
                f"no row in {self._quarantine.name} violated {names}",
                hint=f"rules that rows in it violated: {', '.join(occurring)}"
                if occurring
                else "the quarantine is empty",
            )

    def _with_ids(self, condition: Column) -> tuple[set[str], Column]:
        """Files with a row that has a selected id and matches; and the combined condition."""
        wanted = self._selection.positions()
        files = self._files.values()
        contents = [content for content in files if file_key(content["path"]) in wanted]
        rows: dict[str, tuple[str, int, bool]] = {}
        metadata = F.col(_METADATA)
        if contents:
            names = [
                _at(name.rsplit("/", 1)[-1], position)
                for name in (content["path"] for content in contents)
                for position in wanted[file_key(name)]
            ]
            same_name = _location(metadata["file_name"], metadata["row_index"]).isin(names)
            columns = [metadata["file_path"], metadata["row_index"], condition]
            candidates = self._read(contents).where(same_name).select(*columns)
            for uri, position, matches in candidates.collect():
                # Two files in different folders may have the same name.
                key = file_key(self._files[self._path(uri)]["path"])
                if position in wanted[key]:
                    rows[f"{key}-{position}"] = (uri, position, matches)
        missing = sorted(set(self._selection.rows) - rows.keys())
        if missing:
            raise self._gone(missing)
        exact = [_at(uri, position) for uri, position, _ in rows.values()]
        has_id = _location(metadata["file_path"], metadata["row_index"]).isin(exact)
        paths = {self._path(uri) for uri, _, matches in rows.values() if matches}
        return paths, has_id & condition

    def _gone(self, ids: Sequence[str]) -> PlanError:
        total = len(set(self._selection.rows))
        shown = ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")
        return PlanError(
            "QUARANTINE_ROWS_GONE",
            f"{len(ids):,} of the {total:,} selected rows are not in {self._quarantine.name} any "
            f"more ({shown}); nothing was changed",
            hint="they were replayed or rewritten meanwhile: list the quarantine again, and select "
            "among its rows",
        )

    def _path(self, name: str) -> str:
        """The path of a file below the table, from its name in the log or its URI in Spark."""
        if not urlsplit(name).scheme:
            return unquote(name)
        return unquote(urlsplit(name).path).removeprefix(self._base.rstrip("/") + "/")

    def _read(self, contents: Sequence[Mapping[str, Any]] | None) -> DataFrame:
        """Rows with the column `_METADATA`, which has `row_index` only if files are given."""
        if contents is None:
            versioned = self._delta.spark.read.format("delta").option("versionAsOf", self._version)
            rows = versioned.load(self._quarantine.path)
        else:
            files = self._delta.add_files(contents)
            rows = self._delta.read_files_with_index(self._snapshot, files)
        # The rows may have a column of their own named `_metadata`.
        return rows.select("*", rows.metadataColumn("_metadata").alias(_METADATA))


def _at(file: str, position: int) -> str:
    return f"{file}#{position}"


def _location(file: Column, position: Column) -> Column:
    return F.concat_ws("#", file, position.cast("string"))


def _checked(rows: DataFrame, text: str) -> Column:
    """The column of a user's condition, which must depend on single rows only."""
    session: Any = rows.sparkSession._jsparkSession
    try:
        # Parsed alone, so that an unbalanced bracket cannot end the surrounding expression.
        parsed = session.sessionState().sqlParser().parseExpression(text)
    except errors.ParseException as error:
        raise _unusable(rows, text, first_line(error)) from error
    reason = next(refusals(parsed), None)
    if reason is not None:
        raise _unusable(rows, text, reason)
    column = F.expr(text)
    try:
        selected = rows.select(column.alias(SELECTED))
    except errors.AnalysisException as error:
        near = nearest_column(error, rows.columns)
        raise _unusable(rows, text, first_line(error), near) from error
    if not row_wise(rows, selected):
        raise _unusable(rows, text, "it has an aggregate, a window or a generator")
    kind = selected.schema[0].dataType
    if not isinstance(kind, (BooleanType, NullType)):
        raise _unusable(rows, text, f"it is {kind.simpleString().upper()}, not a BOOLEAN")
    plan: Any = selected._jdf.queryExecution().analyzed()
    if not plan.projectList().head().deterministic():
        raise _unusable(rows, text, "it is not deterministic")
    return column


def _unusable(rows: DataFrame, text: str, reason: str, near: str | None = None) -> SpecError:
    columns = f"columns: {', '.join(rows.columns)}"
    return SpecError(
        "QUARANTINE_SELECTION_INVALID",
        f"the condition {text!r} cannot be used: {reason}",
        hint=columns if near is None else f"did you mean {near!r}? {columns}",
    )
