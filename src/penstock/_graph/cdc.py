"""Auto CDC in the graph: flows that may share a table, and what must be equal in them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock._model.cdc import CdcSpec
from penstock._model.dataset import Dataset
from penstock._model.flow import Flow, FlowAnalysis
from penstock.errors import DefinitionError, PenstockError


def is_cdc(flow: Flow) -> bool:
    """Whether a flow applies change events or snapshots to its target."""
    return flow.cdc is not None or flow.snapshot is not None


def cdc_text(flow: Flow) -> str:
    """Description of a CDC flow: `auto CDC of orders by id, SCD type 2`."""
    spec = flow.cdc or flow.snapshot
    assert spec is not None
    keys = ", ".join(spec.keys)
    kind = "auto CDC of" if isinstance(spec, CdcSpec) else "snapshots of"
    source = spec.source if spec.source is not None else "a function"
    return f"{kind} {source} by {keys}, SCD type {spec.scd_type}"


def check_target(shown: str, declared: Dataset, flows: Sequence[Flow]) -> Iterator[PenstockError]:
    """Check that the flows of one table can share it, by their declarations."""
    changing = [flow for flow in flows if is_cdc(flow)]
    if declared.expectations and any(flow.snapshot is not None for flow in changing):
        yield DefinitionError(
            "CDC_SNAPSHOT_EXPECTATIONS",
            f"{shown!r} is the target of snapshots and has expectations, which is not supported: a "
            "dropped row would be treated as deleted",
            origin=declared.expectations[0].origin,
            hint="define the expectations on the source of the snapshots",
        )
    if not changing or len(flows) == 1:
        return
    first = changing[0]
    for flow in flows:
        if flow is first:
            continue
        if not is_cdc(flow) or first.snapshot is not None or flow.snapshot is not None:
            yield DefinitionError(
                "CDC_TARGET_SHARED",
                f"{shown!r} is written by {_what(first)} and by {_what(flow)}; a CDC target takes "
                "either auto CDC flows over events or a single snapshot flow",
                origin=flow.origin,
                hint="use a separate table for one of the flows",
            )
            continue
        assert first.cdc is not None and flow.cdc is not None
        agreed = _agreed(flow.cdc)
        for what, value in _agreed(first.cdc).items():
            if value != agreed[what]:
                yield _disagreement(shown, first, flow, f"{what} differ")


def check_sequences(
    shown: str, flows: Sequence[Flow], analyses: Mapping[str, FlowAnalysis]
) -> Iterator[PenstockError]:
    """Check that the flows into one table order their events by the same type."""
    events = [flow for flow in flows if flow.cdc is not None and flow.name in analyses]
    for flow in events[1:]:
        here, there = (analyses[f.name].sequence_type for f in (flow, events[0]))
        if here != there:
            yield _disagreement(
                shown, events[0], flow, f"`sequence_by` is {there} in one and {here} in the other"
            )


def _what(flow: Flow) -> str:
    if flow.snapshot is not None:
        return f"snapshot flow {flow.name!r}"
    return f"auto CDC flow {flow.name!r}" if flow.cdc is not None else f"flow {flow.name!r}"


def _agreed(spec: CdcSpec) -> dict[str, Any]:
    """The declarations that must be equal in all flows into one table."""
    history = spec.track_history
    return {
        "keys": _folded(spec.keys),
        "stored_as_scd_type": spec.scd_type,
        "the tracked history columns": (_folded(history.columns), _folded(history.except_columns)),
    }


def _folded(columns: Sequence[str] | None) -> frozenset[str] | None:
    return None if columns is None else frozenset(column.lower() for column in columns)


def _disagreement(shown: str, first: Flow, other: Flow, what: str) -> DefinitionError:
    return DefinitionError(
        "CDC_FLOWS_DISAGREE",
        f"flows {first.name!r} and {other.name!r} both change {shown!r}, but {what}",
        origin=other.origin,
        hint=f"use the same declaration in both; the other flow is at {first.origin}",
    )
