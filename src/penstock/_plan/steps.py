"""Steps of an update as frozen data: `explain` prints them, `_runtime` executes them.

Names in steps are canonical: a dataset is its `DatasetName.key`, a flow its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock._model.flow import OutputMode
from penstock._model.trigger import Trigger
from penstock.errors import PenstockError


@dataclass(frozen=True, kw_only=True)
class ResetTable:
    """Full refresh: remove a table's rows and restart its flows with new checkpoints."""

    dataset: str
    flows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PrepareTable:
    """Create a table, or bring its schema, comment and properties up to date."""

    dataset: str
    registered_as: str | None = None  # in the Hive metastore


@dataclass(frozen=True, kw_only=True)
class _FlowStep:
    flow: str
    target: str  # key of the table, or name of the sink, that it writes to
    upstream: tuple[str, ...] = ()  # keys of datasets that must be done first; see `_runtime.tasks`
    max_retries: int | None = None  # consecutive ones; None = as in the policy of the update


@dataclass(frozen=True, kw_only=True)
class StartFlow(_FlowStep):
    """Run a streaming flow: over all available rows, or until stopped."""

    output_mode: OutputMode
    interval_seconds: float | None = None  # None = process all available rows, then end
    is_eager: bool = False  # the interval applies only while there are no new rows
    trigger: Trigger | None = None  # continuous processing or real-time mode, without micro-batches


@dataclass(frozen=True, kw_only=True)
class RunOnceFlow(_FlowStep):
    """Run a batch flow into a streaming table, unless it already ran since the last reset."""


@dataclass(frozen=True, kw_only=True)
class RefreshView(_FlowStep):
    """Repeat a batch query when one of its sources or the query changed.

    The query computes all rows of a materialized view or the rows of a window of a streaming table,
    or returns new snapshots to apply.
    """

    interval_seconds: float | None = None  # between two checks for changes; None = one refresh
    full: bool = False  # recompute even if nothing changed


RunStep = StartFlow | RunOnceFlow | RefreshView


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of one update.

    `refused` maps the flows in `runs` that Spark cannot run to the reason: they are not started.
    """

    resets: tuple[ResetTable, ...] = ()  # carried out first, in order
    tables: tuple[PrepareTable, ...] = ()  # prepared next, upstream before downstream
    runs: tuple[RunStep, ...] = ()  # in topological order; each is started after its `upstream`
    excluded: tuple[str, ...] = ()  # datasets (keys) that the selection leaves out
    excluded_sinks: tuple[str, ...] = ()
    continuous: bool = False  # all flows run until stopped
    notes: tuple[str, ...] = ()  # for the user, before the update starts; one sentence each
    setup_retries: int | None = None  # of a reset or preparation; None = as in the policy
    warnings: tuple[str, ...] = ()  # about problems that appear later; also shown by `run`
    refused: Mapping[str, PenstockError] = field(default_factory=dict)
