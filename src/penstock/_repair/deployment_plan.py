"""The changes of a deployment, and their output."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock._execution.declaration_changes import Need
from penstock._model.quantity import plural


@dataclass(frozen=True, kw_only=True)
class Size:
    """Total size of tables from their Delta logs; `rows` is `None` without statistics."""

    rows: int | None
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """A dataset or sink that differs from the deployed one."""

    key: str  # key of the dataset, or name of the sink
    name: str  # for messages
    kind: str  # kind of the dataset, or `sink`
    change: str  # new, changed, removed or unknown
    need: Need  # the greatest of its differences
    reasons: tuple[str, ...]  # one sentence each
    effect: str = ""  # effect on stored rows; empty if there is none
    flows: tuple[str, ...] = ()  # flows that get a new checkpoint
    resumes: bool = False  # continues an interrupted migration
    reads: Size | None = None  # tables that are read again
    unmeasured: tuple[str, ...] = ()  # sources outside of Delta that are read again
    table: Size | None = None  # the stored table
    refused: str | None = None  # why `apply` needs an option


@dataclass(frozen=True, kw_only=True)
class DeploymentPlan:
    """All changes, upstream first; `unchanged` are names of datasets and sinks.

    `deferred` maps names of datasets to where they are read from, or why they are built here.
    """

    pipeline: str
    storage: str
    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]
    deferred: Mapping[str, str] = field(default_factory=dict)

    @property
    def pending(self) -> tuple[Change, ...]:
        """The changes that `apply` carries out."""
        return tuple(change for change in self.changes if change.need is not Need.NOTHING)

    def with_need(self, *needs: Need) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.need in needs)


def effect_of(
    need: Need, kind: str, flows: Collection[str], *, is_new: bool, concerns_rows: bool
) -> str:
    """The effect of the deployment on stored rows, in one sentence; empty if there is none.

    `flows` start over. `concerns_rows` means that a query, a rule or an option changed.
    """
    is_view = kind == "materialized view"
    if need is Need.MIGRATION:
        return "its rows are computed separately, and replaced in one commit (`penstock migrate`)"
    if need is Need.FULL_REFRESH:
        lost = "" if is_view else "; rows that its sources have no more are lost"
        return f"its rows are removed, and computed from all rows of its sources{lost}"
    if need is Need.CHECKPOINT:
        return f"stored rows stay, and {', '.join(flows)} starts again as a new flow does"
    if need is not Need.UPDATE or is_new or not concerns_rows:
        return ""
    return "all rows are recomputed" if is_view else "stored rows stay, new rows are as declared"


# -- output -----------------------------------------------------------------------------------


def plan_lines(plan: DeploymentPlan) -> list[str]:
    signs = {"new": "+", "changed": "~", "removed": "-", "unknown": "?"}
    lines = [f"pipeline {plan.pipeline}, storage {plan.storage}:"]
    for change in plan.changes:
        lines.append(f"{signs[change.change]} {change.name} [{change.kind}]: {change.need.text}")
        lines += [f"    {reason}" for reason in change.reasons]
        if change.effect:
            lines.append(f"    -> {change.effect}")
        if change.table is not None:
            lines.append(f"    stored: {_size(change.table)}")
        if change.reads is not None or change.unmeasured:
            parts = [] if change.reads is None else [_size(change.reads)]
            parts += [f"{text} (size unknown)" for text in change.unmeasured]
            lines.append(f"    to read: {', '.join(parts)}")
        if change.refused is not None:
            lines.append(f"    refused: {change.refused}")
    lines += [f"{name}: {text}" for name, text in plan.deferred.items()]
    if not plan.pending:
        lines.append("nothing differs")
    elif plan.unchanged:
        lines.append(f"unchanged: {', '.join(plan.unchanged)}")
    return lines


def _size(size: Size) -> str:
    rows = "an unknown number of rows" if size.rows is None else plural(size.rows, "row")
    return f"{rows}, {plural(size.bytes, 'byte')}"
