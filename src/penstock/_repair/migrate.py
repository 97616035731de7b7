"""Gives a changed flow a new checkpoint: builds a new table, then replaces the old one with it.

The plan is stored in a journal. The new table is built under the new epoch while the old one is
unchanged. The cut-over has three steps, each of them one commit or one file: the quarantine, the
table, the flow's state. Before the first, the flow is marked, so that no update runs between the
steps; an interrupted cut-over resumes with the next one.
"""

import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock._execution.file_states import forget_listings
from penstock._execution.flow_state import FlowState, state_of
from penstock._execution.writers import Commit
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._model.quantity import plural
from penstock._observe.events import Event, MigrationProgress
from penstock._repair.backfill import backfill_journal
from penstock._repair.journal import Journal, Record, recording
from penstock._repair.migration_plan import (
    BUILDING,
    CUTTING,
    DONE,
    LEAVING,
    UNDOING,
    Migration,
    MigrationFacts,
    MigrationReport,
    changed_columns,
    changed_operators,
    check_columns,
    check_flow,
    migration_of,
    not_possible,
    steps_back,
    steps_forth,
    why_refused,
)
from penstock._repair.quarantine_replay import replay_journal
from penstock._repair.reading import pipeline_storage
from penstock._repair.shadow import Shadow, restore_rows
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.read.checkpoint_files import checkpoints
from penstock.errors import PenstockError, PlanError
from penstock.sources.base import EARLIEST, StartPosition, StartReport
from penstock.sources.checkpoints import that_count
from penstock.sources.flow import source_history

PLANNED, BUILT = "planned", "built"
MARKED, QUARANTINED, REPLACED, SWITCHED = "marked", "quarantined", "replaced", "switched"
LEFT = "left"
"""Steps after which a migration may be interrupted; prefixed with `migration_`, kill points."""


@dataclass(frozen=True, kw_only=True)
class MigrationOptions:
    begin: StartPosition | None = None  # None means the earliest
    accept_less: bool = False  # migrate even if the sources have lost rows of the table
    resume: bool = False
    abandon: bool = False
    undo: bool = False
    execute: bool = False  # otherwise the plan is only reported


def migrate_flow(
    settings: PipelineSettings, flow: str, options: MigrationOptions
) -> MigrationReport:
    """Plan the migration of a flow and carry it out, or undo one.

    Called on the main thread. Holds the leases of an update.
    """
    with (
        open_for_command(settings, "migrate", records=True) as pipeline,
        pipeline_storage(pipeline, flow) as stored,
    ):
        node = pipeline.flow(flow)
        dataset = check_flow(pipeline.graph, settings, node)
        run = _Run(pipeline, node, dataset, stored.settings)
        if options.abandon:
            return run.abandon()
        if run.stage == LEAVING:
            raise _unfinished(node, "--abandon ends it: its removal was started")
        undoes = options.undo or run.stage == UNDOING
        if run.is_open and not options.resume and not options.undo:
            raise _unfinished(node)
        if options.resume and not run.is_open:
            raise _not_begun(node, "no unfinished migration")
        report = run.plan_back() if undoes else run.plan(options)
        if not (options.execute or options.resume):
            return report
        if not run.is_open:
            _check_refused(node, report)
        pipeline.lease(run.dataset)
        text = "undo" if undoes else f"from {report.start}"
        with recording(
            pipeline,
            node,
            command="migration",
            properties={"migration": report.migration_id or run.new_id},
            text=text,
        ) as record:
            return run.undo(record, report) if undoes else run.execute(record, report)


def check_migration(pipeline: OpenPipeline, flow: str, options: MigrationOptions) -> None:
    """Refuse a migration that `migrate_flow` would refuse."""
    node = pipeline.flow(flow)
    dataset = check_flow(pipeline.graph, pipeline.settings, node)
    with pipeline_storage(pipeline, flow) as stored:
        run = _Run(pipeline, node, dataset, stored.settings)
        _check_refused(node, run.plan(options))


def _check_refused(node: FlowNode, report: MigrationReport) -> None:
    if report.refused is not None:
        raise PlanError(
            "MIGRATION_WOULD_LOSE_HISTORY",
            f"flow {node.flow.name!r} is not migrated: {report.refused}",
            origin=node.flow.origin,
            hint="--accept-less migrates it anyway; or keep the table, and declare the changed "
            "query as a flow with a new name into a new table",
        )


class _Run:
    def __init__(
        self,
        pipeline: OpenPipeline,
        node: FlowNode,
        dataset: DatasetNode,
        stored: PipelineSettings,  # with the checkpoints of the flow on this machine
    ) -> None:
        self.dataset = dataset
        self._stored = stored
        self.new_id = uuid.uuid4().hex
        self._pipeline = pipeline
        self._node = node
        self._quarantine = pipeline.tables.quarantine(dataset)
        self._facts = MigrationFacts(pipeline, node, dataset)
        self._files = StorageFiles(pipeline.spark)
        folder = pipeline.tables.layout.migration_folder(node.flow.name)
        self._journal = Journal(self._files, folder, migration_of, "migration.json")
        self.known = self._journal.load()
        if self.known is not None and self.is_open:
            self._check_overtaken(self.known)

    def _after(self, step: str) -> None:
        kill_point(f"migration_{step}", self._node.flow.name, None)

    @property
    def stage(self) -> str:
        return DONE if self.known is None else self.known.stage

    @property
    def is_open(self) -> bool:
        return self.stage != DONE

    def plan(self, options: MigrationOptions) -> MigrationReport:
        """Plan a migration with resolved start positions; an unfinished one keeps its positions."""
        pipeline, node = self._pipeline, self._node
        old = pipeline.state.flow(node.flow.name)
        table = self._facts.table()
        if old is None or old.stateful_operators is None or table is None:
            raise self._not_now("it has never run", "run the pipeline")
        if old.reset_pending:
            raise self._not_now("its reset is unfinished", "run the pipeline first")
        layout = pipeline.tables.layout
        if backfill_journal(self._files, layout, node.flow.name).load() is not None:
            hint = f"end it first: penstock backfill {node.flow.name} --resume, or --abandon"
            raise self._not_now("its backfill is unfinished", hint)
        self._check_replay()
        df, opened = pipeline.query(node)
        query = self._facts.query(df)
        columns: tuple[str, ...] = ()
        if self.dataset.declared.schema is None:
            columns = changed_columns(table["columns"], query["columns"])
        check_columns(self.dataset, table["properties"], columns)
        sources: tuple[StartReport, ...] = ()
        if self.is_open:
            assert self.known is not None
            migration = self.known
            if migration.stage == BUILDING and dict(migration.query) != query:
                raise not_possible(
                    node,
                    f"the query of flow {node.flow.name!r} changed since its migration was started",
                    "--abandon discards the migration; then start it again",
                )
        else:
            own = [each for each in checkpoints(self._stored) if each.flow == node.flow.name]
            relevant = that_count(own, self._facts.replaced_at())
            now_ms = round(time.time() * 1000)
            begin = options.begin or EARLIEST
            position, sources = source_history(opened, begin, relevant, now_ms)
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
        refused = None if options.accept_less else why_refused(sources)
        return replace(
            self._report(migration, "planned", resumed=self.is_open),
            migration_id=migration.migration_id if self.is_open else None,
            rows=table["rows"],
            size=table["size"],
            columns=columns,
            operators=changed_operators(old, query),
            sources=sources,
            readers=readers,
            refused=refused,
            steps=tuple(steps_forth(migration, self.dataset.display, sources, readers, table)),
        )

    def plan_back(self) -> MigrationReport:
        node, known = self._node, self.known
        if known is None:
            raise _not_begun(node, "no migration to undo")
        if known.stage not in (DONE, UNDOING):
            raise _unfinished(node)
        state = self._pipeline.state.flow(node.flow.name)
        table = self._facts.table() or {}
        self._check_replay()
        has_epoch = state is not None and state.epoch == known.migration_id
        if known.stage == DONE and not (has_epoch and table.get("id") == known.table_id):
            raise _not_begun(node, "no migration to undo: it has a new checkpoint since")
        layout = self._pipeline.tables.layout
        path = layout.checkpoint_path(node.flow.name, str(known.old["epoch"]))
        if self._files.read(f"{path}/metadata") is None:
            raise not_possible(
                node,
                f"the migration of flow {node.flow.name!r} cannot be undone: its old checkpoint "
                f"{path} does not exist any more",
                "restore it; or migrate to the old query, which recomputes the table",
            )
        df, _ = self._pipeline.query(node)
        before = tuple(known.old["stateful_operators"] or ())
        is_old = tuple(self._facts.query(df)["operators"]) == before
        readers = self._facts.readers()
        return replace(
            self._report(known, "planned", resumed=known.stage == UNDOING),
            start=f"version {known.old_version}",
            new_epoch=known.migration_id,
            new_version=table.get("version"),
            rows=table.get("rows"),
            size=table.get("size"),
            readers=readers,
            steps=tuple(steps_back(known, self.dataset.display, readers, is_old_query=is_old)),
        )

    def execute(self, record: Record, report: MigrationReport) -> MigrationReport:
        migration = self._planned
        folder = f"{self._journal.folder}/{migration.migration_id}"
        shadow = Shadow(self._pipeline, self._node, self.dataset, migration.migration_id, folder)

        def emit(step: str, message: str, **figures: Any) -> None:
            body = MigrationProgress(
                migration_id=migration.migration_id, step=step, figures=figures
            )
            record.emit(Event(record.flow, body, message))

        if self.is_open:
            emit("resumed", f"resumed in stage {migration.stage}")
        else:
            self._journal.delete()  # with the files of an earlier migration
            self._journal.save(migration)
            emit("planned", report.start)
            self._after(PLANNED)
        if migration.stage == BUILDING:
            if (old := self._pipeline.state.flow(self._node.flow.name)) is not None:
                # The build deletes messages about files that the old checkpoint has not read.
                layout = self._pipeline.tables.layout
                forget_listings(self._files, layout, self._node.flow.name, old.epoch)

            def on_batch(batches: int, rows: int) -> None:
                emit("batch", f"{plural(batches, 'batch')} committed", batches=batches, rows=rows)

            position = dict(migration.position)
            shadow.build(position, origin=record.flow, emit=record.emit, on_batch=on_batch)
            emit("built", "the new table has all rows of its sources")
            self._after(BUILT)
            migration = self._mark(migration)
        self._cut(migration, shadow, record)
        emit("done", "the new table has replaced the old one")
        table = self._facts.table() or {}
        return replace(
            report,
            state="done",
            migration_id=migration.migration_id,
            new_epoch=migration.migration_id,
            old_version=migration.old_version,
            new_version=table.get("version"),
            rows=table.get("rows"),
        )

    def _mark(self, migration: Migration) -> Migration:
        """Block updates until the cut-over is done, and record the current versions."""
        state, name = self._pipeline.state, self._node.flow.name
        old, table = state.flow(name), self._facts.table()
        if old is None or table is None or table["id"] != migration.table_id:
            raise not_possible(
                self._node,
                f"{self.dataset.display} was dropped or recreated since the migration was started",
                "--abandon discards the migration",
            )
        migration = replace(
            migration,
            stage=CUTTING,
            old=asdict(replace(old, migration=None)),
            old_version=table["version"],
            old_quarantine=self._facts.quarantine_version(),
        )
        # The mark first: an update between the two would make the recorded versions wrong.
        state.save_flow(name, replace(old, migration=migration.migration_id))
        self._journal.save(migration)
        self._after(MARKED)
        return migration

    def _cut(self, migration: Migration, shadow: Shadow, record: Record) -> None:
        state, name = self._pipeline.state, self._node.flow.name
        old = state.flow(name)
        # Once the flow has the new checkpoint, an update may have added rows to the table.
        if old is not None and old.epoch != migration.migration_id:
            new = shadow.flow_state()
            assert new is not None
            state.save_flow(name, replace(old, migration=migration.migration_id))
            result = shadow.replace_tables(lambda: self._after(QUARANTINED))
            if not result.replayed:
                flow = replace(record.flow, batch_id=result.batch_id)
                record.emit(Commit(result, self.dataset.key).event(flow, "the migrated table"))
            self._after(REPLACED)
            state.save_flow(name, replace(new, target_id=migration.table_id))
            self._after(SWITCHED)
        self._journal.save(replace(migration, stage=DONE))
        self._files.delete_tree(shadow.folder)

    def undo(self, record: Record, report: MigrationReport) -> MigrationReport:
        known, name = self.known, self._node.flow.name
        assert known is not None
        state = self._pipeline.state
        now = state.flow(name)
        # Once the flow has the old checkpoint, an update may have added rows to the table.
        if now is not None and now.epoch == known.migration_id:
            # Otherwise, the flow was marked before a kill.
            if known.stage != UNDOING or now.migration is None:
                version = self._facts.quarantine_version()
                known = replace(known, stage=UNDOING, new_quarantine=version)
                self._journal.save(known)
            state.save_flow(name, replace(now, migration=known.migration_id))
            self._after(MARKED)
            self._restore(known, now)
            state.save_flow(name, state_of(known.old))
            self._after(SWITCHED)
        self._journal.clear()
        body = MigrationProgress(migration_id=known.migration_id, step="undone")
        record.emit(Event(record.flow, body, "the old table is restored"))
        return replace(report, state="undone")

    def _restore(self, known: Migration, now: FlowState) -> None:
        """Restore quarantine and table; after a failure, both are as before the undo.

        The quarantine first: if files of it were deleted, the table is still unchanged.
        """
        tables, spark = self._pipeline.tables, self._pipeline.spark
        has_quarantine = self._facts.quarantine_version() >= 0
        try:
            if has_quarantine:
                restore_rows(spark, self._quarantine, known.old_quarantine)
            self._after(QUARANTINED)
            restore_rows(spark, tables.table(self.dataset), known.old_version)
        except PenstockError:
            if has_quarantine and self._facts.quarantine_version() != known.new_quarantine:
                restore_rows(spark, self._quarantine, known.new_quarantine)
            self._pipeline.state.save_flow(known.flow, replace(now, migration=None))
            self._journal.save(replace(known, stage=DONE))
            raise
        self._after(REPLACED)

    def abandon(self) -> MigrationReport:
        node, known = self._node, self.known
        if known is None or known.stage == DONE:
            raise _not_begun(node, "no unfinished migration")
        state = self._pipeline.state.flow(node.flow.name)
        if known.stage != BUILDING:
            self._unmark(known)
        elif state is not None and state.migration is not None:
            self._pipeline.state.save_flow(node.flow.name, replace(state, migration=None))
        self._journal.delete()
        layout = self._pipeline.tables.layout
        self._files.delete_tree(layout.checkpoint_path(node.flow.name, known.migration_id))
        steps = ("the table and its checkpoint are unchanged; the new ones are deleted",)
        return replace(self._report(known, "abandoned", resumed=False), steps=steps)

    def _unmark(self, known: Migration) -> None:
        """Allow updates again if the table was not replaced, for example because Delta refused."""
        table, state = self._facts.table(), self._pipeline.state.flow(known.flow)
        if known.stage == LEAVING and state is not None and state.migration is None:
            return  # an update may have run since: only files are left to delete
        is_possible = known.stage == LEAVING or (
            known.stage == CUTTING and table is not None and table["version"] == known.old_version
        )
        if not is_possible or state is None or state.epoch == known.migration_id:
            raise _unfinished(self._node)
        self._pipeline.lease(self.dataset)
        # Saved first: a resumed cut-over would skip the quarantine that it has replaced.
        self._journal.save(replace(known, stage=LEAVING))
        version = self._facts.quarantine_version()
        if version >= 0 and version != known.old_quarantine:
            restore_rows(self._pipeline.spark, self._quarantine, known.old_quarantine)
        self._after(LEFT)
        self._pipeline.state.save_flow(known.flow, state_of(known.old))

    def _report(self, migration: Migration, state: str, *, resumed: bool) -> MigrationReport:
        return MigrationReport(
            flow=self._node.flow.name,
            target=self.dataset.display,
            state=state,
            migration_id=migration.migration_id,
            resumed=resumed,
            start=migration.start,
            old_epoch=str(migration.old["epoch"]),
            old_version=migration.old_version,
        )

    def _not_now(self, reason: str, hint: str) -> PlanError:
        name = self._node.flow.name
        return not_possible(self._node, f"flow {name!r} cannot be migrated now: {reason}", hint)

    def _check_replay(self) -> None:
        """Refuse while a replay is unfinished: it would add rows to the replaced tables."""
        layout, display = self._pipeline.tables.layout, self.dataset.display
        if replay_journal(self._files, layout, self.dataset).load() is not None:
            raise not_possible(
                self._node,
                f"{display} cannot be replaced now: a replay of its quarantine is unfinished",
                f"end it first: penstock quarantine replay {display}",
            )

    def _check_overtaken(self, known: Migration) -> None:
        """Discard a migration if the flow has had a full refresh or a reset in the meantime."""
        state = self._pipeline.state.flow(self._node.flow.name)
        mine = (known.migration_id, known.old["epoch"])
        if known.stage == BUILDING or (state is not None and state.epoch in mine):
            return
        self._journal.delete()
        self.known = None


def _unfinished(node: FlowNode, hint: str = "") -> PlanError:
    return PlanError(
        "MIGRATION_UNFINISHED",
        f"the migration of flow {node.flow.name!r} is unfinished",
        origin=node.flow.origin,
        hint=hint
        or "--resume continues it; --abandon discards it, unless the table is being replaced",
    )


def _not_begun(node: FlowNode, problem: str) -> PlanError:
    return PlanError(
        "MIGRATION_NOT_BEGUN",
        f"flow {node.flow.name!r} has {problem}",
        hint=f"start one: penstock migrate {node.flow.name}",
    )
