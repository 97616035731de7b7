"""Alerts: conditions on a running pipeline and targets of notifications."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class AlertKind(StrEnum):
    FAILURE_RATE = "failure_rate"
    """Share of rows that violated a rule in the last batches."""
    BACKLOG = "backlog"
    """Records at the sources of a flow that have not been read."""
    NO_PROGRESS = "no_progress_seconds"
    """Seconds since the last batch of a running flow."""
    LAG = "lag_seconds"
    """Age of the oldest record, file or commit that a flow has not read."""
    RETENTION = "retention_seconds"
    """Seconds until a source removes rows that a flow has not read."""
    WATERMARK = "watermark_seconds"
    """Seconds for which a watermark has not advanced although rows arrived."""
    SCHEMA_CHANGE = "schema_change"
    """The columns of a dataset changed since the last update, or a source has new columns."""
    FAILED = "failed"
    """A flow or the update failed."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alert; its name is unique in the pipeline.

    It fires when the value is above the threshold; for retention, below it. An empty `flow`,
    `dataset` (whose rules are meant, too) or `rule` means all. `batches` and `min_rows` apply to
    the failure rate only.
    """

    name: str
    kind: AlertKind
    threshold: float = 0.0
    flow: str = ""
    dataset: str = ""
    rule: str = ""
    batches: int = 5
    min_rows: int = 1


@dataclass(frozen=True, kw_only=True)
class AlertTarget:
    """Target of notifications. Exactly one of webhook, command and mail_to is set.

    The webhook (a URL for a POST, in the Slack format if `slack`) and the headers are never shown,
    as they may contain secrets. The command receives the alert as JSON on standard input. The keys
    of `mail` are `from`, `host`, `port`, `user`, `password`, `tls` (`starttls`, `ssl`, `none`).
    """

    webhook: str = field(default="", repr=False)
    slack: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = ()
    mail_to: tuple[str, ...] = ()
    mail: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The name of the target in messages."""
        if self.command:
            return f"command {self.command[0]}"
        return "mail" if self.mail_to else ("Slack webhook" if self.slack else "webhook")


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    """All alerts of a pipeline; all targets are notified of every alert.

    `repeat_seconds` is the minimum interval between two notifications of the same alert.
    """

    rules: tuple[AlertRule, ...] = ()
    targets: tuple[AlertTarget, ...] = ()
    repeat_seconds: float = 3600.0
