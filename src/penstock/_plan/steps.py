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
    """Full refresh: remove a table's rows and start its flows over with new checkpoints."""

    dataset: str
    flows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PrepareTable:
    """Create a table, or bring its schema, comment and properties up to date.

    `registered_as` is its name in the Hive metastore; `None` = it is not registered.
    """

    dataset: str
    registered_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class _FlowStep:
    """What all steps that run a flow have.

    Attributes:
        target: Key of the table, or name of the sink, that it writes to.
        upstream: Datasets (keys) of this plan that must be done first; see `_runtime.tasks`.
        max_retries: Retries in a row before the flow is given up; `None` = as the update has it.
    """

    flow: str
    target: str
    upstream: tuple[str, ...] = ()
    max_retries: int | None = None


@dataclass(frozen=True, kw_only=True)
class StartFlow(_FlowStep):
    """Run a streaming flow: once over what is available, or until stopped.

    Attributes:
        interval_seconds: Trigger interval; `None` = everything available, then end.
        is_eager: The interval applies only while there are no new rows.
        trigger: Continuous processing or real-time mode instead of micro-batches at the interval.
    """

    output_mode: OutputMode
    interval_seconds: float | None = None
    is_eager: bool = False
    trigger: Trigger | None = None


@dataclass(frozen=True, kw_only=True)
class RunOnceFlow(_FlowStep):
    """Run a batch flow into a streaming table, unless it already ran since the last reset."""


@dataclass(frozen=True, kw_only=True)
class RefreshView(_FlowStep):
    """Repeat a batch query when one of its sources or the query changed.

    It makes all rows of a materialized view, or those of a window of a streaming table; or it gives
    new snapshots, which are applied.

    Attributes:
        interval_seconds: How often a continuous update looks again; `None` = one time.
        full: Recompute even if nothing changed.
    """

    interval_seconds: float | None = None
    full: bool = False


RunStep = StartFlow | RunOnceFlow | RefreshView


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of one update.

    Attributes:
        resets: Carried out first, in order.
        tables: Prepared next, upstream before downstream.
        runs: Started as their `upstream` datasets are done; in topological order.
        excluded: Datasets (keys) that the selection leaves out.
        continuous: All flows run until stopped.
        notes: What the user should know before it starts, one sentence each.
        setup_retries: How often resetting or preparing a table is tried again before its flows are
            given up; `None` = as the update has it.
        warnings: What will hurt later; `run` shows them, too.
        refused: Flows among `runs` that Spark cannot run, with the reason: they are not started.
    """

    resets: tuple[ResetTable, ...] = ()
    tables: tuple[PrepareTable, ...] = ()
    runs: tuple[RunStep, ...] = ()
    excluded: tuple[str, ...] = ()
    continuous: bool = False
    notes: tuple[str, ...] = ()
    setup_retries: int | None = None
    warnings: tuple[str, ...] = ()
    refused: Mapping[str, PenstockError] = field(default_factory=dict)
