"""The lines of Delta commits, and the record of a batch in its commit."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FORMAT = 1
_ACTION = re.compile(r'\s*\{\s*"(\w+)"')  # other writers may add spaces
# Counts that are omitted from the record when they are 0, with their keys.
_OPTIONAL = {"rows_deleted": "deleted", "rows_late": "late", "rows_duplicate": "duplicate"}


@dataclass(frozen=True)
class RuleCounts:
    passed: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """What one batch wrote, as recorded in its commit of the target table."""

    flow: str
    app_id: str  # application id of the flow's transactions
    batch_id: int | None  # None for a batch query
    version: int | None  # version of the target table; None for a batch without rows
    quarantine_version: int | None = None
    replayed: bool = False  # committed before, and only evaluated this time
    rows_written: int = 0  # of a CDC flow: the applied upserts
    rows_deleted: int = 0
    rows_quarantined: int = 0
    rows_dropped: int = 0  # removed by a drop rule, with quarantine off
    rows_late: int = 0  # behind the watermark; those kept count as quarantined, too
    rows_duplicate: int = 0  # with the key of a row in the table or batch (deduplicate_by)
    rules: Mapping[str, RuleCounts] = field(default_factory=dict)  # over all rows of the batch
    fingerprint: str | None = None  # fingerprint of a materialized view's query
    timestamp_ms: int | None = None  # None before it is read back

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


def lines_of(text: str) -> list[str]:
    """The lines of a string, such as JSON actions or log entries.

    `str.splitlines` would also split at U+0085, U+2028 and U+2029, which JSON strings may contain.
    """
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def actions_of(lines: Iterable[str], kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind, such as `add`, among the lines of a commit.

    Only their lines are parsed. Raises `ValueError` if one of these is damaged.
    """
    for line in lines:
        match = _ACTION.match(line)
        if match is not None and match[1] == kind:
            yield json.loads(line)[kind]


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
