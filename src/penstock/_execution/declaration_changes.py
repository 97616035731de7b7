"""Differences between the recorded and the current declaration of a flow, and what they need."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock._execution.declaration import Declaration


class Need(IntEnum):
    """What a difference needs, in ascending order: the greatest need applies to a dataset."""

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


def flow_differences(
    flow: str,
    before: Declaration,
    now: Declaration,
    *,
    has_checkpoint: bool = True,
    has_state: bool = False,
) -> Iterator[Difference]:
    """Compare the recorded declaration of a flow with the current one.

    `has_state`: each row that it writes is computed from several rows of the sources.
    """
    is_view = now.kind == "materialized view"
    if before.target != now.target:
        need = Need.FULL_REFRESH if before.kind == "sink" else Need.REBUILD
        yield Difference(need, f"flow {flow} wrote to {before.display} before", flow)
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
            # Rows of a former topic or folder stay, unless new rows are also computed from them.
            is_outside = before.reads == now.reads and not has_state
            need = Need.CHECKPOINT if is_outside else Need.REBUILD
        yield Difference(need, f"flow {flow}: {', '.join(sources)}", flow)
    if before.query != now.query:
        texts.append(f"the query of flow {flow} changed")
    elif before.code != now.code:
        texts.append(f"flow {flow} calls Python functions, and a source file changed")
    for text in texts:
        yield Difference(Need.UPDATE, text, flow)


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
