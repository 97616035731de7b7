"""A changed flow on a new checkpoint: computed anew beside its table, then put in its place.

What is to be done is decided once and stored. The new table is built under the new epoch while the
old one stays as it is. The cut-over has three steps, each of them one commit or one file: the
quarantine, the table, the flow's state. Before the first, the flow is marked, so that no update
runs between the steps; whoever dies in the middle goes on with the next.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock._execution.flow_state import FlowState, state_of
from penstock._execution.tables import Commit
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import Event, MigrationProgress
from penstock._repair.migration_facts import MigrationFacts, changed_operators
from penstock._repair.migration_plan import (
    MigrationReport,
    check_columns,
    check_flow,
    steps_back,
    steps_forth,
    why_refused,
)
from penstock._repair.migration_record import (
    BUILDING,
    CUTTING,
    DONE,
    LEAVING,
    UNDOING,
    Migration,
    migration_of,
)
from penstock._repair.recording import Record, recording
from penstock._repair.shadow import Shadow
from penstock._tables.checkpoint_files import checkpoints
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import TableRef
from penstock._tables.swap_rows import restore_rows
from penstock.errors import PenstockError, PlanError
from penstock.sources.base import EARLIEST, SourceHistory, StartPosition
from penstock.sources.checkpoints import that_count
from penstock.sources.flow import source_history

PLANNED, BUILT = "planned", "built"
MARKED, QUARANTINED, REPLACED, SWITCHED = "marked", "quarantined", "replaced", "switched"
LEFT = "left"
"""Steps after which a migration may die; given to `on_step`, and kill points by `migration_`."""


@dataclass(frozen=True, kw_only=True)
class MigrationOptions:
    """What the user asked for.

    Attributes:
        begin: Where the sources are read from; the earliest by default.
        accept_less: Though the sources have less than the table was made of.
        resume: Go on with what was begun.
        abandon: Forget what was begun.
        undo: Go back to the table and the checkpoint before the last migration.
        execute: Carry the plan out; otherwise it is only reported.
    """

    begin: "StartPosition | None" = None
    accept_less: bool = False
    resume: bool = False
    abandon: bool = False
    undo: bool = False
    execute: bool = False


def migrate_flow(
    settings: PipelineSettings,
    flow: str,
    asked: MigrationOptions,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    told: Callable[[Event], None] = lambda _: None,
) -> MigrationReport:
    """Plan the migration of a flow, and carry it out; or go back.

    Called on the main thread. Holds the leases that an update holds.

    Args:
        settings: The pipeline.
        flow: Its name.
        asked: What to do.
        on_step: Called after each step that was stored.
        told: Gets the events.

    Raises:
        PenstockError: The pipeline runs, is wrong, the flow or its sources do not allow it; or what
            ends a flow.
    """
    checkpoints(settings)  # the storage must be on this machine: before Spark is started
    update_id = str(uuid.uuid4())
    with open_for_command(settings, "migrate", update_id=update_id) as pipeline:
        node = pipeline.flow(flow)

        def passed(step: str) -> None:
            kill_point(f"migration_{step}", node.flow.name, None)
            on_step(step)

        run = _Run(pipeline, node, check_flow(pipeline.graph, pipeline.settings, node), passed)
        if asked.abandon:
            return run.abandon()
        if run.is_leaving:
            raise _unfinished(node, "--abandon ends it: forgetting it was begun")
        wants_undo = asked.undo or (run.known is not None and run.known.stage == UNDOING)
        if run.is_open and not asked.resume and not (wants_undo and asked.undo):
            raise _unfinished(node)
        if asked.resume and not run.is_open:
            raise _not_begun(node, "was begun and is not done")
        report = run.plan_back() if wants_undo else run.plan(asked)
        if not (asked.execute or asked.resume):
            return report
        if report.refused is not None and not run.is_open:
            raise PlanError(
                "MIGRATION_WOULD_LOSE_HISTORY",
                f"flow {node.flow.name!r} is not migrated: {report.refused}",
                origin=node.flow.origin,
                hint="--accept-less does it nevertheless; or keep the table, and declare the "
                "changed query as a flow with a new name into a new table",
            )
        pipeline.lease(run.dataset)
        text = "back to the table before" if wants_undo else f"from {report.start}"
        about = {"migration": report.migration_id or run.new_id}
        with recording(
            settings, update_id, node, command="migration", about=about, text=text, told=told
        ) as record:
            return run.go_back(record, report) if wants_undo else run.go(record, report)


class _Run:
    """One call of the command."""

    def __init__(
        self,
        pipeline: OpenPipeline,
        node: "FlowNode",
        dataset: "DatasetNode",
        on_step: Callable[[str], None],
    ) -> None:
        self.dataset = dataset
        self.new_id = uuid.uuid4().hex
        self._pipeline = pipeline
        self._node = node
        self._on_step = on_step
        self._facts = MigrationFacts(pipeline, node, dataset)
        self._files = StorageFiles(pipeline.spark)
        self._folder = pipeline.tables.layout.migration_folder(node.flow.name)
        text = self._files.read(f"{self._folder}/migration.json")
        self.known = migration_of(text) if text else None
        if self.known is not None and self.known.stage != DONE:
            self._check_overtaken(self.known)

    @property
    def is_open(self) -> bool:
        """Whether something was begun and is not done."""
        return self.known is not None and self.known.stage != DONE

    @property
    def is_leaving(self) -> bool:
        """Whether it can only be forgotten: that was begun."""
        return self.known is not None and self.known.stage == LEAVING

    # -- plans ---------------------------------------------------------------------------------

    def plan(self, asked: MigrationOptions) -> MigrationReport:
        """What a migration does; fixes where it begins, unless that was fixed before."""
        pipeline, node = self._pipeline, self._node
        old = pipeline.state.flow(node.flow.name)
        table = self._facts.table()
        if old is None or old.stateful_operators is None or table is None:
            raise self._not_now("it has never run: there is nothing to migrate", "run the pipeline")
        if old.reset_pending:
            raise self._not_now("its reset was begun and is not done", "run the pipeline first")
        backfill = pipeline.tables.layout.backfill_folder(node.flow.name)
        if self._files.read(f"{backfill}/decided.json"):
            hint = f"end it first: penstock backfill {node.flow.name} --resume, or --abandon"
            raise self._not_now("its backfill was begun and is not done", hint)
        df, opened = pipeline.query(node)
        query = self._facts.query(df)
        columns = self._facts.columns(table["columns"], query["columns"])
        check_columns(self.dataset, table["properties"], columns)
        sources: tuple[SourceHistory, ...] = ()
        if self.is_open:
            assert self.known is not None
            self._check_query(self.known, query)
            migration = self.known
        else:
            every = checkpoints(pipeline.settings)
            own = [checkpoint for checkpoint in every if checkpoint.flow == node.flow.name]
            done = that_count(own, self._facts.replaced_at())
            now_ms = round(time.time() * 1000)
            begin = asked.begin or EARLIEST
            position, sources = source_history(opened, begin, done, now_ms)
            migration = Migration(
                migration_id=self.new_id,
                flow=node.flow.name,
                stage=BUILDING,
                start=str(begin),
                position=position,
                table_id=table["id"],
                query=query,
                old=asdict(old),
                old_version=table["version"],
                old_quarantine=self._facts.quarantine_version(),
            )
        self._planned = migration
        readers = self._facts.readers()
        refused = None if asked.accept_less else why_refused(sources)
        return MigrationReport(
            flow=node.flow.name,
            target=self.dataset.display,
            state="planned",
            migration_id=migration.migration_id if self.is_open else None,
            resumed=self.is_open,
            start=migration.start,
            old_epoch=str(migration.old["epoch"]),
            new_epoch=None,
            old_version=migration.old_version,
            new_version=None,
            rows=table["rows"],
            size=table["size"],
            columns=columns,
            operators=changed_operators(old, query),
            sources=sources,
            readers=readers,
            refused=refused,
            steps=tuple(
                steps_forth(
                    node.flow.name,
                    self.dataset.display,
                    sources,
                    readers,
                    table,
                    start=migration.start,
                    old_epoch=str(migration.old["epoch"]),
                )
            ),
        )

    def plan_back(self) -> MigrationReport:
        """What going back does."""
        node, known = self._node, self.known
        if known is None:
            raise _not_begun(node, "could be taken back")
        if known.stage not in (DONE, UNDOING):
            raise _unfinished(node)
        state = self._pipeline.state.flow(node.flow.name)
        table = self._facts.table()
        if known.stage == DONE and (
            state is None
            or state.epoch != known.migration_id
            or table is None
            or table["id"] != known.table_id
        ):
            raise _not_begun(node, "could be taken back: it has got another checkpoint since")
        layout = self._pipeline.tables.layout
        place = layout.checkpoint_path(node.flow.name, str(known.old["epoch"]))
        if self._files.read(f"{place}/metadata") is None:
            raise PlanError(
                "MIGRATION_NOT_POSSIBLE",
                f"flow {node.flow.name!r} cannot go back: its old checkpoint is gone from {place}",
                origin=node.flow.origin,
                hint="restore it; or migrate to the old query, which computes the table anew",
            )
        df, _ = self._pipeline.query(node)
        before = tuple(known.old["stateful_operators"] or ())
        is_old = tuple(self._facts.query(df)["operators"]) == before
        readers = self._facts.readers()
        return MigrationReport(
            flow=node.flow.name,
            target=self.dataset.display,
            state="planned",
            migration_id=known.migration_id,
            resumed=known.stage == UNDOING,
            start=f"version {known.old_version}",
            old_epoch=str(known.old["epoch"]),
            new_epoch=known.migration_id,
            old_version=known.old_version,
            new_version=None if table is None else table["version"],
            rows=None if table is None else table["rows"],
            size=None if table is None else table["size"],
            columns=(),
            operators=(),
            sources=(),
            readers=readers,
            refused=None,
            steps=tuple(
                steps_back(
                    self.dataset.display,
                    readers,
                    version=known.old_version,
                    epoch=str(known.old["epoch"]),
                    is_old_query=is_old,
                )
            ),
        )

    # -- doing it ------------------------------------------------------------------------------

    def go(self, record: Record, report: MigrationReport) -> MigrationReport:
        """Build the new table, and let it take over."""
        migration, shadow = self._planned, self._shadow(self._planned)

        def tell(step: str, message: str, **figures: Any) -> None:
            body = MigrationProgress(
                migration_id=migration.migration_id, step=step, figures=figures
            )
            record.emit(Event(record.flow, body, message))

        if self.is_open:
            tell("resumed", f"goes on: {migration.stage}")
        else:
            self._forget(self.known)
            self._save(migration)
            tell("planned", report.start)
            self._on_step(PLANNED)
        if migration.stage == BUILDING:

            def told(batches: int, rows: int) -> None:
                tell("batch", f"{batches} batches are in", batches=batches, rows=rows)

            shadow.build(dict(migration.position), origin=record.flow, emit=record.emit, told=told)
            tell("built", "the new table has all that its sources have")
            self._on_step(BUILT)
            migration = self._mark(migration)
        self._cut(migration, shadow, record)
        tell("done", "the new table has taken over")
        table = self._facts.table()
        return replace(
            report,
            state="done",
            migration_id=migration.migration_id,
            new_epoch=migration.migration_id,
            old_version=migration.old_version,
            new_version=None if table is None else table["version"],
            rows=None if table is None else table["rows"],
        )

    def _mark(self, migration: Migration) -> Migration:
        """Keep updates away until the cut-over is done, and note what there is."""
        state, name = self._pipeline.state, self._node.flow.name
        old, table = state.flow(name), self._facts.table()
        if old is None or table is None or table["id"] != migration.table_id:
            raise PlanError(
                "MIGRATION_NOT_POSSIBLE",
                f"{self.dataset.display} was dropped or made anew since the migration began",
                origin=self._node.flow.origin,
                hint="--abandon forgets the migration",
            )
        migration = replace(
            migration,
            stage=CUTTING,
            old=asdict(replace(old, migration=None)),
            old_version=table["version"],
            old_quarantine=self._facts.quarantine_version(),
        )
        # The mark first: an update between the two would make what is noted wrong.
        state.save_flow(name, replace(old, migration=migration.migration_id))
        self._save(migration)
        self._on_step(MARKED)
        return migration

    def _cut(self, migration: Migration, shadow: "Shadow", record: Record) -> None:
        state, name = self._pipeline.state, self._node.flow.name
        old = state.flow(name)
        # Once it goes on with the new checkpoint, an update may have added to the table.
        if old is not None and old.epoch != migration.migration_id:
            made = shadow.flow_state()
            assert made is not None
            state.save_flow(name, replace(old, migration=migration.migration_id))
            result = shadow.take_over(self._pipeline.tables, lambda: self._on_step(QUARANTINED))
            if not result.replayed:
                flow = replace(record.flow, batch_id=result.batch_id)
                record.emit(Commit(result, self.dataset.key).event(flow, "the migrated table"))
            self._on_step(REPLACED)
            state.save_flow(name, replace(made, target_id=migration.table_id))
            self._on_step(SWITCHED)
        self._save(replace(migration, stage=DONE))
        self._files.delete_tree(shadow.folder)

    def go_back(self, record: Record, report: MigrationReport) -> MigrationReport:
        """Restore the table, its quarantine and the flow's state."""
        known, name = self.known, self._node.flow.name
        assert known is not None
        state = self._pipeline.state
        now = state.flow(name)
        # Once it goes on with the old checkpoint, an update may have added to the table.
        if now is not None and now.epoch == known.migration_id:
            if known.stage != UNDOING or now.migration is None:  # else died with it marked
                version = self._facts.quarantine_version()
                known = replace(known, stage=UNDOING, new_quarantine=version)
                self._save(known)
            state.save_flow(name, replace(now, migration=known.migration_id))
            self._on_step(MARKED)
            self._restore(known, now)
            state.save_flow(name, state_of(known.old))
            self._on_step(SWITCHED)
        self._files.write(f"{self._folder}/migration.json", "")
        body = MigrationProgress(migration_id=known.migration_id, step="undone")
        record.emit(Event(record.flow, body, "the old table is back"))
        return replace(report, state="undone")

    def _restore(self, known: Migration, now: "FlowState") -> None:
        """The quarantine first: if anything is gone, the table is still the new one.

        Then all is as it was before going back began.
        """
        tables, spark = self._pipeline.tables, self._pipeline.spark
        target = TableRef(tables.paths[self.dataset.key], self.dataset.display)
        has_quarantine = self._facts.quarantine_version() >= 0
        try:
            if has_quarantine:
                restore_rows(spark, self._quarantine, known.old_quarantine)
            self._on_step(QUARANTINED)
            restore_rows(spark, target, known.old_version)
        except PenstockError:
            if has_quarantine and self._facts.quarantine_version() != known.new_quarantine:
                restore_rows(spark, self._quarantine, known.new_quarantine)
            self._pipeline.state.save_flow(known.flow, replace(now, migration=None))
            self._save(replace(known, stage=DONE))
            raise
        self._on_step(REPLACED)

    @property
    def _quarantine(self) -> "TableRef":
        place = self._pipeline.tables.quarantine_path(self.dataset)
        return TableRef(place, f"{self.dataset.display}_quarantine")

    def abandon(self) -> MigrationReport:
        """Forget what was begun, as long as the table is the old one."""
        node, known = self._node, self.known
        if known is None or known.stage == DONE:
            raise _not_begun(node, "was begun and is not done")
        state = self._pipeline.state.flow(node.flow.name)
        if known.stage != BUILDING:
            self._unmark(known)
        elif state is not None and state.migration is not None:
            self._pipeline.state.save_flow(node.flow.name, replace(state, migration=None))
        self._forget(known)
        layout = self._pipeline.tables.layout
        self._files.delete_tree(layout.checkpoint_path(node.flow.name, known.migration_id))
        return MigrationReport(
            flow=node.flow.name,
            target=self.dataset.display,
            state="abandoned",
            migration_id=known.migration_id,
            resumed=True,
            start=known.start,
            old_epoch=str(known.old["epoch"]),
            new_epoch=None,
            old_version=known.old_version,
            new_version=None,
            rows=None,
            size=None,
            steps=("the table and its checkpoint are as they were; the new ones are deleted",),
        )

    def _unmark(self, known: Migration) -> None:
        """Let updates run again whose table was not replaced, because Delta refused it, say."""
        table, state = self._facts.table(), self._pipeline.state.flow(known.flow)
        if self.is_leaving and state is not None and state.migration is None:
            return  # an update may have run since: only files are left
        is_possible = self.is_leaving or (
            known.stage == CUTTING and table is not None and table["version"] == known.old_version
        )
        if not is_possible or state is None or state.epoch == known.migration_id:
            raise _unfinished(self._node)
        self._pipeline.lease(self.dataset)
        # Noted first: the cut-over takes a quarantine that it has replaced once for replaced.
        self._save(replace(known, stage=LEAVING))
        version = self._facts.quarantine_version()
        if version >= 0 and version != known.old_quarantine:
            restore_rows(self._pipeline.spark, self._quarantine, known.old_quarantine)
        self._on_step(LEFT)
        self._pipeline.state.save_flow(known.flow, state_of(known.old))

    # -- parts ---------------------------------------------------------------------------------

    def _not_now(self, reason: str, hint: str) -> PlanError:
        name = self._node.flow.name
        return PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"flow {name!r} cannot be migrated now: {reason}",
            origin=self._node.flow.origin,
            hint=hint,
        )

    def _shadow(self, migration: Migration) -> "Shadow":
        pipeline = self._pipeline
        return Shadow(
            spark=pipeline.spark,
            graph=pipeline.graph,
            settings=pipeline.settings,
            evaluator=pipeline.evaluator,
            source=pipeline.source,
            state=pipeline.state,
            node=self._node,
            dataset=self.dataset,
            epoch=migration.migration_id,
            folder=f"{self._folder}/{migration.migration_id}",
        )

    def _save(self, migration: Migration) -> None:
        text = json.dumps(asdict(migration), indent=1)
        self._files.write(f"{self._folder}/migration.json", text)

    def _forget(self, known: Migration | None) -> None:
        """Remove what an earlier migration left behind."""
        if known is not None:
            self._files.write(f"{self._folder}/migration.json", "")
        self._files.delete_tree(self._folder)

    def _check_overtaken(self, known: Migration) -> None:
        """A full refresh or a reset in between has made what was begun pointless."""
        state = self._pipeline.state.flow(self._node.flow.name)
        mine = (known.migration_id, known.old["epoch"])
        if known.stage == BUILDING or (state is not None and state.epoch in mine):
            return
        self._forget(known)
        self.known = None

    def _check_query(self, known: Migration, query: Mapping[str, Any]) -> None:
        if known.stage != BUILDING or dict(known.query) == dict(query):
            return
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"the query of flow {self._node.flow.name!r} changed since its migration began",
            origin=self._node.flow.origin,
            hint="--abandon forgets the migration; then begin anew",
        )


def _unfinished(node: "FlowNode", hint: str = "") -> PlanError:
    return PlanError(
        "MIGRATION_UNFINISHED",
        f"a migration of flow {node.flow.name!r} was begun and is not done",
        origin=node.flow.origin,
        hint=hint
        or "--resume goes on with it; --abandon forgets it, unless the table is being replaced",
    )


def _not_begun(node: "FlowNode", what: str) -> PlanError:
    return PlanError(
        "MIGRATION_NOT_BEGUN",
        f"flow {node.flow.name!r} has no migration that {what}",
        hint=f"begin one: penstock migrate {node.flow.name}",
    )
