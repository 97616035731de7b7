"""The rows of a quarantine that a selection means, found with Spark.

Only files with such a row are read a second time: whoever rewrites rows can leave the others alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
    SparkRuntimeException,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType

from penstock._model.exception_text import first_line
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.layout import TableRef
from penstock._tables.log_scan import file_identity
from penstock._tables.row_selection import RowSelection, file_key
from penstock.errors import PlanError, SpecError
from penstock.quality.rules import nearest_column, refusals, row_wise
from penstock.quality.split import FAILED_RULES, MASK_PREFIX

SELECTED = f"{MASK_PREFIX}selected"
_METADATA = f"{MASK_PREFIX}file"
_SHOWN_IDS = 3
# What a condition of the user's does to a row that it cannot be computed for.
_ROW_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
)


@dataclass(frozen=True, kw_only=True)
class SelectedRows:
    """What a selection means at one version of a quarantine.

    Attributes:
        version: The version.
        files: Files with a selected row, each with its deletion vector: their `file_identity`.
        rows: All rows of these files; the column `SELECTED` says which are meant. `None` where no
            file has one.
    """

    version: int
    files: frozenset[tuple[str, str]]
    rows: DataFrame | None


def select_rows(
    delta: DeltaJvm, quarantine: TableRef, selection: RowSelection, *, declared: Sequence[str]
) -> SelectedRows:
    """Find the rows of the newest version that a selection means.

    Args:
        delta: The bridge.
        quarantine: It must exist.
        selection: Not all rows.
        declared: Rules that the table has now: to name one whose rows are gone is no mistake.

    Raises:
        SpecError: `QUARANTINE_SELECTION_INVALID`: a rule that no row broke and the table does not
            have, or a condition that cannot be used.
        PlanError: `QUARANTINE_ROWS_GONE`.
    """
    return _Search(delta, quarantine, selection).find(declared)


class _Search:
    """One look at the newest version."""

    def __init__(self, delta: DeltaJvm, quarantine: TableRef, selection: RowSelection) -> None:
        self._delta = delta
        self._quarantine = quarantine
        self._selection = selection
        transaction = delta.begin(quarantine.path)
        self._snapshot = transaction.snapshot()
        self._version = int(self._snapshot.version())
        self._base = str(delta.log(quarantine.path).dataPath().toUri().getPath())
        contents = delta.file_contents(transaction.filterFiles())
        self._files = {self._place(one["path"]): one for one in contents}

    def find(self, declared: Sequence[str]) -> SelectedRows:
        everything = self._read(None)
        condition = self._condition(everything)
        if self._selection.rules:
            self._check_rules(everything, declared)
        with _computing(self._selection.where):
            if self._selection.rows:
                places, condition = self._marked(condition)
            else:
                where = F.col(_METADATA)["file_path"]
                counts = everything.where(condition).groupBy(where).count().collect()
                places = {self._place(row[0]) for row in counts}
        if not places:
            return SelectedRows(version=self._version, files=frozenset(), rows=None)
        contents = [one for place, one in self._files.items() if place in places]
        rows = self._read(contents).withColumn(SELECTED, condition).drop(_METADATA)
        files = frozenset(map(file_identity, contents))
        return SelectedRows(version=self._version, files=files, rows=rows)

    # -- conditions ------------------------------------------------------------------------------

    def _condition(self, everything: DataFrame) -> Column:
        """Of rules and `where`; never NULL."""
        parts = []
        if self._selection.rules:
            rules = F.array(*[F.lit(name) for name in self._selection.rules])
            parts.append(F.arrays_overlap(F.col(FAILED_RULES), rules))
        if self._selection.where is not None:
            parts.append(_checked(everything.drop(_METADATA), self._selection.where))
        return F.coalesce(reduce(and_, parts), F.lit(False)) if parts else F.lit(True)

    def _check_rules(self, everything: DataFrame, declared: Sequence[str]) -> None:
        unknown = set(self._selection.rules) - set(declared)
        if not unknown:
            return
        exploded = everything.select(F.explode(FAILED_RULES).alias("rule"))
        occurring = sorted(row[0] for row in exploded.distinct().collect() if row[0] is not None)
        unknown -= set(occurring)
        if unknown:
            names = ", ".join(map(repr, sorted(unknown)))
            raise SpecError(
                "QUARANTINE_SELECTION_INVALID",
                f"no row in the quarantine of {self._quarantine.name} broke {names}",
                hint=f"rules that rows there broke: {', '.join(occurring)}"
                if occurring
                else "it is empty",
            )

    def _marked(self, condition: Column) -> tuple[set[str], Column]:
        """Files with a marked row for which the condition is true, and the condition with both."""
        wanted = self._selection.places()
        contents = [one for one in self._files.values() if file_key(one["path"]) in wanted]
        found: dict[str, tuple[str, int, bool]] = {}
        if contents:
            names = [
                _at(name.rsplit("/", 1)[-1], position)
                for name in (one["path"] for one in contents)
                for position in wanted[file_key(name)]
            ]
            metadata = F.col(_METADATA)
            near = _text_of(metadata["file_name"], metadata["row_index"]).isin(names)
            columns = [metadata["file_path"], metadata["row_index"], condition]
            for uri, position, fits in self._read(contents).where(near).select(*columns).collect():
                # Two files in different folders may have the same name.
                key = file_key(self._files[self._place(uri)]["path"])
                if position in wanted[key]:
                    found[f"{key}-{position}"] = (uri, position, fits)
        gone = sorted(set(self._selection.rows) - found.keys())
        if gone:
            raise self._gone(gone)
        exact = [_at(uri, position) for uri, position, _ in found.values()]
        marked = _text_of(F.col(_METADATA)["file_path"], F.col(_METADATA)["row_index"]).isin(exact)
        places = {self._place(uri) for uri, _, fits in found.values() if fits}
        return places, marked & condition

    def _gone(self, ids: Sequence[str]) -> PlanError:
        marked = len(set(self._selection.rows))
        shown = ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")
        return PlanError(
            "QUARANTINE_ROWS_GONE",
            f"{len(ids):,} of the {marked:,} rows that are to be replayed are not in the "
            f"quarantine of {self._quarantine.name} any more ({shown}); nothing was changed",
            hint="they were replayed or rewritten meanwhile: look at the quarantine again, and "
            "choose among the rows that are there",
        )

    # -- files -----------------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        """One spelling for a file, from the log's name of it or from the one that Spark gives."""
        if not urlsplit(name).scheme:
            return unquote(name)
        return unquote(urlsplit(name).path).removeprefix(self._base.rstrip("/") + "/")

    def _read(self, contents: Sequence[Mapping[str, Any]] | None) -> DataFrame:
        """Rows with the column `_METADATA`; of these files with `row_index`, or of all without."""
        if contents is None:
            versioned = self._delta.spark.read.format("delta").option("versionAsOf", self._version)
            rows = versioned.load(self._quarantine.path)
        else:
            files = self._delta.add_files(contents)
            rows = self._delta.rows_of_files(self._quarantine.path, self._snapshot, files)
        # The rows may have a column of their own that is called so.
        return rows.select("*", rows.metadataColumn("_metadata").alias(_METADATA))


def _at(file: str, position: int) -> str:
    return f"{file}#{position}"


def _text_of(file: Column, position: Column) -> Column:
    return F.concat_ws("#", file, position.cast("string"))


def _checked(rows: DataFrame, text: str) -> Column:
    """A condition of the user's, if it is one about single rows."""
    session: Any = rows.sparkSession._jsparkSession
    try:
        # Alone, so that an unbalanced bracket cannot join with what is put around it.
        parsed = session.sessionState().sqlParser().parseExpression(text)
    except ParseException as error:
        raise _unusable(rows, text, first_line(error)) from error
    reason = next(refusals(parsed), None)
    if reason is not None:
        raise _unusable(rows, text, reason)
    column = F.expr(text)
    try:
        chosen = rows.select(column.alias(SELECTED))
    except AnalysisException as error:
        near = nearest_column(error, rows.columns)
        raise _unusable(rows, text, first_line(error), near) from error
    if not row_wise(rows, chosen):
        raise _unusable(rows, text, "it aggregates, uses a window or makes rows")
    kind = chosen.schema[0].dataType
    if not isinstance(kind, (BooleanType, NullType)):
        raise _unusable(rows, text, f"it is {kind.simpleString().upper()}, not a BOOLEAN")
    plan: Any = chosen._jdf.queryExecution().analyzed()
    if not plan.projectList().head().deterministic():
        raise _unusable(rows, text, "it may choose other rows each time that it is computed")
    return column


@contextmanager
def _computing(where: str | None) -> Iterator[None]:
    try:
        yield
    except _ROW_ERRORS as error:
        if where is None:
            raise
        raise SpecError(
            "QUARANTINE_SELECTION_INVALID",
            f"the condition {where!r} cannot be computed for every row: {first_line(error)}",
            hint="try_cast, try_divide and the like give NULL instead, which chooses no row",
        ) from error


def _unusable(rows: DataFrame, text: str, reason: str, near: str | None = None) -> SpecError:
    columns = f"columns: {', '.join(rows.columns)}"
    return SpecError(
        "QUARANTINE_SELECTION_INVALID",
        f"the condition {text!r} cannot be used: {reason}",
        hint=columns if near is None else f"did you mean {near!r}? {columns}",
    )
