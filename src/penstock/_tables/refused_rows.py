"""What a writer needs to know of rows that a stateful operator refused: how many, and which."""

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.quality.rules import quoted
from penstock.quality.split import FAILED_RULES, QUARANTINE_COLUMNS

LATE = "late"
"""Reason of a row that came after the watermark had passed it."""
NO_EVENT_TIME = "no_event_time"
"""Reason of a row that belongs to no window, because its event time is NULL."""


@dataclass(frozen=True)
class Refused:
    """Rows of one batch that a stateful operator refused.

    Attributes:
        late: How many were older than the watermark; -1 = they are counted while they are kept.
        frame: The rows with the columns of the quarantine, where they are to be kept.
    """

    late: int = 0
    frame: DataFrame | None = None


class FindLateRows(Protocol):
    """Asked once per batch, when the batch has been computed."""

    @property
    def keeps(self) -> bool:
        """Whether the rows go to quarantine."""

    def find(self, df: DataFrame) -> Refused:
        """The rows of the batch that the writer was given as `df`."""


@dataclass(frozen=True)
class LateCounts:
    """What became of them: how many were late, how many rows are in quarantine now."""

    rows: int = 0
    kept: int = 0


def count_refused(kept: DataFrame) -> tuple[int, int]:
    """Late rows and all rows of a frame, in one job."""
    is_late = F.array_contains(F.col(FAILED_RULES), LATE)
    row = kept.agg(F.count(F.when(is_late, 1)).alias("late"), F.count(F.lit(1)).alias("all")).head()
    assert row is not None
    return int(row["late"]), int(row["all"])


def as_quarantine_rows(df: DataFrame, schema: StructType) -> DataFrame:
    """Give refused rows the columns of the table: its own where name and type agree, else NULL."""
    have = {field.name: field.dataType for field in df.schema}
    columns: list[Column] = []
    for field in schema:
        same = have.get(field.name) == field.dataType
        value = F.col(quoted(field.name)) if same else F.lit(None).cast(field.dataType)
        columns.append(value.alias(field.name))
    return df.select(*columns, *[F.col(name) for name in QUARANTINE_COLUMNS])
