"""Spark's triggers and their notation in settings."""

import re
from dataclasses import dataclass
from enum import StrEnum

from penstock._model.duration import parse_seconds


class TriggerKind(StrEnum):
    """Names of the arguments of `DataStreamWriter.trigger`, and `default` for no trigger."""

    DEFAULT = "default"
    PROCESSING_TIME = "processingTime"
    AVAILABLE_NOW = "availableNow"
    ONCE = "once"
    CONTINUOUS = "continuous"
    REAL_TIME = "realTime"


@dataclass(frozen=True)
class Trigger:
    """When a streaming query processes new data.

    `seconds` is the interval of `processingTime`, the checkpoint interval of `continuous`, or the
    duration of a batch of `realTime`; `None` for the others.
    """

    kind: TriggerKind
    seconds: float | None = None

    @property
    def ends(self) -> bool:
        """Whether a query with this trigger terminates by itself."""
        return self.kind in (TriggerKind.AVAILABLE_NOW, TriggerKind.ONCE)

    def __str__(self) -> str:
        return self.kind.value if self.seconds is None else f"{self.kind.value}={self.seconds:g} s"


_TIMED = (TriggerKind.PROCESSING_TIME, TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME)
_DEFAULT_SECONDS = {TriggerKind.CONTINUOUS: 1.0, TriggerKind.REAL_TIME: 300.0}
TRIGGER_FORMS = (
    'default, availableNow, once, "processingTime=10 seconds", "continuous=1 second", '
    '"realTime=5 minutes"'
)
"""The supported notations, for messages."""


def parse_trigger(text: str) -> Trigger | None:
    """Read a trigger such as `availableNow` or `processingTime=10 seconds`.

    A duration alone means `processingTime`. Returns `None` if the text is not a trigger.
    """
    seconds = parse_seconds(text)
    if seconds is not None:
        return Trigger(TriggerKind.PROCESSING_TIME, seconds)
    word, _, rest = re.sub(r"[=(:]", " ", text).strip().rstrip(")").strip().partition(" ")
    kind = next((k for k in TriggerKind if k.value.lower() == word.lower()), None)
    rest = rest.strip().strip("\"'")
    if kind is None:
        return None
    if kind not in _TIMED:
        return Trigger(kind) if rest.lower() in ("", "true") else None
    interval = parse_seconds(rest) if rest else _DEFAULT_SECONDS.get(kind)
    return None if interval is None else Trigger(kind, interval)
