"""Counts of rules in events: one record per batch, dataset and rule."""

from collections.abc import Iterator
from typing import Any

from penstock._observe.codec import time_text
from penstock._observe.events import Event, FlowProgress


def rule_counts(event: Event) -> Iterator[dict[str, Any]]:
    """The records of an event; empty unless it reports a batch of a dataset with rules."""
    if not isinstance(event.body, FlowProgress):
        return
    origin, body = event.origin, event.body
    batches = rule_batches(body)
    for counts in body.expectations:
        yield {
            "timestamp": time_text(event.timestamp),
            "update_id": origin.update_id or None,
            "flow": origin.flow_name or None,
            "batch_id": origin.batch_id,
            "batches": batches,
            "dataset": counts.dataset,
            "rule": counts.name,
            "passed": counts.passed_records,
            "failed": counts.failed_records,
        }


def rule_batches(body: FlowProgress) -> int:
    """The number of batches with rule counts in an event."""
    rolled = body.rolled_up
    if rolled is None:
        return int(bool(body.expectations))
    if rolled.rule_batches is None:  # written before this field existed
        return rolled.batches if body.expectations else 0
    return rolled.rule_batches
