"""The stored state of flows: epoch, description of the checkpoint, `once`.

An *epoch* identifies a checkpoint. It is part of the writer's app id, so that a new checkpoint,
whose batch ids start at 0 again, is never taken for a replay of the old one.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from urllib.parse import quote, unquote

from penstock._model.flow import Flow
from penstock._spark.generated_names import WINDOWS, stable_operators
from penstock._tables.files import StorageFiles
from penstock.errors import CheckpointError, PlanError


@dataclass(frozen=True, kw_only=True)
class FlowState:
    """State of one flow.

    Attributes:
        epoch: Identity of the checkpoint; part of its path and of the app id.
        target_id: Identity (Delta table id) of the table that the checkpoint belongs to.
        stateful_operators: Those of the checkpoint's query; `None` before the first start.
        output_mode: Spark's output mode at the first start.
        once_done: Whether a `once` flow has run.
        reset_pending: Whether a full refresh has begun and not ended.
        starts: Version of each upstream table from which the first batch of the checkpoint reads
            appends; kept if that batch is planned again.
        snapshots: For a snapshot flow, the versions of the last applied snapshot and of the next
            one, by number; the table has the number of the last commit.
        position: Start of the streams of the checkpoint; overrides their options.
        next_position: The same for the checkpoint after a pending reset.
        topics: Kafka's topic ids of the checkpoint, by name.
        migration: The migration that has begun to replace the table and this state.
        deployed: The declaration of the last run, see `Declaration`; empty if not recorded.
        pipeline: See `StateStore.pipeline_of`; empty in the state of an earlier version.
    """

    epoch: str
    target_id: str | None = None
    stateful_operators: tuple[str, ...] | None = None
    output_mode: str | None = None
    once_done: bool = False
    reset_pending: bool = False
    starts: Mapping[str, int] = field(default_factory=dict)
    snapshots: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    position: Mapping[str, Any] = field(default_factory=dict)
    next_position: Mapping[str, Any] = field(default_factory=dict)
    migration: str | None = None
    deployed: Mapping[str, Any] = field(default_factory=dict)
    pipeline: str = ""


@dataclass(frozen=True, kw_only=True)
class ViewState:
    """Inputs of the last refresh of a materialized view, and the table version after it.

    Attributes:
        fingerprint: Digest of the query, the rules, the settings and the source code.
        sources: Version of each source, by its path.
        table_ids: Id of each Delta table among them, and of the view's own table, by its path;
            earlier versions stored none.
        table_version: Version of the view's table; `None` for a snapshot flow, or after a restore.
        quarantine_version: Version of the quarantine; -1 without a quarantine.
        rows: Number of rows of the last complete refresh.
        full_seconds: Duration of the last complete refresh.
        incremental_seconds: Duration of the last refresh that was, or was attempted as, an
            incremental one; reduced by each complete refresh, so that it is attempted again.
        incremental_share: Share of the sources that had changed in that refresh.
        deployed: As in `FlowState`, at the last refresh.
    """

    fingerprint: str
    sources: Mapping[str, str]
    table_version: int | None
    quarantine_version: int = -1
    rows: int | None = None
    full_seconds: float | None = None
    incremental_seconds: float | None = None
    incremental_share: float | None = None
    deployed: Mapping[str, Any] = field(default_factory=dict)
    table_ids: Mapping[str, str] = field(default_factory=dict)


def state_of(body: Mapping[str, Any]) -> FlowState:
    """The state of a flow from its JSON form."""
    operators = body.get("stateful_operators")
    # Earlier versions also stored generated names.
    known = None if operators is None else stable_operators(operators)
    return FlowState(**{**body, "stateful_operators": known})


class StateStore:
    """Reads and writes the state files below `<storage>/state`.

    There is one writer at a time, which holds the pipeline's lease.
    """

    def __init__(self, files: StorageFiles, state_root: str, pipeline: str) -> None:
        self._files = files
        self._root = state_root.rstrip("/")
        self._pipeline = pipeline
        self._pipelines: dict[str, str] = {}
        self._apart: dict[str, str] = {}

    @contextlib.contextmanager
    def apart(self, flow: str, path: str) -> Iterator[None]:
        """Use another file for the state of a flow within the context, for a new checkpoint."""
        self._apart[flow] = path
        try:
            yield
        finally:
            self._apart.clear()

    def flow(self, name: str) -> FlowState | None:
        """The state of a flow; `None` before its first start."""
        body = self._load(self._flow_path(name), FlowState)
        return None if body is None else state_of(body)

    def save_flow(self, name: str, state: FlowState) -> None:
        state = replace(state, pipeline=self.pipeline_of(name))
        self._files.write(self._flow_path(name), json.dumps(asdict(state), indent=1))

    def pipeline_of(self, flow: str) -> str:
        """The name of the pipeline in the identity of a flow's writers.

        It is the name at the first start: a batch that was in flight when the pipeline was renamed
        must keep its identity.
        """
        if flow not in self._pipelines:
            body = self._parsed(self._path("flows", flow)) or {}
            self._pipelines[flow] = body.get("pipeline") or self._pipeline
        return self._pipelines[flow]

    def new_flow(self, name: str, position: Mapping[str, Any] | None = None) -> FlowState:
        """Create the state of a flow with a new epoch, for its first start or a full refresh.

        `position` is the start of its streams; by default that of a pending reset.
        """
        if position is None:
            before = self.flow(name)
            position = before.next_position if before and before.reset_pending else {}
        state = FlowState(epoch=uuid.uuid4().hex, position=position)
        self.save_flow(name, state)
        return state

    def mark_reset(self, name: str, position: Mapping[str, Any] | None = None) -> None:
        """Record a pending reset of a flow, and the position of its streams after it."""
        state = self.flow(name) or FlowState(epoch=uuid.uuid4().hex)
        marked = replace(state, reset_pending=True, next_position=position or {}, migration=None)
        self.save_flow(name, marked)

    def view(self, key: str) -> ViewState | None:
        """The state of a view's last refresh; `None` if unknown."""
        body = self._load(self._path("views", key), ViewState)
        return None if body is None else ViewState(**body)

    def save_view(self, key: str, state: ViewState) -> None:
        self._files.write(self._path("views", key), json.dumps(asdict(state), indent=1))

    def forget_view(self, key: str) -> None:
        """Make the next refresh of a view a complete one."""
        if self.view(key) is not None:
            self._files.write(self._path("views", key), "")

    def forget_declaration(self, flow: str) -> None:
        """Remove the declaration of a streaming flow whose table has become a view."""
        state = self.flow(flow)
        if state is not None and state.deployed:
            self.save_flow(flow, replace(state, deployed={}))

    def names(self, folder: str) -> list[str]:
        """Flows (`flows`) or datasets (`views`) that have a state."""
        names = self._files.names(f"{self._root}/{folder}")
        return sorted(unquote(name.removesuffix(".json")) for name in names if name[0] != ".")

    def _flow_path(self, flow: str) -> str:
        return self._apart.get(flow) or self._path("flows", flow)

    def _path(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{quote(name, safe=' ')}.json"

    def _load(self, path: str, kind: type[FlowState | ViewState]) -> dict[str, Any] | None:
        body = self._parsed(path)
        known = {each.name for each in fields(kind)}
        if unknown := (body or {}).keys() - known:
            raise PlanError(
                "STATE_OF_NEWER_VERSION",
                f"{path} has fields that this version of Penstock does not support: "
                f"{', '.join(sorted(unknown))}",
                hint="a newer version of Penstock wrote it: run that version, or a later one",
            )
        return body

    def _parsed(self, path: str) -> dict[str, Any] | None:
        text = self._files.read(path)
        try:
            body: dict[str, Any] | None = json.loads(text) if text else None
        except ValueError:
            # Truncated by a crash, where files are not replaced atomically. `DamageCheck` checks
            # whether a checkpoint depends on it.
            return None
        return body


def check_state(
    flow: Flow,
    state: FlowState,
    *,
    operators: tuple[str, ...],
    order: tuple[str, ...] = (),
    output_mode: str,
    display: str,
) -> None:
    """Compare a query with the query of its checkpoint; `order` as in its declaration.

    A changed stateful operator or source is an error: Spark would fail at the start, or
    misinterpret the state.
    """
    if state.stateful_operators is None:
        return
    before, now = state.stateful_operators, operators
    if not any(WINDOWS in line for line in before):  # from an earlier version, or without windows
        now = tuple(line.partition(WINDOWS)[0] for line in now)
    order_before = state.deployed.get("order", ())
    if state.output_mode not in (None, output_mode):
        change = f"its output mode was {state.output_mode} and is {output_mode} now"
    elif before != now:
        gone = [line for line in before if line not in now]
        new = [line for line in now if line not in before]
        parts = [f"gone: {line}" for line in gone] + [f"new: {line}" for line in new]
        change = "; ".join(parts) or "the order of its stateful operators or sources changed"
    elif tuple(order_before) != order and sorted(order_before) == sorted(order):
        # Offsets are stored by number: Kafka's connector ignores those of another topic.
        change = (
            f"the order of its sources was {', '.join(order_before)}, and is {', '.join(order)}"
        )
    else:
        return
    raise CheckpointError(
        "STATEFUL_QUERY_CHANGED",
        f"the checkpoint of flow {flow.name!r} holds the state of another query: {change}",
        flow=flow.name,
        origin=flow.origin,
        hint="undo the change to continue from the checkpoint; or "
        f"`penstock migrate {flow.name}` recomputes the table separately and replaces it in "
        f"one step; --full-refresh {display} empties it first{flow.sink_reset}; or keep the "
        "table and declare the changed query as a flow with a new name, plus an "
        "append_flow(once=True) for what has to be filled in",
    )


def check_migration(flow: Flow, state: FlowState | None) -> None:
    """Refuse a flow with an unfinished migration: `MIGRATION_UNFINISHED`."""
    if state is not None and state.migration is not None:
        raise PlanError(
            "MIGRATION_UNFINISHED",
            f"the migration of flow {flow.name!r} was interrupted while its table was replaced",
            origin=flow.origin,
            hint=f"`penstock migrate {flow.name} --resume` ends it",
        )
