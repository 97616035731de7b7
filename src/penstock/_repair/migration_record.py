"""The journal entry of a migration, kept for its undo."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._spark.generated_names import stable_operators

BUILDING, CUTTING, DONE = "building", "cutting", "done"
UNDOING, LEAVING = "undoing", "leaving"
"""Stages: the new table is built; it replaces the old one; done; the old one is restored; the
migration is discarded during its cut-over."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A migration as it is stored."""

    migration_id: str  # epoch of the new checkpoint
    flow: str
    stage: str
    start: str  # for messages
    position: Mapping[str, Any]  # the resolved start position
    table_id: str  # Delta's id
    query: Mapping[str, Any]  # stateful operators, output mode and columns of the new query
    old: Mapping[str, Any]  # state of the flow before the cut-over
    old_version: int  # of the table before the cut-over
    old_quarantine: int  # version before the cut-over; -1 = none
    new_quarantine: int = -1  # version before an undo


def migration_of(body: dict[str, Any]) -> Migration:
    """A stored migration; operators stored by earlier versions get comparable names."""
    for content, name in ((body["old"], "stateful_operators"), (body["query"], "operators")):
        if content.get(name) is not None:
            content[name] = list(stable_operators(content[name]))
    return Migration(**body)
