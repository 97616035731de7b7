"""Change data capture: how events or snapshots become a table of current or past rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


class ScdType(StrEnum):
    """What a target keeps: the newest row of each key, or every version of it."""

    ONE = "1"
    TWO = "2"


@dataclass(frozen=True, kw_only=True)
class TrackHistory:
    """Columns whose changes create a new version; SCD type 2 only.

    Attributes:
        columns: Only these; `None` = not set.
        except_columns: All but these; `None` = not set.
    """

    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CdcSpec:
    """How a flow applies change events to its target.

    Attributes:
        source: Name of the dataset whose rows are the events, as the user wrote it.
        keys: Columns that identify a row of the target.
        sequence_by: SQL expression or Column that orders the events of a key.
        apply_as_deletes: Which events delete; `None` = none.
        apply_as_truncates: Which events remove everything before them; SCD type 1 only.
        columns: Columns of the target; `None` = all.
        except_columns: All columns but these; excludes `columns`.
        scd_type: What the target keeps.
        track_history: SCD type 2 only.
        ignore_null_updates: NULL in an event keeps the stored value.
        ignore_null_columns: Only for these; `None` = not given.
        ignore_null_except_columns: For all but these; `None` = not given.
        columns_to_update: Column of the source with the list of columns that an event changes.
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

    Attributes:
        source: Name of the dataset that is compared with its last content; `None` if
            `next_snapshot` returns the snapshots.
        next_snapshot: Takes the version of the last snapshot (`None` at first); returns a DataFrame
            and its version, or `None` when there is no newer one.
        keys: Columns that identify a row.
        scd_type: What the target keeps.
        track_history: SCD type 2 only.
    """

    source: str | None = None
    next_snapshot: "Callable[[Any], tuple[Any, Any] | None] | None" = None
    keys: tuple[str, ...]
    scd_type: ScdType = ScdType.ONE
    track_history: TrackHistory = field(default_factory=TrackHistory)
