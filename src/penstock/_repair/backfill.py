"""Reads a range of a flow's sources again, into the same table, without duplicate rows.

The plan, with both ends of the range as offsets, versions and times, is stored in a journal before
anything is written. An interrupted backfill resumes with it; until it is done or abandoned, no
other backfill of the flow can be started.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._model.sql_text import delta_table, quoted
from penstock._repair.backfill_run import PLANNED, BackfillPlan, BackfillRun, Way, remove
from penstock._repair.journal import Journal, recording
from penstock._repair.quarantine_replay import renamed_hint, replay_journal
from penstock._repair.reading import pipeline_storage
from penstock._spark.plans import has_state
from penstock._tables.files import StorageFiles
from penstock._tables.kill_points import kill_point
from penstock._tables.layout import StorageLayout
from penstock._tables.read.checkpoint_files import checkpoints
from penstock._tables.write.schema import columns_as
from penstock._tables.write.table_spec import table_state
from penstock.errors import PlanError
from penstock.quality.split import QUARANTINE_COLUMNS
from penstock.sources.base import EARLIEST, Range, RangeReport, StartPosition, not_read_yet
from penstock.sources.flow import resolve_range


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    begin: StartPosition | None = None  # None means the earliest rows
    end: StartPosition | None = None  # None means the position of the flow
    files: str | None = None  # only files whose name matches this pattern
    by: Sequence[str] = ()  # columns that identify rows of the table
    where: str | None = None  # replace the rows that match this condition instead
    accept_fewer: bool = False  # replace them even if the range has fewer
    resume: bool = False
    abandon: bool = False
    execute: bool = False  # otherwise the plan is only reported


@dataclass(frozen=True, kw_only=True)
class BackfillReport:
    flow: str
    target: str
    backfill_id: str | None  # None for a plan
    way: str  # see `Way`
    range: str  # for messages
    sources: tuple[RangeReport, ...]  # empty if the backfill was resumed
    state: str  # planned, done or abandoned
    resumed: bool
    counts: Mapping[str, int] = field(default_factory=dict)  # rows of this run
    steps: tuple[str, ...] = ()  # one sentence each


def backfill_journal(
    files: StorageFiles, layout: StorageLayout, flow: str
) -> Journal[BackfillPlan]:
    return Journal(files, layout.backfill_folder(flow), BackfillPlan)


def backfill_flow(
    settings: PipelineSettings, flow: str, options: BackfillOptions
) -> BackfillReport:
    """Plan a backfill of a flow, and carry it out.

    Called on the main thread. Holds the leases of an update.
    """
    with (
        open_for_command(settings, "backfill", records=True) as pipeline,
        pipeline_storage(pipeline, flow) as stored,
    ):
        node = pipeline.flow(flow)
        pipeline.check_migration(node)
        files, layout = StorageFiles(pipeline.spark), pipeline.tables.layout
        journal = backfill_journal(files, layout, node.flow.name)
        plan = journal.load()
        if options.abandon or options.resume:
            if plan is None:
                raise PlanError(
                    "BACKFILL_NOT_BEGUN",
                    f"flow {node.flow.name!r} has no unfinished backfill",
                    hint="start one: penstock backfill FLOW --from ... --to ...",
                )
            if options.abandon:
                remove(pipeline, journal, plan)
                return _report(pipeline, node, plan, state="abandoned")
        elif plan is not None:
            raise PlanError(
                "BACKFILL_UNFINISHED",
                f"flow {node.flow.name!r} has an unfinished backfill: {plan.range}",
                hint="--resume continues it; --abandon discards it, and keeps rows that it added",
            )
        dataset = check_flow(pipeline, node)
        sources: tuple[RangeReport, ...] = ()
        is_new = plan is None
        if plan is None:
            plan, sources = _plan(pipeline, node, dataset, options, stored.settings)
        if not (options.execute or options.resume):
            return _report(pipeline, node, plan, sources, state="planned")
        pipeline.lease(dataset)
        _check_table(pipeline, node, dataset, plan)
        if plan.way == Way.WINDOW:
            _check_quarantine(pipeline, node, dataset, plan)
        elif plan.way == Way.KEYS:
            _check_renamed(pipeline, node, dataset, plan)
        if is_new:
            journal.delete()  # files of a backfill that was killed before it had a journal
            journal.save(plan)
            kill_point(PLANNED, node.flow.name, None)
        with recording(
            pipeline,
            node,
            command="backfill",
            properties={"backfill": plan.backfill_id},
            text=plan.range,
        ) as record:
            (own,) = [c for c in checkpoints(stored.settings, plan.flow) if c.is_current]
            run = BackfillRun(
                pipeline=pipeline,
                node=node,
                dataset=dataset,
                plan=plan,
                journal=journal,
                own=own,
                record=record,
            )
            run.emit("planned" if is_new else "resumed", plan.range)
            counts = run.run()
            run.emit("done", "the backfill is done")
        if plan.epoch:
            # The backfill may add rows that the table had lost: the flow continues with its
            # current version.
            pipeline.tables.note(node, plan.epoch).replace({})
        remove(pipeline, journal, plan)
        done = _report(pipeline, node, plan, sources, state="done", resumed=not is_new)
        return replace(done, counts=asdict(counts))


def check_flow(pipeline: OpenPipeline, node: FlowNode) -> DatasetNode:
    dataset = pipeline.graph.datasets.get(node.target)
    reason = hint = ""
    if not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it is not a streaming flow"
        hint = f"--full-refresh {node.flow.target} recomputes it"
    elif dataset is None:
        reason = "it writes to a sink, whose rows are unknown"
        hint = f"`penstock checkpoint reset {node.flow.name} --from ... --accept-duplicates` sends "
        hint += "all rows from a position on again"
    elif not dataset.is_stored:
        reason = f"{dataset.display} is a temporary view, which has no rows"
        hint = "backfill the flows that read it"
    elif has_state(node.analysis.stateful_operators):
        reason = "its rows depend on rows outside of a range (windows, joins, deduplication)"
        hint = f"--full-refresh {node.flow.target} recomputes it"
    if reason or dataset is None:
        raise _not_possible(node, f"flow {node.flow.name!r} cannot be backfilled: {reason}", hint)
    return dataset


def _not_possible(node: FlowNode, message: str, hint: str) -> PlanError:
    return PlanError("BACKFILL_NOT_POSSIBLE", message, origin=node.flow.origin, hint=hint)


def _plan(
    pipeline: OpenPipeline,
    node: FlowNode,
    dataset: DatasetNode,
    options: BackfillOptions,
    stored: PipelineSettings,
) -> tuple[BackfillPlan, tuple[RangeReport, ...]]:
    name = node.flow.name
    current = [c for c in checkpoints(stored) if c.flow == name and c.is_current]
    checkpoint = current[0] if current else None
    if checkpoint is None or not checkpoint.exists or checkpoint.last_planned is None:
        raise not_read_yet(name, "it has never run, or its checkpoint does not exist")
    if checkpoint.last_planned != checkpoint.last_finished:
        raise not_read_yet(name, f"its batch {checkpoint.last_planned} is not finished")
    table = table_state(pipeline.spark, pipeline.tables.paths[dataset.key])
    if table is None:
        raise not_read_yet(name, f"{dataset.display} does not exist")
    df, sources = pipeline.query(node)
    stored_names = {column.lower() for column in table.schema.names}
    columns = [column for column in df.columns if column.lower() in stored_names]
    way, by = choose_way(node, dataset, options, columns)
    range_ = Range(
        flow=name,
        begin=options.begin or EARLIEST,
        end=options.end,
        files=options.files,
        now_ms=round(time.time() * 1000),
    )
    position, reports = resolve_range(sources, range_, checkpoint)
    quarantine = table_state(pipeline.spark, pipeline.tables.quarantine(dataset).path)
    plan = BackfillPlan(
        backfill_id=uuid.uuid4().hex,
        flow=name,
        way=way,
        position=position,
        by=tuple(by),
        where=options.where,
        accept_fewer=options.accept_fewer,
        table_id=table.id,
        version=table.version,
        quarantine_version=-1 if quarantine is None else quarantine.version,
        epoch=checkpoint.epoch,
        range="; ".join(f"{report.source}: {report.text}" for report in reports),
    )
    return plan, reports


def choose_way(
    node: FlowNode, dataset: DatasetNode, options: BackfillOptions, columns: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """How duplicates of existing rows are avoided (see `Way`), and by which columns."""
    reason = ""
    declared = dataset.declared.deduplicate_by
    if options.by and options.where is not None:
        reason = "--by and --replace-where cannot be combined"
    elif is_cdc(node.flow):
        if not (options.by or options.where):
            return "events", ()
        reason = "its rows are made from change events, which are deduplicated anyway"
    elif options.where is not None:
        if len(dataset.flows) > 1:
            reason = f"{dataset.display} has other flows, whose rows would be deleted"
        elif dataset.downstream:
            reason = f"flows read {dataset.display}, and a stream fails when rows are replaced"
        else:
            return "window", ()
    elif options.by or declared:
        by = tuple(options.by or declared)
        missing = [key for key in by if key.lower() not in {name.lower() for name in columns}]
        if not missing:
            return "keys", by
        reason = f"its query or {dataset.display} has no column {', '.join(missing)}"
    if reason:
        message = f"flow {node.flow.name!r} cannot be backfilled like this: {reason}"
        raise _not_possible(node, message, "columns: " + ", ".join(columns))
    lower = {column.lower() for column in columns}
    known = [name for name in ("topic", "partition", "offset") if name in lower]
    example = ",".join(known) if {"partition", "offset"} <= lower else "COLUMN,..."
    raise PlanError(
        "BACKFILL_WOULD_DOUBLE",
        f"{dataset.display} is only appended to, and rows of the range that it has cannot be "
        "identified",
        origin=node.flow.origin,
        hint=f"--by {example} names columns with the origin of a row (topic, partition and offset, "
        "or the file), or that identify it; --replace-where CONDITION replaces rows, for example "
        "of a day; deduplicate_by of the table deduplicates permanently",
    )


def _check_table(
    pipeline: OpenPipeline, node: FlowNode, dataset: DatasetNode, plan: BackfillPlan
) -> None:
    table = table_state(pipeline.spark, pipeline.tables.paths[dataset.key])
    if table is None or table.id != plan.table_id:
        raise _not_possible(
            node,
            f"{dataset.display} was dropped or recreated since the backfill of "
            f"{node.flow.name!r} was started",
            "--abandon discards the backfill",
        )
    state = pipeline.state.flow(plan.flow)
    if plan.epoch and (state is None or state.reset_pending or state.epoch != plan.epoch):
        # Rows that the flow has read with its new checkpoint are not in the planned version.
        raise _not_possible(
            node,
            f"flow {plan.flow!r} got a new checkpoint since its backfill started: it reads rows "
            "of the range itself, and they would be duplicated",
            "--abandon discards the backfill; start another one after the next update",
        )


def _check_quarantine(
    pipeline: OpenPipeline, node: FlowNode, dataset: DatasetNode, plan: BackfillPlan
) -> None:
    """Refuse a window if a replay could add rows to the table that the range also contains."""
    tables = pipeline.tables
    files, quarantine = StorageFiles(pipeline.spark), tables.quarantine(dataset).path
    reason = ""
    if replay_journal(files, tables.layout, dataset).load() is not None:
        reason = "a replay of its quarantine is unfinished"
    elif plan.quarantine_version >= 0 and not tables.keeps_dropped(dataset):
        # With rules that keep rows, those of the window are replaced in the quarantine, too.
        rows = pipeline.spark.read.format("delta").load(quarantine)
        # It does not have columns that were added to its table later.
        table = table_state(pipeline.spark, tables.paths[dataset.key])
        columns = columns_as(rows.schema if table is None else table.schema, rows.schema.fields)
        if not rows.select(*columns).where(str(plan.where)).isEmpty():
            reason = f"its quarantine has rows with {plan.where}, which it does not keep any more"
    if reason:
        raise _not_possible(
            node,
            f"rows of {dataset.display} cannot be replaced: {reason}, and they would be duplicated",
            f"`penstock quarantine replay {dataset.display}` moves them first",
        )


def _check_renamed(
    pipeline: OpenPipeline, node: FlowNode, dataset: DatasetNode, plan: BackfillPlan
) -> None:
    """Refuse keys that rows in quarantine may have under the old name of a column."""
    table = table_state(pipeline.spark, pipeline.tables.paths[dataset.key])
    if table is None or plan.quarantine_version < 0:
        return
    path = pipeline.tables.quarantine(dataset).path
    quarantine = pipeline.spark.read.format("delta").option("versionAsOf", plan.quarantine_version)
    rows = quarantine.load(path)
    kept = {name.lower() for name in (*table.schema.names, *QUARANTINE_COLUMNS)}
    old = [quoted(name) for name in rows.columns if name.lower() not in kept]
    names = {name.lower() for name in rows.columns}
    keys = [quoted(key) for key in plan.by if key.lower() in names]
    if len(keys) == len(plan.by):
        rows = rows.where(" OR ".join(f"{key} IS NULL" for key in keys))
    if old and not rows.where(" OR ".join(f"{name} IS NOT NULL" for name in old)).isEmpty():
        update = f"UPDATE {delta_table(path)} SET"
        raise _not_possible(
            node,
            f"rows in the quarantine of {dataset.display} cannot be identified, and would be "
            f"duplicated: they have values in {', '.join(old)}, which {dataset.display} does not "
            f"have, and none in {', '.join(plan.by)}",
            renamed_hint(
                f"{update} <new name> = {old[0]}, {old[0]} = NULL", f"{update} {old[0]} = NULL"
            ),
        )


def _report(
    pipeline: OpenPipeline,
    node: FlowNode,
    plan: BackfillPlan,
    sources: tuple[RangeReport, ...] = (),
    *,
    state: str,
    resumed: bool = False,
) -> BackfillReport:
    return BackfillReport(
        flow=node.flow.name,
        target=pipeline.graph.target_name(node),
        backfill_id=None if state == "planned" else plan.backfill_id,
        way=plan.way,
        range=plan.range,
        sources=sources,
        state=state,
        resumed=resumed,
        steps=() if state == "abandoned" else tuple(_steps(plan, sources)),
    )


def _steps(plan: BackfillPlan, sources: tuple[RangeReport, ...]) -> Iterator[str]:
    for report in sources:
        yield f"{report.source}: {report.count:,} {report.unit} are read again: {report.text}"
    match plan.way:
        case "keys":
            keys = ", ".join(plan.by)
            yield f"rows whose {keys} the table or its quarantine has already are skipped"
            yield f"rows with NULL in {keys} are skipped and counted: they cannot be identified"
        case "events":
            yield "the events are applied again: those that were applied before change nothing"
        case "window":
            yield f"the rows are staged; then rows of the table with {plan.where} are replaced by"
            yield "those of the range in one commit; other rows of the range are not written"
    yield "the flow's own checkpoint is not changed"
