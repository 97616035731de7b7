"""What a migration would do, in words and figures, and why it must not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._graph.cdc import is_cdc
from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._model.pipeline import PipelineSettings
from penstock._plan.planner import reset_allowed
from penstock.errors import PlanError
from penstock.sources.base import SourceHistory


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A flow of the pipeline that reads the table.

    Attributes:
        flow: Its name.
        target: Its table or sink.
        effect: What it makes of the replacement: `stops`, `skips`, `changes`; `recomputes` if it is
            no stream.
    """

    flow: str
    target: str
    effect: str

    @property
    def text(self) -> str:
        """What happens, and what to do."""
        match self.effect:
            case "stops":
                return (
                    f"flow {self.flow} streams it and stops at the replacement: afterwards "
                    f"`penstock migrate {self.flow}` computes {self.target} anew, or "
                    f"`penstock checkpoint reset {self.flow} --from latest` leaves {self.target} "
                    "as it is and takes what comes next"
                )
            case "skips":
                return (
                    f"flow {self.flow} streams it with skipChangeCommits: it passes over the "
                    f"replacement, and {self.target} keeps what was computed of the old rows; "
                    f"`penstock migrate {self.flow}` computes it anew"
                )
            case "changes":
                return (
                    f"flow {self.flow} reads its change feed: all old rows come as deleted, all "
                    "new ones as inserted"
                )
            case _:
                return f"{self.target} is computed of it by each update, as before"


@dataclass(frozen=True, kw_only=True)
class MigrationReport:
    """What a migration does, or did.

    Attributes:
        flow: Its name.
        target: Its table.
        state: `planned`, `done`, `undone` or `abandoned`.
        migration_id: Of the migration; `None` while it is only a plan.
        resumed: Whether it was begun before.
        start: Where its sources are read from.
        old_epoch: Of the checkpoint that it had.
        new_epoch: Of the one that it gets; `None` while it is only a plan.
        old_version: Of the table before.
        new_version: Of the table after; `None` before that.
        rows: In the table: the old ones, and the new ones once it is done.
        size: Of the old table in bytes.
        columns: What changes about them.
        operators: What the query computes otherwise.
        sources: What each source has.
        readers: Who reads the table.
        refused: Why it is not done without more; `None` if it may be done.
        steps: One sentence each.
    """

    flow: str
    target: str
    state: str
    migration_id: str | None
    resumed: bool
    start: str
    old_epoch: str
    new_epoch: str | None
    old_version: int
    new_version: int | None
    rows: int | None
    size: int | None
    columns: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    sources: "tuple[SourceHistory, ...]" = ()
    readers: tuple[Reader, ...] = ()
    refused: str | None = None
    steps: tuple[str, ...] = ()


def check_flow(graph: DataflowGraph, settings: PipelineSettings, node: FlowNode) -> DatasetNode:
    """The table of a flow that can be computed anew beside itself.

    Raises:
        PlanError: `MIGRATION_NOT_POSSIBLE`.
    """
    name = node.flow.name
    dataset = graph.datasets.get(node.target)
    reason = hint = ""
    if dataset is None:
        reason = "it writes to a sink, from which nothing can be taken back"
        hint = f"`penstock checkpoint reset {name} --from latest` begins with what comes next"
    elif not node.analysis.is_streaming or node.flow.once or node.flow.snapshot is not None:
        reason = "it has no checkpoint: it is not a streaming flow, or one that runs once"
        hint = f"each update computes it anew, or --full-refresh {node.flow.target} does"
    elif is_cdc(node.flow):
        reason = "its rows are made from change events, of which the table keeps its own memory"
        hint = f"`penstock checkpoint reset {name} --from earliest` applies all events again, and "
        hint += f"doubles nothing; --full-refresh {dataset.display} empties the table first"
    elif len(dataset.flows) > 1:
        others = ", ".join(other for other in dataset.flows if other != name)
        reason = f"{dataset.display} has rows of other flows ({others}), which would be gone"
        hint = f"--full-refresh {dataset.display} empties it and starts all of them over"
    elif not reset_allowed(dataset, settings.configuration):
        reason = f"{dataset.display} has pipelines.reset.allowed = false"
        hint = "change the property, or declare the changed query as a flow into a new table"
    elif _is_on(dataset, "delta.appendOnly"):
        reason = f"{dataset.display} has delta.appendOnly = true: its rows cannot be replaced"
        hint = "change the property, or declare the changed query as a flow into a new table"
    elif "AS IDENTITY" in str(dataset.declared.schema or "").upper():
        reason = f"{dataset.display} has an identity column, whose numbers would be given anew"
        hint = f"--full-refresh {dataset.display} if nobody knows the rows by these numbers"
    if reason or dataset is None:
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"flow {name!r} cannot be migrated: {reason}",
            origin=node.flow.origin,
            hint=hint,
        )
    return dataset


def check_columns(
    dataset: DatasetNode, properties: Mapping[str, str], changes: Sequence[str]
) -> None:
    """Refuse other columns where Delta cannot replace them together with the rows.

    Args:
        dataset: The table.
        properties: That it has now.
        changes: What changes about its columns.

    Raises:
        PlanError: `MIGRATION_NOT_POSSIBLE`.
    """
    has_feed = properties.get("delta.enableChangeDataFeed", "false").lower() == "true"
    is_mapped = properties.get("delta.columnMapping.mode", "none").lower() != "none"
    if has_feed and is_mapped and changes:
        raise PlanError(
            "MIGRATION_NOT_POSSIBLE",
            f"{dataset.display} has a change feed and column mapping: Delta does not replace its "
            f"columns and its rows in one commit ({'; '.join(changes)})",
            origin=dataset.declared.origin,
            hint=f"switch delta.enableChangeDataFeed off; or --full-refresh {dataset.display}",
        )


def _is_on(dataset: DatasetNode, name: str) -> bool:
    known = {key.lower(): value for key, value in dataset.declared.table_properties.items()}
    return str(known.get(name.lower(), "false")).lower() == "true"


def why_refused(sources: "Sequence[SourceHistory]") -> str | None:
    """Why the new table would have less than the old one; `None` if it would not."""
    found = [f"{one.source}: {one.missing}" for one in sources if one.missing]
    return (
        "its sources have less than its table was made of: " + "; ".join(found) if found else None
    )


def steps_forth(
    flow: str,
    display: str,
    sources: "Sequence[SourceHistory]",
    readers: Sequence[Reader],
    table: Mapping[str, Any],
    *,
    start: str,
    old_epoch: str,
) -> Iterator[str]:
    """What a migration does, one sentence each."""
    for one in sources:
        again = "an unknown number of" if one.again is None else f"{one.again:,}"
        size = "" if one.size is None else f" ({one.size:,} bytes)"
        yield f"{one.source}: {again} {one.unit}{size} are read again, from {start}, to its end"
        if one.missing:
            yield f"{one.source}: {one.missing}"
        if one.note:
            yield f"{one.source}: {one.note}"
    yield f"a new table is filled beside {display}, with a new checkpoint; {display} stays readable"
    yield (
        f"then one commit replaces the {table['rows']:,} rows ({table['size']:,} bytes) of "
        f"{display} by the new ones; its quarantine likewise, right before"
    )
    yield (
        f"flow {flow} goes on with the new checkpoint; that of epoch {old_epoch} and version "
        f"{table['version']} of the table stay, and --undo goes back to them"
    )
    for reader in readers:
        yield reader.text
    yield f"streams of others that read {display} see one commit that replaces all rows"


def steps_back(
    display: str, readers: Sequence[Reader], *, version: int, epoch: str, is_old_query: bool
) -> Iterator[str]:
    """What going back does, one sentence each."""
    yield f"{display} and its quarantine go back to what they were: {display} to version {version}"
    yield f"the flow goes on with the checkpoint of epoch {epoch}, and reads again what came since"
    yield "rows that a replay of quarantine, a backfill or others have put there since are gone"
    if not is_old_query:
        yield "its query is still the new one: take the change back before the next update"
    for reader in readers:
        yield reader.text
