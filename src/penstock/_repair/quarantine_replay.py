"""Moves rows from quarantine into their table exactly once, after a rule or the rows were fixed.

Two tables change, and a Delta commit covers one table. So the outcome for each row is stored first:

1. The rules are applied to the rows of one version of the quarantine, which are written to a
   staging folder with their destination. The journal, written last, marks them as complete.
2. The rows that pass are added to the table.
3. The files of that version are removed from the quarantine, and the rows that still violate a rule
   are added to it again.
4. The staging folder is deleted.

Steps 2 and 3 commit the version as their batch id, so each is done once. A replay that finds a
journal resumes with its step 2 or 3, even if the rules have changed. Rows that were quarantined in
between stay there.

If rows are selected, only the files with a selected row are staged, and the journal lists them:
step 3 removes these files and adds their other rows again. A replay that moves no row makes no
commit, so the next one may use the same version as its batch id.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from penstock._execution.replay_check import check_replay
from penstock._graph.dataflow import DatasetNode, deferred_error
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.expectation import FAILED_RULES, OnViolation
from penstock._model.pipeline import PipelineSettings
from penstock._model.quantity import plural
from penstock._model.sql_text import delta_table, quoted
from penstock._repair.journal import Journal
from penstock._repair.selected_rows import SELECTED, RowSearch, SelectedRows
from penstock._tables.commit_note import QUARANTINE, TARGET
from penstock._tables.commits import CommitResult, actions_of
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import StorageLayout
from penstock._tables.read.log_scan import file_identity
from penstock._tables.read.row_selection import RowSelection
from penstock._tables.write.fenced import FencedTable, TableTransaction
from penstock._tables.write.row_files import LATE, NO_EVENT_TIME, NO_SESSION_GAP
from penstock._tables.write.schema import (
    cast_by_name,
    columns_as,
    compare,
    conform,
    is_computed,
    map_leaves,
)
from penstock.errors import PlanError, SpecError
from penstock.quality.rules import check_expectations
from penstock.quality.split import (
    DESTINATION,
    QUARANTINE_COLUMNS,
    TO_QUARANTINE,
    TO_TABLE,
    split_rows,
)

STAGED, IN_TABLE = "replay_staged", "replay_in_table"
OUT_OF_QUARANTINE = "replay_out_of_quarantine"
"""Kill points of a replay; it can be resumed after each."""
_ALL = RowSelection()


@dataclass(frozen=True, kw_only=True)
class Replayed:
    table: str
    version: int | None  # of the quarantine; None if there is none
    chosen: int = 0  # rows that the rules were applied to
    moved: int = 0  # to the table
    kept: int = 0  # still violate a rule
    resumed: bool = False  # an interrupted replay was completed
    finished: "Replayed | None" = None  # result of the interrupted replay if its selection differs


@dataclass(frozen=True, kw_only=True)
class ReplayPreview:
    table: str
    version: int | None  # of the quarantine; None if there is none
    moves: int  # selected rows that pass
    keeps: int  # selected rows that violate a rule
    by_rule: Mapping[str, int]  # rows in `keeps`
    unfinished: bool  # an interrupted replay would be completed first

    @property
    def chosen(self) -> int:
        return self.moves + self.keeps


@dataclass(frozen=True, kw_only=True)
class _Staged:
    """The journal entry of a replay."""

    version: int  # of the quarantine
    files: Sequence[Sequence[str]] | None = None  # to remove, by `file_identity`; None means all
    selection: Mapping[str, Any] = field(default_factory=dict)
    # Unique, for the names of folders: a driver that has lost its lease may still write its own.
    suffix: str = ""


def replay_journal(
    files: StorageFiles, layout: StorageLayout, node: DatasetNode
) -> Journal[_Staged]:
    # Does not load entries of earlier versions (field `quarantine_version`), as their commits have
    # another app id.
    return Journal(files, layout.replay_staging(node.name), _Staged)


def renamed_hint(move: str, remove: str) -> str:
    """The hint for values in quarantine whose column the table does not have."""
    return (
        f"if the column was renamed, run the pipeline once, then move its values: {move}; if they "
        f"are not needed, remove them: {remove}"
    )


class QuarantineReplay:
    """Replays the quarantine of one table. The caller holds the leases of pipeline and table."""

    def __init__(self, pipeline: OpenPipeline, node: DatasetNode) -> None:
        self._spark = spark = pipeline.spark
        self._delta = DeltaJvm(spark)
        tables = pipeline.tables.by_role(node)
        target, quarantine = tables[TARGET], tables[QUARANTINE]  # the latter need not exist
        self._name = target.name
        self._flow = f"replay of {quarantine.name}"
        self._journal = replay_journal(StorageFiles(spark), pipeline.tables.layout, node)
        self._quarantine_path = quarantine.path
        self._expectations = node.declared.expectations  # current rules
        queries = [json.loads(pipeline.graph.flows[f].analysis.schema_json) for f in node.flows]
        self._queried = {field["name"].lower() for query in queries for field in query["fields"]}
        self._exists = self._delta.version(quarantine.path) >= 0
        table_id = ""
        if self._exists:
            table_id = self._delta.metadata(self._delta.begin(quarantine.path)).id
        # The key, because the name depends on the default catalog and schema. The id, because the
        # versions of a recreated quarantine start at 0 again.
        self._app_id = f"{node.key}/replay/{table_id}"
        self._target = FencedTable(self._delta, target, self._app_id)
        self._quarantine = FencedTable(self._delta, quarantine, self._app_id)

    def run(self, selection: RowSelection) -> Replayed:
        """Complete an interrupted replay; then replay the selection, unless it had the same."""
        pending = self._journal.load()
        if pending is None:
            return self._begin(selection)
        finished = replace(self._finish(pending), resumed=True)
        if pending.selection == selection.record():
            return finished
        try:
            done = self._begin(selection)
        except (PlanError, SpecError) as error:
            moved = (
                f"an interrupted replay was completed first ({plural(finished.moved, 'row')} moved)"
            )
            raise type(error)(
                error.condition, f"{moved}; then: {error.message}", hint=error.hint
            ) from error
        return replace(done, resumed=True, finished=finished)

    def preview(self, selection: RowSelection) -> ReplayPreview:
        selected = self._select(selection) if self._exists else None
        counts: Counter[str] = Counter()
        rules: Counter[str] = Counter()
        if selected is not None and selected.rows is not None:
            groups = self._split(selected.rows).groupBy(DESTINATION, FAILED_RULES).count()
            for destination, broken, count in groups.collect():
                counts[destination] += count
                if destination == TO_QUARANTINE:
                    rules.update(dict.fromkeys(broken, count))
        return ReplayPreview(
            table=self._name,
            version=None if selected is None else selected.version,
            moves=counts[TO_TABLE],
            keeps=counts[TO_QUARANTINE],
            by_rule=dict(rules.most_common()),
            unfinished=self._journal.load() is not None,
        )

    def _select(self, selection: RowSelection) -> SelectedRows:
        if not selection.is_all:
            declared = [rule.name for rule in self._expectations]
            return RowSearch(self._delta, self._quarantine.ref, selection).find(declared)
        version = self._delta.version(self._quarantine_path)
        rows = self._spark.read.format("delta").option("versionAsOf", version)
        every = rows.load(self._quarantine_path).withColumn(SELECTED, F.lit(True))
        return SelectedRows(version=version, files=None, rows=every)

    def _begin(self, selection: RowSelection) -> Replayed:
        self._journal.delete()  # files of a replay that was killed before it had a journal
        if not self._exists:
            return Replayed(table=self._name, version=None)
        selected = self._select(selection)
        rows, files = selected.rows, selected.files
        if rows is None:
            return Replayed(table=self._name, version=selected.version)
        staged = _Staged(
            version=selected.version,
            files=None if files is None else sorted(files),
            selection=selection.record(),
            suffix=f"-{uuid.uuid4().hex}",
        )
        if files is not None:
            # Stored, so that the selection is evaluated once: a condition may depend on the time.
            rows.write.parquet(self._path("read", staged))
            rows = self._spark.read.parquet(self._path("read", staged))
        self._split(rows).write.parquet(self._path("rows", staged))
        self._journal.save(staged)
        kill_point(STAGED, self._name, None)
        return self._finish(staged)

    def _path(self, name: str, staged: _Staged) -> str:
        return f"{self._journal.folder}/{name}{staged.suffix}"

    def _split(self, rows: DataFrame) -> DataFrame:
        """Selected rows in the columns of the table, with their destination and violated rules."""
        rows = rows.where(SELECTED).drop(SELECTED)
        self._refuse_late(rows)
        schema = self._target.begin(None).metadata.schema
        # Delta computes a column that no query has; in quarantine, it is NULL.
        computed = {each.name.lower() for each in schema if is_computed(each)} - self._queried
        absent = [name for name in rows.columns if name.lower() in computed]
        data = conform(self._fitting(rows.drop(*absent), schema), schema)
        # A row that violates a fail rule stays in quarantine, and must not fail the whole replay.
        rules = [
            replace(rule, on_violation=OnViolation.QUARANTINE)
            if rule.on_violation is OnViolation.FAIL
            else rule
            for rule in self._expectations
        ]
        # The quarantine has neither other columns of the query, nor the metadata of its files.
        check_expectations(data, rules, are_stored=True)
        split = split_rows(data, rules)
        if split is None or not split.quarantine:
            kinds = {name: rows.schema[name].dataType for name in QUARANTINE_COLUMNS}
            nulls = [F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()]
            return data.select("*", *nulls, F.lit(TO_TABLE).alias(DESTINATION))
        return split.df.drop(*split.masks)

    def _fitting(self, rows: DataFrame, table: StructType) -> DataFrame:
        """Rows in the columns and fields that the table has; values in others are refused."""
        have = [column for column in rows.schema if column.name not in QUARANTINE_COLUMNS]
        merged = map_leaves(table, StructType(have), lambda _, kind, __: kind)
        names = {column.name.lower() for column in have}
        kept = {c.name.lower(): c for c in merged if c.name.lower() in names}
        for column in have:
            value, own = F.col(quoted(column.name)), kept.get(column.name.lower())
            for name in compare(table, StructType([column])).added:
                has_values = value.isNotNull()
                if own is not None:  # in fields: JSON contains only those that are not NULL
                    fitting = cast_by_name(value, column.dataType, own.dataType)
                    fitting = cast_by_name(fitting, own.dataType, column.dataType)
                    same = fitting.alias(column.name)
                    has_values = F.to_json(F.struct(value)) != F.to_json(F.struct(same))
                if not rows.where(has_values).isEmpty():
                    raise self._lost(name, column)
        return rows.select(*columns_as(StructType(list(kept.values())), have))

    def _lost(self, name: str, column: StructField) -> PlanError:
        update = f"UPDATE {delta_table(self._quarantine_path)} SET"
        top, fields = quoted(column.name), name[len(column.name) + 1 :]
        old = f"{top}.{quoted(*fields.split('.'))}" if fields else top
        move, remove = f"{update} <new name> = {old}, {old} = NULL", f"{update} {old} = NULL"
        kind = column.dataType.simpleString()
        if fields and ("array<" in kind or "map<" in kind):
            # UPDATE cannot assign fields in arrays and maps.
            function = "transform" if kind.startswith("array<") else "transform_values"
            move = f"{update} {top} = <an expression with all fields, made by {function}()>"
            remove = "the same with NULL in the field"
        return PlanError(
            "QUARANTINE_REPLAY_NOT_POSSIBLE",
            f"the quarantine of {self._name} cannot be replayed: it has values in column "
            f"{name!r}, which {self._name} does not have",
            hint=renamed_hint(move, remove),
        )

    def _refuse_late(self, rows: DataFrame) -> None:
        """Refuse input of a window or join: it has no columns of the table, so it violates no rule.

        Such rows stay in the quarantine when `late_rows` is removed from the declaration.
        """
        rules = {rule.name for rule in self._expectations}
        reasons = {LATE, NO_EVENT_TIME, NO_SESSION_GAP} - rules
        late = F.arrays_overlap(F.col(FAILED_RULES), F.array(*map(F.lit, sorted(reasons))))
        if reasons and not rows.where(late).isEmpty():
            raise PlanError(
                "QUARANTINE_REPLAY_NOT_POSSIBLE",
                f"the quarantine of {self._name} cannot be replayed: it has late rows, which are "
                "input of a window or join",
                hint="select other rows with --rule or --where",
            )

    def _finish(self, pending: _Staged) -> Replayed:
        version = pending.version
        staged = self._spark.read.parquet(self._path("rows", pending))
        counts = {row[0]: int(row[1]) for row in staged.groupBy(DESTINATION).count().collect()}
        moved, kept = counts.get(TO_TABLE, 0), counts.get(TO_QUARANTINE, 0)
        if moved:
            try:
                self._add_to_table(staged, version, moved)
            except Exception:
                # Without a commit there is nothing to complete, and a replay can be started again.
                if not self._target.begin(version).is_committed:
                    self._journal.delete()
                raise
            kill_point(IN_TABLE, self._name, None)
            self._remove_from_quarantine(staged, pending, kept)
            kill_point(OUT_OF_QUARANTINE, self._name, None)
        self._journal.delete()
        return Replayed(
            table=self._name, version=version, chosen=moved + kept, moved=moved, kept=kept
        )

    def _add_to_table(self, staged: DataFrame, version: int, rows: int) -> None:
        txn = self._target.begin(version)
        if txn.is_committed:
            return
        valid = staged.where(F.col(DESTINATION) == TO_TABLE)
        valid = self._fitting(valid.drop(DESTINATION), txn.metadata.schema)
        self._target.evolve(txn, valid.schema, allow_missing=True, replaces=False)
        actions = self._delta.write_files(txn.jvm, valid)
        self._target.commit(txn, actions, version, self._record(version, rows), complete=False)

    def _remove_from_quarantine(self, staged: DataFrame, pending: _Staged, kept: int) -> None:
        version = pending.version
        txn = self._quarantine.begin(version)
        if txn.is_committed:
            return
        removed = self._removals(pending, txn)
        bad = staged.where(F.col(DESTINATION) == TO_QUARANTINE).drop(DESTINATION)
        schema = self._quarantine.evolve(txn, bad.schema, allow_missing=True, replaces=False)
        bad = bad.select(*columns_as(schema, bad.schema.fields))
        written, rows = [bad] if kept else [], kept
        if pending.files is not None:
            read = self._spark.read.parquet(self._path("read", pending))
            others = read.where(~F.col(SELECTED)).drop(SELECTED)
            if count := others.count():
                written, rows = [*written, conform(others, schema)], rows + count
        added = [file for part in written for file in self._delta.write_files(txn.jvm, part)]
        record = self._record(version, rows)
        self._quarantine.commit(txn, [*removed, *added], version, record, complete=True)

    def _record(self, version: int, rows: int) -> CommitResult:
        return CommitResult(
            flow=self._flow, app_id=self._app_id, batch_id=version, version=None, rows_written=rows
        )

    def _removals(self, pending: _Staged, txn: TableTransaction) -> list[Any]:
        """Actions that remove the staged files, if they are unchanged; not those added later."""
        if pending.files is None:
            old = self._delta.snapshot_at(self._quarantine_path, pending.version)
            contents = self._delta.file_contents(self._quarantine.live_files.all(old))
            staged = set(map(file_identity, contents))
        else:
            staged = {(path, vector) for path, vector in pending.files}
        contents = self._delta.file_contents(self._quarantine.files(txn))
        live = {file_identity(content): content for content in contents}
        if changed := staged - live.keys():
            number = self._rewriting(pending.version, txn.version, {path for path, _ in changed})
            raise PlanError(
                "QUARANTINE_CHANGED",
                f"the quarantine of {self._name} was rewritten (version {number}) while a replay "
                f"of its version {pending.version} was unfinished: it cannot be determined any "
                "more which of its rows are in the table already",
                hint=f"restore it: RESTORE {delta_table(self._quarantine_path)} TO VERSION AS OF "
                f"{number - 1}; then replay again",
            )
        return [file.remove() for file in self._delta.add_files([live[file] for file in staged])]

    def _rewriting(self, version: int, newest: int, paths: set[str]) -> int:
        for number in range(version + 1, newest + 1):
            lines = self._delta.commit_lines(self._quarantine_path, number) or ()
            if any(file["path"] in paths for file in actions_of(lines, "remove")):
                return number
        return version + 1


def replay_quarantine(
    settings: PipelineSettings, table: str, *, selection: RowSelection = _ALL
) -> Replayed:
    """Apply the rules of a table to rows in quarantine, and move those that pass to the table.

    Called on the main thread. Holds the leases of an update, so neither runs during the other. Each
    row is in exactly one table, even if the command is killed; called again, it completes the
    interrupted replay before it evaluates the selection.
    """
    with _open_replay(settings, table) as replay:
        return replay.run(selection)


def preview_replay(
    settings: PipelineSettings, table: str, *, selection: RowSelection = _ALL
) -> ReplayPreview:
    with _open_replay(settings, table) as replay:
        return replay.preview(selection)


@contextmanager
def _open_replay(settings: PipelineSettings, table: str) -> Iterator[QuarantineReplay]:
    with open_for_command(settings, "quarantine replay") as pipeline:
        node = pipeline.graph.find(table)
        if node is not None and node.read_from is not None:
            raise deferred_error(pipeline.graph, node)
        if node is None or not node.is_stored:
            raise SpecError(
                "TABLE_NOT_FOUND",
                f"the pipeline has no table {table!r}",
                hint="tables: " + ", ".join(each.display for each in pipeline.graph.stored()),
            )
        flows = [pipeline.graph.flows[name] for name in node.flows]
        for flow in flows:
            pipeline.check_migration(flow)
        pipeline.lease(node)
        check_replay(node, flows)
        yield QuarantineReplay(pipeline, node)
