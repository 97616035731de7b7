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
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.expectation import Expectation, OnViolation
from penstock._tables.commits import CommitResult
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.fenced import FencedTable
from penstock._tables.files import StorageFiles
from penstock._tables.layout import TableRef
from penstock._tables.schema import conform
from penstock.errors import PlanError
from penstock.quality.rules import quoted
from penstock.quality.split import (
    DESTINATION,
    QUARANTINE_COLUMNS,
    TO_QUARANTINE,
    TO_TABLE,
    split_rows,
)

STAGED, IN_TABLE, OUT_OF_QUARANTINE = "staged", "in table", "out of quarantine"
"""Steps after which a replay may die; given to `reached`."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What one replay did.

    Attributes:
        table: As messages call it.
        version: Version of the quarantine whose rows were judged; `None` if there were none.
        moved: Rows that are in the table now.
        kept: Rows that still break a rule.
        resumed: An earlier replay had died; this one finished it.
    """

    table: str
    version: int | None
    moved: int
    kept: int
    resumed: bool = False


class QuarantineReplay:
    """Replays the quarantine of one table. The caller holds the leases of pipeline and table.

    Args:
        spark: Classic session.
        pipeline: Name of the pipeline.
        target: The table; it must exist and only grow by appends.
        quarantine: Its quarantine; need not exist.
        staging: Place of the staging folder.
        expectations: Of the table, as they are now.
        reached: Called after each step; tests die there.
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
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._delta = DeltaJvm(spark)
        self._files = StorageFiles(spark)
        self._name = target.name
        self._flow = f"replay of {quarantine.name}"
        self._staging = staging
        self._rows, self._decided = f"{staging}/rows", f"{staging}/decided.json"
        self._quarantine_path = quarantine.path
        self._expectations = expectations
        self._reached = reached
        self._exists = int(self._delta.snapshot(quarantine.path).version()) >= 0
        table_id = ""
        if self._exists:
            table_id = self._delta.metadata(self._delta.begin(quarantine.path)).id
        # A quarantine that was dropped and made anew counts its versions from the beginning.
        self._app_id = f"{pipeline}/{target.name}/replay/{table_id}"
        self._target = FencedTable(self._delta, target, self._app_id)
        self._quarantine = FencedTable(self._delta, quarantine, self._app_id)

    def run(self) -> Replayed:
        """Finish what an earlier replay left, or judge and move the rows that are there.

        Raises:
            PlanError: `QUARANTINE_CHANGED`, `SCHEMA_INCOMPATIBLE`.
        """
        pending = self._staged_version()
        if pending is not None:
            return replace(self._finish(pending), resumed=True)
        self._files.delete_tree(self._staging)  # of a replay that died while it judged
        if not self._exists:
            return Replayed(table=self._name, version=None, moved=0, kept=0)
        version = int(self._delta.snapshot(self._quarantine_path).version())
        self._judged(version).write.parquet(self._rows)
        self._files.write(self._decided, json.dumps({"quarantine_version": version}))
        self._reached(STAGED)
        try:
            return self._finish(version)
        except Exception:
            # Nothing has changed yet, so nothing needs to be finished: it can be tried again.
            if not self._target.begin(version).done:
                self._files.delete_tree(self._staging)
            raise

    # -- steps ---------------------------------------------------------------------------------

    def _staged_version(self) -> int | None:
        text = self._files.read(self._decided)
        return None if text is None else int(json.loads(text)["quarantine_version"])

    def _judged(self, version: int) -> DataFrame:
        rows = self._spark.read.format("delta").option("versionAsOf", version)
        found = rows.load(self._quarantine_path)
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

    def _finish(self, version: int) -> Replayed:
        moved = kept = 0
        is_open = not (self._target.begin(version).done and self._quarantine.begin(version).done)
        if is_open:
            staged = self._spark.read.parquet(self._rows)
            counts = {row[0]: int(row[1]) for row in staged.groupBy(DESTINATION).count().collect()}
            moved, kept = counts.get(TO_TABLE, 0), counts.get(TO_QUARANTINE, 0)
            if moved:
                self._fill_table(staged, version, moved)
                self._reached(IN_TABLE)
                self._empty_quarantine(staged, version, kept)
                self._reached(OUT_OF_QUARANTINE)
        self._files.delete_tree(self._staging)
        return Replayed(table=self._name, version=version, moved=moved, kept=kept)

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

    def _empty_quarantine(self, staged: DataFrame, version: int, rows: int) -> None:
        begun = self._quarantine.begin(version)
        if begun.done:
            return
        later = self._added_since(version, begun.version)
        live = list(self._delta.items(begun.transaction.filterFiles()))
        removed = [file.remove() for file in live if str(file.path()) not in later]
        bad = staged.where(F.col(DESTINATION) == TO_QUARANTINE).drop(DESTINATION)
        self._quarantine.evolve(begun, bad.schema, allow_missing=True, replaces=False)
        files = begun.transaction.writeFiles(bad._jdf) if rows else None
        added = [] if files is None else list(self._delta.items(files))
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

    def _added_since(self, version: int, newest: int) -> set[str]:
        """Files of rows that came into quarantine after they were judged."""
        added: set[str] = set()
        for number in range(version + 1, newest + 1):
            lines = self._delta.commit_lines(self._quarantine_path, number)
            actions: list[dict[str, Any]] = [json.loads(line) for line in lines or ()]
            if lines is None or any("remove" in action for action in actions):
                raise PlanError(
                    "QUARANTINE_CHANGED",
                    f"the quarantine of {self._name} was rewritten (version {number}) while a "
                    f"replay of its version {version} was not finished: which of its rows are in "
                    "the table already cannot be told any more",
                    hint=f"restore it: RESTORE delta.`{self._quarantine_path}` TO VERSION AS OF "
                    f"{number - 1}; then replay again",
                )
            added.update(action["add"]["path"] for action in actions if "add" in action)
        return added
