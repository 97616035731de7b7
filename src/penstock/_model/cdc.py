"""Change data capture: how events or snapshots become a table of current or past rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


class ScdType(StrEnum):
    """Rows that a target keeps: the newest row of each key, or every version of it."""

    ONE = "1"
    TWO = "2"


@dataclass(frozen=True, kw_only=True)
class TrackHistory:
    """Columns whose changes create a new version; SCD type 2 only. `None` means not set."""

    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CdcSpec:
    """How a flow applies change events to its target.

    `source` is the name of a dataset as the user wrote it; `columns` are the columns of the target,
    `None` means all. Events that match `apply_as_truncates` (SCD type 1 only) delete all earlier
    rows. With `ignore_null_updates`, NULL in an event keeps the stored value. `columns_to_update`
    is a column of the source that lists the columns that an event changes.
    """

    source: str
    keys: tuple[str, ...]
    sequence_by: "str | Column"
    apply_as_deletes: "str | Column | None" = None
    apply_as_truncates: "str | Column | None" = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None
    scd_type: ScdType = ScdType.ONE
    track_history: TrackHistory = field(default_factory=TrackHistory)
    ignore_null_updates: bool = False
    ignore_null_columns: tuple[str, ...] | None = None
    ignore_null_except_columns: tuple[str, ...] | None = None
    columns_to_update: str | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotSpec:
    """How a flow applies whole snapshots of a source to its target.

    The source is a dataset that is compared with its last content. If it is `None`, `next_snapshot`
    takes the version of the last snapshot (`None` for the first call) and returns a DataFrame and
    its version, or `None` if there is no newer snapshot.
    """

    source: str | None = None
    next_snapshot: "Callable[[Any], tuple[Any, Any] | None] | None" = None
    keys: tuple[str, ...]
    scd_type: ScdType = ScdType.ONE
    track_history: TrackHistory = field(default_factory=TrackHistory)
