"""A bounded re-run of a flow over a range of its sources, into the same table, without doubling.

What is to be done is decided once and stored, with both ends of the range as offsets, versions and
times, before anything is written. A backfill that died goes on with that; until it is done or
abandoned, the flow gets no other.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock._execution.tables import Commit
from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DatasetNode, FlowNode
from penstock._launch import OpenPipeline, open_for_command
from penstock._model.pipeline import PipelineSettings
from penstock._observe.events import BackfillProgress, Event
from penstock._repair.backfill_run import BackfillRun, Counts, Decision
from penstock._repair.recording import recording
from penstock._spark.plans import has_state
from penstock._tables.checkpoint_files import Checkpoint, checkpoints
from penstock._tables.files import StorageFiles
from penstock._tables.prepare import table_state
from penstock._tables.schema import with_types
from penstock.errors import PlanError
from penstock.sources.base import EARLIEST, Range, RangeReport, StartPosition, not_read_yet
from penstock.sources.flow import resolve_range

PLANNED, BATCH, STAGED, COMMITTED = "planned", "batch", "staged", "committed"
"""Steps after which a backfill may die; given to `on_step`."""

_DECIDED = "decided.json"


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """What the user asked for.

    Attributes:
        begin: First rows of the range; the earliest by default.
        end: Where it ends; where the flow is by default.
        files: Only files with a name that this pattern matches.
        by: Columns by which rows of the table are known.
        where: Replace the rows that fulfil this instead.
        accept_fewer: Though the range has fewer of them than the table.
        resume: Go on with what was begun.
        abandon: Forget what was begun.
        execute: Carry the plan out; otherwise it is only reported.
    """

    begin: "StartPosition | None" = None
    end: "StartPosition | None" = None
    files: str | None = None
    by: Sequence[str] = ()
    where: str | None = None
    accept_fewer: bool = False
    resume: bool = False
    abandon: bool = False
    execute: bool = False


@dataclass(frozen=True, kw_only=True)
class BackfillReport:
    """What a backfill does, or did.

    Attributes:
        flow: Its name.
        target: Its table.
        backfill_id: Of the backfill; `None` while it is only a plan.
        way: `keys`, `events` or `window`.
        range: In words.
        sources: What the range is of each source; empty when it was resumed.
        state: `planned`, `done` or `abandoned`.
        resumed: Whether it was begun before.
        counts: Of the rows, once it was done; those of this run.
        steps: One sentence each.
    """

    flow: str
    target: str
    backfill_id: str | None
    way: str
    range: str
    sources: "tuple[RangeReport, ...]"
    state: str
    resumed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[str, ...] = ()


def backfill_flow(
    settings: PipelineSettings,
    flow: str,
    asked: BackfillOptions,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    told: Callable[[Event], None] = lambda _: None,
) -> BackfillReport:
    """Plan a backfill of a flow, and carry it out.

    Called on the main thread. Holds the leases that an update holds.

    Args:
        settings: The pipeline.
        flow: Its name.
        asked: What to do.
        on_step: Called after each step that was stored.
        told: Gets the events.

    Raises:
        PenstockError: The pipeline runs, is wrong, the range or the table does not allow it; or
            what ends a flow.
    """
    checkpoints(settings)  # the storage must be on this machine: before Spark is started
    update_id = str(uuid.uuid4())
    with open_for_command(settings, "backfill", update_id=update_id) as pipeline:
        node = pipeline.flow(flow)
        pipeline.check_migration(node)
        store = _Store(pipeline, node.flow.name)
        pending = store.pending()
        if asked.abandon or asked.resume:
            if pending is None:
                raise PlanError(
                    "BACKFILL_NOT_BEGUN",
                    f"flow {node.flow.name!r} has no backfill that was begun and is not done",
                    hint="begin one: penstock backfill FLOW --from ... --to ...",
                )
            if asked.abandon:
                store.remove(pending)
                return _report(pipeline, node, pending, state="abandoned", resumed=True)
        elif pending is not None:
            raise PlanError(
                "BACKFILL_UNFINISHED",
                f"a backfill of flow {node.flow.name!r} was begun and is not done: {pending.range}",
                hint="--resume goes on with it; --abandon forgets it, and keeps what it has added",
            )
        dataset = check_flow(pipeline, node)
        sources: tuple[RangeReport, ...] = ()
        is_new = pending is None
        if pending is None:
            pending, sources = _decide(pipeline, node, dataset, asked)
        if not (asked.execute or asked.resume):
            return _report(pipeline, node, pending, state="planned", resumed=False, sources=sources)
        pipeline.lease(dataset)
        _check_table(pipeline, node, dataset, pending)
        if is_new:
            store.save(pending)
            on_step(PLANNED)
        with _recording(settings, update_id, node, pending, not is_new, told) as emit:
            counts = _carry_out(pipeline, node, dataset, pending, store, emit, on_step)
        if pending.epoch:
            # What a damage has taken from the table is in again: the flow continues with it.
            pipeline.tables.note(node, pending.epoch).replace({})
        store.remove(pending)
        done = _report(pipeline, node, pending, state="done", resumed=not is_new, sources=sources)
        return replace(done, counts=counts.as_json())


def check_flow(pipeline: OpenPipeline, node: "FlowNode") -> "DatasetNode":
    """The table of a flow that a range can be added to.

    Raises:
        PlanError: `BACKFILL_NOT_POSSIBLE`.
    """
    dataset = pipeline.graph.datasets.get(node.target)
    reason = hint = ""
    if not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it is no streaming flow"
        hint = f"--full-refresh {node.flow.target} computes it anew"
    elif dataset is None:
        reason = "it writes to a sink, of which nobody knows what it has"
        hint = f"`penstock checkpoint reset {node.flow.name} --from ... --accept-duplicates` sends "
        hint += "everything from a place on once more"
    elif has_state(node.analysis.stateful_operators):
        reason = "its rows are computed of many (windows, joins, duplicates), also outside a range"
        hint = f"--full-refresh {node.flow.target} computes it anew"
    if reason or dataset is None:
        raise PlanError(
            "BACKFILL_NOT_POSSIBLE",
            f"flow {node.flow.name!r} cannot be backfilled: {reason}",
            origin=node.flow.origin,
            hint=hint,
        )
    return dataset


# -- the decision -------------------------------------------------------------------------------


def _decide(
    pipeline: OpenPipeline, node: "FlowNode", dataset: "DatasetNode", asked: BackfillOptions
) -> "tuple[Decision, tuple[RangeReport, ...]]":
    name = node.flow.name
    found = [one for one in checkpoints(pipeline.settings) if one.flow == name and one.is_current]
    one: Checkpoint | None = found[0] if found else None
    if one is None or not one.exists or one.last_planned is None:
        raise not_read_yet(name, "it has never run, or its checkpoint is gone")
    if one.last_planned != one.last_finished:
        raise not_read_yet(name, f"its batch {one.last_planned} is not finished")
    df, opened = pipeline.query(node)
    way, by = choose_way(node, dataset, asked, df.columns)
    wanted = Range(
        flow=name,
        begin=asked.begin or EARLIEST,
        end=asked.end,
        files=asked.files,
        now_ms=round(time.time() * 1000),
    )
    position, reports = resolve_range(opened, wanted, one)
    table = table_state(pipeline.spark, pipeline.tables.paths[dataset.key])
    if table is None:
        raise not_read_yet(name, f"{dataset.display} does not exist")
    quarantine = table_state(pipeline.spark, pipeline.tables.quarantine_path(dataset))
    decision = Decision(
        backfill_id=uuid.uuid4().hex,
        flow=name,
        way=way,
        position=position,
        by=tuple(by),
        where=asked.where,
        accept_fewer=asked.accept_fewer,
        table_id=table.id,
        version=table.version,
        quarantine_version=-1 if quarantine is None else quarantine.version,
        epoch=one.epoch,
        range="; ".join(f"{report.source}: {report.text}" for report in reports),
    )
    return decision, reports


def choose_way(
    node: "FlowNode", dataset: "DatasetNode", asked: BackfillOptions, columns: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """How rows that the table has are kept from coming twice, and by which columns.

    Args:
        node: The flow.
        dataset: Its table.
        asked: `by` and `where` count.
        columns: Of the query.

    Raises:
        PlanError: `BACKFILL_WOULD_DOUBLE`: there is no way; `BACKFILL_NOT_POSSIBLE`.
    """
    reason = ""
    declared = dataset.declared.deduplicate_by
    if asked.by and asked.where is not None:
        reason = "--by and --replace-where exclude each other"
    elif is_cdc(node.flow):
        if not (asked.by or asked.where):
            return "events", ()
        reason = "its rows are made from change events, which are known by themselves"
    elif asked.where is not None:
        if len(dataset.flows) > 1:
            reason = f"{dataset.display} has other flows, whose rows would be removed"
        elif dataset.downstream:
            reason = f"flows read {dataset.display}, and a stream ends when its rows are replaced"
        else:
            return "window", ()
    elif asked.by or declared:
        by = tuple(asked.by or declared)
        missing = [key for key in by if key.lower() not in {one.lower() for one in columns}]
        if not missing:
            return "keys", by
        reason = f"its query has no column {', '.join(missing)}"
    if reason:
        raise PlanError(
            "BACKFILL_NOT_POSSIBLE",
            f"flow {node.flow.name!r} cannot be backfilled like this: {reason}",
            origin=node.flow.origin,
            hint="columns: " + ", ".join(columns),
        )
    lower = {column.lower() for column in columns}
    seen = [name for name in ("topic", "partition", "offset") if name in lower]
    example = ",".join(seen) if {"partition", "offset"} <= lower else "COLUMN,..."
    raise PlanError(
        "BACKFILL_WOULD_DOUBLE",
        f"{dataset.display} just takes rows, and nothing tells which of the range it has",
        origin=node.flow.origin,
        hint=f"--by {example} names columns that say where a row comes from (topic, partition and "
        "offset, or the file), or that identify it; --replace-where CONDITION replaces the rows "
        "of a day, say; deduplicate_by of the table does it for good",
    )


def _check_table(
    pipeline: OpenPipeline, node: "FlowNode", dataset: "DatasetNode", decision: "Decision"
) -> None:
    table = table_state(pipeline.spark, pipeline.tables.paths[dataset.key])
    if table is None or table.id != decision.table_id:
        raise PlanError(
            "BACKFILL_NOT_POSSIBLE",
            f"{dataset.display} was dropped or made anew since the backfill of "
            f"{node.flow.name!r} began",
            origin=node.flow.origin,
            hint="--abandon forgets the backfill",
        )
    state = pipeline.state.flow(decision.flow)
    if decision.epoch and (state is None or state.reset_pending or state.epoch != decision.epoch):
        # What the table had when it began says nothing of what the flow has read since.
        raise PlanError(
            "BACKFILL_NOT_POSSIBLE",
            f"flow {decision.flow!r} has got another checkpoint since its backfill began: it reads "
            "rows of the range by itself, and they would be there twice",
            origin=node.flow.origin,
            hint="--abandon forgets the backfill; begin another one after the next update",
        )


class _Store:
    """Where a decision is kept until it is carried out."""

    def __init__(self, pipeline: OpenPipeline, flow: str) -> None:
        self._files = StorageFiles(pipeline.spark)
        self._layout = pipeline.tables.layout
        self.folder = self._layout.backfill_folder(flow)

    def pending(self) -> "Decision | None":
        """What was begun and is not done."""
        text = self._files.read(f"{self.folder}/{_DECIDED}")
        return Decision(**json.loads(text)) if text else None

    def save(self, decision: "Decision") -> None:
        """Store a decision, or a step of it."""
        if not decision.is_staged:
            self._files.delete_tree(self.folder)  # of one that died before it was decided
        self._files.write(f"{self.folder}/{_DECIDED}", json.dumps(asdict(decision), indent=1))

    def remove(self, decision: "Decision") -> None:
        """Forget it: at once, whatever is left of its files."""
        self._files.write(f"{self.folder}/{_DECIDED}", "")
        self._files.delete_tree(self.folder)
        place = self._layout.checkpoint_path(decision.flow, decision.backfill_id)
        self._files.delete_tree(place)


# -- carrying it out ----------------------------------------------------------------------------


def _carry_out(
    pipeline: OpenPipeline,
    node: "FlowNode",
    dataset: "DatasetNode",
    decision: "Decision",
    store: _Store,
    emit: Callable[[str, str, Mapping[str, Any]], None],
    on_step: Callable[[str], None],
) -> "Counts":
    (done,) = [c for c in checkpoints(pipeline.settings, decision.flow) if c.is_current]

    def staged() -> None:
        store.save(replace(decision, is_staged=True))
        emit("staged", "all rows of the range are gathered", run.counts.as_json())
        on_step(STAGED)

    def told(counts: "Counts") -> None:
        emit("batch", f"{counts.batches} batches of the range are in", counts.as_json())
        on_step(BATCH)

    def committed(commit: "Commit") -> None:
        if not commit.replayed:
            emit("commit", "", {"commit": commit})
        on_step(COMMITTED)

    df, opened = pipeline.query(node, decision.position)
    run = BackfillRun(
        spark=pipeline.spark,
        tables=pipeline.tables,
        node=node,
        dataset=dataset,
        decision=decision,
        staging=store.folder,
        sources=opened,
        done=done,
        told=told,
        commit=committed,
        staged=staged,
    )
    try:
        return run.run(with_types(df, pipeline.tables.declared_columns(node.target)))
    except PlanError as error:
        if error.condition == "BACKFILL_WOULD_LOSE_ROWS":
            store.remove(decision)  # nothing was changed: another range can be tried
        raise


@contextmanager
def _recording(
    settings: PipelineSettings,
    update_id: str,
    node: "FlowNode",
    decision: "Decision",
    resumed: bool,
    told: Callable[[Event], None],
) -> "Iterator[Callable[[str, str, Mapping[str, Any]], None]]":
    """Record events as an update does: the backfill shows in status, history and event log."""
    with recording(
        settings,
        update_id,
        node,
        command="backfill",
        about={"backfill": decision.backfill_id},
        text=decision.range,
        told=told,
    ) as record:

        def emit(step: str, message: str, figures: Mapping[str, Any]) -> None:
            if step == "commit":
                # Without batch ids: those of a backfill are not the flow's.
                record.emit(figures["commit"].event(record.flow, "backfill"))
            else:
                body = BackfillProgress(
                    backfill_id=decision.backfill_id,
                    way=decision.way,
                    range=decision.range,
                    step=step,
                    figures=figures,
                )
                record.emit(Event(record.flow, body, message))

        emit("resumed" if resumed else "planned", decision.range, {})
        yield emit
        emit("done", "the backfill is done", {})


def _report(
    pipeline: OpenPipeline,
    node: "FlowNode",
    decision: "Decision",
    *,
    state: str,
    resumed: bool,
    sources: "tuple[RangeReport, ...]" = (),
) -> BackfillReport:
    return BackfillReport(
        flow=node.flow.name,
        target=pipeline.target_name(node),
        backfill_id=None if state == "planned" else decision.backfill_id,
        way=decision.way,
        range=decision.range,
        sources=sources,
        state=state,
        resumed=resumed,
        steps=tuple(_steps(decision, sources)),
    )


def _steps(decision: "Decision", sources: "tuple[RangeReport, ...]") -> Iterator[str]:
    for report in sources:
        yield f"{report.source}: {report.count:,} {report.unit} are read again: {report.text}"
    match decision.way:
        case "keys":
            keys = ", ".join(decision.by)
            yield f"rows whose {keys} the table or its quarantine has already are left out"
            yield f"rows with NULL in {keys} are left out and counted: nothing identifies them"
        case "events":
            yield "the events are applied again: those that are in change nothing"
        case "window":
            yield f"the rows are gathered; those of the table with {decision.where} are replaced"
            yield "by those of the range in one commit; rows of the range outside are not written"
    yield "the flow's own checkpoint stays as it is"
