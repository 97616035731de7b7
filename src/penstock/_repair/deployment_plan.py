"""What differs between a project and what is deployed, and what each difference needs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock._execution.declaration import Declaration


class Need(IntEnum):
    """What a difference needs, in ascending order: a dataset has the greatest of its needs."""

    NOTHING = 0
    UPDATE = 1
    CHECKPOINT = 2
    REBUILD = 3  # becomes a migration or a full refresh
    MIGRATION = 4
    FULL_REFRESH = 5
    IMPOSSIBLE = 6

    @property
    def text(self) -> str:
        texts = {Need.UPDATE: "next update", Need.CHECKPOINT: "new checkpoint"}
        return texts.get(self, self.name.lower().replace("_", " "))


@dataclass(frozen=True)
class Difference:
    need: Need
    text: str
    flow: str = ""  # whose stored rows or checkpoint it concerns


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sum of tables by their Delta logs; `rows` is `None` without statistics."""

    rows: int | None
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One dataset or sink that differs.

    Attributes:
        key: Of the dataset, or name of the sink.
        name: For messages.
        kind: Kind of the dataset, or `sink`.
        change: `new`, `changed`, `removed` or `unknown`.
        need: The greatest of its differences.
        reasons: One sentence each.
        effect: What happens to stored rows; empty if nothing.
        flows: Flows that get a new checkpoint.
        resumes: A migration that was interrupted.
        reads: Tables that are read again.
        unmeasured: Sources outside of Delta that are read again.
        table: The stored table.
        refused: Why `apply` needs an option.
    """

    key: str
    name: str
    kind: str
    change: str
    need: Need
    reasons: tuple[str, ...]
    effect: str = ""
    flows: tuple[str, ...] = ()
    resumes: bool = False
    reads: Size | None = None
    unmeasured: tuple[str, ...] = ()
    table: Size | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeploymentPlan:
    """All changes, upstream first; `unchanged` are names of datasets and sinks."""

    pipeline: str
    storage: str
    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]

    @property
    def pending(self) -> tuple[Change, ...]:
        """What `apply` carries out."""
        return tuple(change for change in self.changes if change.need is not Need.NOTHING)

    def with_need(self, *needs: Need) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.need in needs)


def flow_differences(
    flow: str,
    before: Declaration,
    now: Declaration,
    *,
    has_checkpoint: bool = True,
    has_state: bool = False,
) -> Iterator[Difference]:
    """Compare the recorded declaration of a flow with the present one.

    `has_state`: each of its rows is computed from several rows of the sources.
    """
    is_view = now.kind == "materialized view"
    if before.target != now.target:
        yield Difference(Need.REBUILD, f"flow {flow} wrote to {before.display} before", flow)
        return
    if before.kind != now.kind:
        need = Need.UPDATE if is_view else Need.FULL_REFRESH
        yield Difference(need, f"it was a {before.kind}, and is a {now.kind}", flow)
        return
    if now.kind == "sink" and before.path != now.path:
        yield Difference(Need.UPDATE, f"it was {before.path}, and is {now.path}", flow)
    for name, change in _changed(before.history, now.history):
        yield Difference(Need.FULL_REFRESH, f"{name}: {change}", flow)
    texts = [f"rule {name}: {change}" for name, change in _changed(before.rules, now.rules)]
    texts += [f"{name}: {change}" for name, change in _changed(before.options, now.options)]
    sources = _sources(before.reads, now.reads) + _sources(before.external, now.external)
    if sources:
        need = Need.UPDATE
        if has_checkpoint:
            # Rows of a former topic or folder stay, unless new ones are computed from them, too.
            is_outside = before.reads == now.reads and not has_state
            need = Need.CHECKPOINT if is_outside else Need.REBUILD
        yield Difference(need, f"flow {flow}: {', '.join(sources)}", flow)
    if before.query != now.query:
        texts.append(f"the query of flow {flow} changed")
    elif before.code != now.code:
        texts.append(f"flow {flow} calls Python functions, and a source file changed")
    for text in texts:
        yield Difference(Need.UPDATE, text, flow)


def effect_of(
    need: Need, kind: str, flows: Collection[str], *, is_new: bool, concerns_rows: bool
) -> str:
    """What the deployment does to stored rows, in one sentence; empty if nothing.

    `flows` start over; `concerns_rows`: a query, a rule or an option changed.
    """
    is_view = kind == "materialized view"
    if need is Need.MIGRATION:
        return "its rows are computed beside it, and replaced in one commit (`penstock migrate`)"
    if need is Need.FULL_REFRESH:
        lost = "" if is_view else "; rows that its sources have no more are lost"
        return f"its rows are removed, and computed from all rows of its sources{lost}"
    if need is Need.CHECKPOINT:
        return f"stored rows stay, and {', '.join(flows)} starts again as a new flow does"
    if need is not Need.UPDATE or is_new or not concerns_rows:
        return ""
    return "all rows are recomputed" if is_view else "stored rows stay, new rows are as declared"


def _sources(before: tuple[str, ...], now: tuple[str, ...]) -> list[str]:
    gone = [f"{name} is not read any more" for name in before if name not in now]
    return gone + [f"{name} is read" for name in now if name not in before]


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            yield name, f"{new} is new"
        else:
            yield name, f"{old} is removed" if new is None else f"{old} becomes {new}"


# -- output -----------------------------------------------------------------------------------


def plan_lines(plan: DeploymentPlan) -> list[str]:
    """The plan as text."""
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
    if not plan.pending:
        lines.append("nothing differs")
    elif plan.unchanged:
        lines.append(f"unchanged: {', '.join(plan.unchanged)}")
    return lines


def _size(size: Size) -> str:
    rows = "an unknown number of rows" if size.rows is None else f"{size.rows:,} rows"
    return f"{rows}, {size.bytes:,} bytes"
