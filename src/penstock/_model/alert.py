"""Alerts: conditions on a running pipeline and targets of notifications."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class AlertKind(StrEnum):
    """Condition of an alert."""

    FAILURE_RATE = "failure_rate"
    """Share of rows that broke a rule, over the last batches."""
    BACKLOG = "backlog"
    """Records that wait at the sources of a flow."""
    NO_PROGRESS = "no_progress_seconds"
    """Seconds since the last batch of a running flow."""
    LAG = "lag_seconds"
    """Age of the oldest record, file or commit that a flow has not read."""
    RETENTION = "retention_seconds"
    """Seconds until a source removes rows that a flow has not read."""
    WATERMARK = "watermark_seconds"
    """Seconds that a watermark has stood still while rows came in."""
    SCHEMA_CHANGE = "schema_change"
    """A dataset has other columns than in the last update, or a source brought new ones."""
    FAILED = "failed"
    """A flow or the update failed."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alert.

    Attributes:
        name: Unique in the pipeline.
        threshold: Fires above it; for retention, below.
        flow: Only this flow; empty = all.
        dataset: Only this dataset, or its rules; empty = all.
        rule: Only this expectation; empty = all.
        batches: Failure rate: number of batches.
        min_rows: Failure rate: minimum number of rows.
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

    Attributes:
        webhook: URL for a POST; never shown, as it may contain a secret.
        slack: Whether the webhook expects the Slack format.
        headers: Headers of the request; never shown.
        command: Program and arguments; receives the alert as JSON on standard input.
        mail_to: Addresses.
        mail: `from`, `host`, `port`, `user`, `password`, `tls` (`starttls`, `ssl`, `none`).
    """

    webhook: str = field(default="", repr=False)
    slack: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = ()
    mail_to: tuple[str, ...] = ()
    mail: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """How messages call it."""
        if self.command:
            return f"command {self.command[0]}"
        return "mail" if self.mail_to else ("Slack webhook" if self.slack else "webhook")


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    """All alerts of a pipeline.

    Attributes:
        targets: All are notified of every alert.
        repeat_seconds: Minimum interval between two notifications of the same alert.
    """

    rules: tuple[AlertRule, ...] = ()
    targets: tuple[AlertTarget, ...] = ()
    repeat_seconds: float = 3600.0
