"""Rows out of quarantine into their table, exactly once, after a rule or the rows were repaired.

Two tables change, and Delta commits one at a time. So the decision about each row is stored first:

1. The rows of quarantine, as of one version, are judged and written to a staging folder, each with
   its destination. A small file that comes last says that they are all there.
2. The table gets the rows that pass.
3. Quarantine loses the files of that version and gets the rows that still break a rule.
4. The staging folder is removed.

Steps 2 and 3 carry the version as their fence. A replay that finds such a folder goes on with its
step 2 or 3, whatever the rules say by then: the decision was made already. Rows that came into
quarantine in between stay there.

Where only some rows are selected, only the files that have one are staged, and the small file names
them: step 3 removes these, and gives back their other rows as they were. A selection that moves
nothing leaves no commit and no fence, so that the next one may be about the same version.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.expectation import Expectation, OnViolation
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import Begun, FencedTable
from penstock._tables.files import StorageFiles
from penstock._tables.layout import TableRef
from penstock._tables.log_scan import file_identity
from penstock._tables.row_selection import RowSelection
from penstock._tables.schema import conform
from penstock._tables.selected_rows import SELECTED, SelectedRows, select_rows
from penstock.errors import PlanError, SpecError
from penstock.quality.rules import quoted
from penstock.quality.split import (
    DESTINATION,
    FAILED_RULES,
    QUARANTINE_COLUMNS,
    TO_QUARANTINE,
    TO_TABLE,
    split_rows,
)

STAGED, IN_TABLE, OUT_OF_QUARANTINE = "staged", "in table", "out of quarantine"
"""Steps after which a replay may die; given to `on_step`."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What one replay did.

    Attributes:
        table: As messages call it.
        version: Version of the quarantine whose rows were judged; `None` if there were none.
        chosen: Rows that were judged.
        moved: Those of them that are in the table now.
        kept: Those that still break a rule.
        resumed: An earlier replay had died; this one finished it.
        finished: What that one did, where it was about other rows than this one, which then did
            its own work.
    """

    table: str
    version: int | None
    chosen: int
    moved: int
    kept: int
    resumed: bool = False
    finished: "Replayed | None" = None


@dataclass(frozen=True, kw_only=True)
class ReplayPreview:
    """What a replay would do to the quarantine as it is.

    Attributes:
        table: As messages call it.
        version: Version of the quarantine; `None` if there is none.
        moves: Selected rows that pass.
        keeps: Selected rows that break a rule.
        by_rule: How many of these break each rule.
        unfinished: An earlier replay died, and would be finished first.
    """

    table: str
    version: int | None
    moves: int
    keeps: int
    by_rule: Mapping[str, int]
    unfinished: bool

    @property
    def chosen(self) -> int:
        """Rows that would be judged."""
        return self.moves + self.keeps


@dataclass(frozen=True, kw_only=True)
class _Staged:
    """A replay whose decisions are stored.

    Attributes:
        version: Of the quarantine.
        files: Those that lose their rows, by `file_identity`; `None` for all of the version.
        selection: Its record.
    """

    version: int
    files: frozenset[tuple[str, str]] | None = None
    selection: Mapping[str, Any]

    def text(self) -> str:
        """What the small file holds."""
        content: dict[str, Any] = {"quarantine_version": self.version}
        if self.files is not None:
            content |= {"files": sorted(self.files), "selection": self.selection}
        return json.dumps(content)

    @classmethod
    def of(cls, text: str) -> "_Staged":
        """What the small file says."""
        content = json.loads(text)
        files = content.get("files")
        return cls(
            version=int(content["quarantine_version"]),
            files=None if files is None else frozenset((path, vector) for path, vector in files),
            selection=content.get("selection", {}),
        )


class QuarantineReplay:
    """Replays the quarantine of one table. The caller holds the leases of pipeline and table.

    Args:
        spark: Classic session.
        pipeline: Name of the pipeline.
        target: The table; it must exist and only grow by appends.
        quarantine: Its quarantine; need not exist.
        staging: Place of the staging folder.
        expectations: Of the table, as they are now.
        on_step: Called after each step; tests die there.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        pipeline: str,
        target: TableRef,
        quarantine: TableRef,
        staging: str,
        expectations: Sequence[Expectation],
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._delta = DeltaJvm(spark)
        self._files = StorageFiles(spark)
        self._name = target.name
        self._flow = f"replay of {quarantine.name}"
        self._staging = staging
        self._rows, self._decided = f"{staging}/rows", f"{staging}/decided.json"
        self._read = f"{staging}/read"
        self._quarantine_path = quarantine.path
        self._expectations = expectations
        self._on_step = on_step
        self._exists = int(self._delta.snapshot(quarantine.path).version()) >= 0
        table_id = ""
        if self._exists:
            table_id = self._delta.metadata(self._delta.begin(quarantine.path)).id
        # A quarantine that was dropped and made anew counts its versions from the beginning.
        self._app_id = f"{pipeline}/{target.name}/replay/{table_id}"
        self._target = FencedTable(self._delta, target, self._app_id)
        self._quarantine = FencedTable(self._delta, quarantine, self._app_id)

    def run(self, selection: RowSelection) -> Replayed:
        """Finish what an earlier replay left; judge and move the selected rows.

        Where the earlier one was about the same selection, finishing it is all.

        Raises:
            PlanError: `QUARANTINE_CHANGED`, `QUARANTINE_ROWS_GONE`, `SCHEMA_INCOMPATIBLE`.
            SpecError: `QUARANTINE_SELECTION_INVALID`.
        """
        pending = self._pending()
        if pending is None:
            return self._begin(selection)
        finished = replace(self._finish(pending), resumed=True)
        if pending.selection == selection.record():
            return finished
        try:
            done = self._begin(selection)
        except (PlanError, SpecError) as error:
            said = f"an interrupted replay was finished first ({finished.moved:,} rows moved); then"
            raise type(error)(
                error.condition, f"{said}: {error.message}", hint=error.hint
            ) from error
        return replace(done, resumed=True, finished=finished)

    def preview(self, selection: RowSelection) -> ReplayPreview:
        """Judge the selected rows as they are now; nothing is changed.

        Raises:
            PlanError: `QUARANTINE_ROWS_GONE`.
            SpecError: `QUARANTINE_SELECTION_INVALID`.
        """
        version: int | None = None
        found: DataFrame | None = None
        if self._exists and selection.is_all:
            version = self._newest()
            found = self._all_rows(version)
        elif self._exists:
            selected = self._select(selection)
            version = selected.version
            found = None if selected.rows is None else selected.rows.where(SELECTED).drop(SELECTED)
        counts: Counter[str] = Counter()
        rules: Counter[str] = Counter()
        if found is not None:
            judged = self._judged(found).groupBy(DESTINATION, FAILED_RULES).count()
            for destination, broken, rows in judged.collect():
                counts[destination] += rows
                if destination == TO_QUARANTINE:
                    rules.update(dict.fromkeys(broken, rows))
        return ReplayPreview(
            table=self._name,
            version=version,
            moves=counts[TO_TABLE],
            keeps=counts[TO_QUARANTINE],
            by_rule=dict(rules.most_common()),
            unfinished=self._pending() is not None,
        )

    # -- steps ---------------------------------------------------------------------------------

    def _pending(self) -> _Staged | None:
        text = self._files.read(self._decided)
        return None if text is None else _Staged.of(text)

    def _newest(self) -> int:
        return int(self._delta.snapshot(self._quarantine_path).version())

    def _select(self, selection: RowSelection) -> SelectedRows:
        declared = [rule.name for rule in self._expectations]
        return select_rows(self._delta, self._quarantine.ref, selection, declared=declared)

    def _begin(self, selection: RowSelection) -> Replayed:
        self._files.delete_tree(self._staging)  # of a replay that died while it judged
        if not self._exists:
            return Replayed(table=self._name, version=None, chosen=0, moved=0, kept=0)
        if selection.is_all:
            staged = _Staged(version=self._newest(), selection={})
            found = self._all_rows(staged.version)
        else:
            selected = self._select(selection)
            staged = _Staged(
                version=selected.version,
                files=selected.files,
                selection=selection.record(),
            )
            if selected.rows is None:
                return Replayed(table=self._name, version=staged.version, chosen=0, moved=0, kept=0)
            # Read and decided upon once: a condition about the time chooses others a moment later.
            selected.rows.write.parquet(self._read)
            read = self._spark.read.parquet(self._read)
            found = read.where(SELECTED).drop(SELECTED)
        self._judged(found).write.parquet(self._rows)
        self._files.write(self._decided, staged.text())
        self._on_step(STAGED)
        try:
            return self._finish(staged)
        except Exception:
            # Nothing has changed yet, so nothing needs to be finished: it can be tried again.
            if not self._target.begin(staged.version).done:
                self._files.delete_tree(self._staging)
            raise

    def _all_rows(self, version: int) -> DataFrame:
        rows = self._spark.read.format("delta").option("versionAsOf", version)
        return rows.load(self._quarantine_path)

    def _judged(self, found: DataFrame) -> DataFrame:
        begun = self._target.begin(None)
        known = {name.lower() for name in found.columns}
        schema = begun.metadata.schema
        columns = [F.col(quoted(one)) for one in schema.names if one.lower() in known]
        data = conform(found.select(*columns), schema)
        # A row that breaks a fail rule must not stop the others: it stays where it is.
        rules = [
            replace(rule, on_violation=OnViolation.QUARANTINE)
            if rule.on_violation is OnViolation.FAIL
            else rule
            for rule in self._expectations
        ]
        split = split_rows(data, rules)
        if split is None or not split.quarantine:
            empty = [F.lit(None).alias(name) for name in QUARANTINE_COLUMNS]
            kept = found.select(*QUARANTINE_COLUMNS).schema
            typed = [
                column.cast(kept[name].dataType).alias(name)
                for name, column in zip(QUARANTINE_COLUMNS, empty, strict=True)
            ]
            return data.select("*", *typed, F.lit(TO_TABLE).alias(DESTINATION))
        return split.df.drop(*split.masks)

    def _finish(self, pending: _Staged) -> Replayed:
        moved = kept = 0
        version = pending.version
        is_open = not (self._target.begin(version).done and self._quarantine.begin(version).done)
        if is_open:
            staged = self._spark.read.parquet(self._rows)
            counts = {row[0]: int(row[1]) for row in staged.groupBy(DESTINATION).count().collect()}
            moved, kept = counts.get(TO_TABLE, 0), counts.get(TO_QUARANTINE, 0)
            if moved:
                self._fill_table(staged, version, moved)
                self._on_step(IN_TABLE)
                self._empty_quarantine(staged, pending, kept)
                self._on_step(OUT_OF_QUARANTINE)
        self._files.delete_tree(self._staging)
        return Replayed(
            table=self._name, version=version, chosen=moved + kept, moved=moved, kept=kept
        )

    def _fill_table(self, staged: DataFrame, version: int, rows: int) -> None:
        begun = self._target.begin(version)
        if begun.done:
            return
        good = staged.where(F.col(DESTINATION) == TO_TABLE)
        good = good.drop(DESTINATION, *QUARANTINE_COLUMNS)
        self._target.evolve(begun, good.schema, allow_missing=True, replaces=False)
        files = begun.transaction.writeFiles(good._jdf)
        record = self._record(version, rows)
        actions = list(self._delta.items(files))
        self._target.commit(begun, actions, version, record, complete=False)

    def _empty_quarantine(self, staged: DataFrame, pending: _Staged, kept: int) -> None:
        version = pending.version
        begun = self._quarantine.begin(version)
        if begun.done:
            return
        removed = self._removals(pending, begun)
        bad = staged.where(F.col(DESTINATION) == TO_QUARANTINE).drop(DESTINATION)
        schema = self._quarantine.evolve(begun, bad.schema, allow_missing=True, replaces=False)
        written, rows = [bad] if kept else [], kept
        if pending.files is not None:
            others = self._spark.read.parquet(self._read).where(~F.col(SELECTED)).drop(SELECTED)
            if count := others.count():
                written, rows = [*written, conform(others, schema)], rows + count
        added = [
            action
            for part in written
            for action in self._delta.items(begun.transaction.writeFiles(part._jdf))
        ]
        record = self._record(version, rows)
        self._quarantine.commit(begun, [*removed, *added], version, record, complete=True)

    def _record(self, version: int, rows: int) -> CommitResult:
        return CommitResult(
            flow=self._flow,
            app_id=self._app_id,
            batch_id=version,
            version=None,
            rows_written=rows,
        )

    def _removals(self, pending: _Staged, begun: Begun) -> list[Any]:
        """What removes the files that were staged, if they are as they were then.

        Files of rows that came into quarantine later are not among them.
        """
        staged = pending.files
        if staged is None:
            contents = self._delta.files_at(self._quarantine_path, pending.version)
            staged = frozenset(map(file_identity, contents))
        contents = self._delta.file_contents(begun.transaction.filterFiles())
        live = {file_identity(one): one for one in contents}
        if changed := staged - live.keys():
            number = self._rewriting(pending.version, begun.version, {path for path, _ in changed})
            raise PlanError(
                "QUARANTINE_CHANGED",
                f"the quarantine of {self._name} was rewritten (version {number}) while a replay "
                f"of its version {pending.version} was not finished: which of its rows are in the "
                "table already cannot be told any more",
                hint=f"restore it: RESTORE delta.`{self._quarantine_path}` TO VERSION AS OF "
                f"{number - 1}; then replay again",
            )
        return [file.remove() for file in self._delta.add_files([live[one] for one in staged])]

    def _rewriting(self, version: int, newest: int, paths: set[str]) -> int:
        """The first version after one that has removed a file."""
        for number in range(version + 1, newest + 1):
            for line in self._delta.commit_lines(self._quarantine_path, number) or ():
                removed = json.loads(line).get("remove")
                if removed is not None and removed["path"] in paths:
                    return number
        return version + 1
