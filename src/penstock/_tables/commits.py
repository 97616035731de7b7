"""The record of a batch in its Delta commit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_EMPTY: "Mapping[str, RuleCounts]" = MappingProxyType({})
_FORMAT = 1
# Keys of counts that are left out when they are 0.
_OPTIONAL = {"rows_deleted": "deleted", "rows_late": "late", "rows_duplicate": "duplicate"}


@dataclass(frozen=True)
class RuleCounts:
    """How many rows of a batch passed a rule and how many broke it."""

    passed: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """What one batch wrote, as recorded in its commit of the target table.

    Attributes:
        app_id: Application id of the flow's transactions in the table.
        batch_id: Micro-batch; `None` for a batch query.
        version: Version of the target table; `None` for a batch without rows, which has no commit.
        quarantine_version: Version of the quarantine table; `None` without quarantined rows.
        replayed: The batch had been committed before, and was only evaluated this time.
        rows_written: Rows in the target; of a CDC flow the upserts that were applied.
        rows_deleted: Deletes that a CDC flow applied.
        rows_quarantined: Rows in the quarantine table.
        rows_dropped: Rows that a drop rule removed, with quarantine off.
        rows_late: Rows behind the watermark; those that are kept count in `rows_quarantined`, too.
        rows_duplicate: Rows whose key the table had already, in a table that takes each key once.
        rules: Counts per expectation; exact, and over all rows of the batch.
        fingerprint: Of a materialized view's query.
        timestamp_ms: When the commit was made; `None` before it is read back.
        duration_seconds: Of the write; 0 when read back.
    """

    flow: str
    app_id: str
    batch_id: int | None
    version: int | None
    quarantine_version: int | None = None
    replayed: bool = False
    rows_written: int = 0
    rows_deleted: int = 0
    rows_quarantined: int = 0
    rows_dropped: int = 0
    rows_late: int = 0
    rows_duplicate: int = 0
    rules: Mapping[str, RuleCounts] = field(default_factory=lambda: _EMPTY)
    fingerprint: str | None = None
    timestamp_ms: int | None = None
    duration_seconds: float = 0.0

    def to_metadata(self) -> str:
        content: dict[str, Any] = {
            "penstock": _FORMAT,
            "flow": self.flow,
            "app": self.app_id,
            "batch": self.batch_id,
            "written": self.rows_written,
            "quarantined": self.rows_quarantined,
            "dropped": self.rows_dropped,
        }
        counts = {key: getattr(self, name) for name, key in _OPTIONAL.items()}
        content |= {key: count for key, count in counts.items() if count}
        if self.quarantine_version is not None:
            content["quarantine_version"] = self.quarantine_version
        if self.rules:
            content["rules"] = {k: [v.passed, v.failed] for k, v in self.rules.items()}
        if self.fingerprint is not None:
            content["fingerprint"] = self.fingerprint
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def result_from_commit(version: int, commit_info: Mapping[str, Any]) -> CommitResult | None:
    """The record in a `commitInfo` action; `None` if Penstock did not write the commit."""
    text = commit_info.get("userMetadata")
    if not isinstance(text, str) or '"penstock"' not in text:
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("penstock") != _FORMAT or "app" not in content:
        return None
    return CommitResult(
        flow=content["flow"],
        app_id=content["app"],
        batch_id=content["batch"],
        version=version,
        quarantine_version=content.get("quarantine_version"),
        rows_written=content.get("written", 0),
        rows_quarantined=content.get("quarantined", 0),
        rows_dropped=content.get("dropped", 0),
        rules={k: RuleCounts(*v) for k, v in content.get("rules", {}).items()},
        fingerprint=content.get("fingerprint"),
        timestamp_ms=commit_info.get("timestamp"),
        **{name: content.get(key, 0) for name, key in _OPTIONAL.items()},
    )
