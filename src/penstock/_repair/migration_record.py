"""What is stored of a migration until it is done, and for going back afterwards."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._spark.generated_names import stable_operators

BUILDING, CUTTING, DONE = "building", "cutting", "done"
UNDOING, LEAVING = "undoing", "leaving"
"""Stages: the new table is filled; it takes over; it has; the old one comes back; the migration is
forgotten though its cut-over was begun."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A migration as it is stored.

    Attributes:
        migration_id: Epoch of the new checkpoint.
        flow: Name of the flow.
        stage: How far it is.
        start: Where it begins to read, in words.
        position: The same, fixed.
        table_id: Delta's id of the table.
        query: Stateful operators, output mode and columns of the new query.
        old: State of the flow before the cut-over.
        old_version: Of the table before the cut-over.
        old_quarantine: Likewise; -1 if there was none.
        new_quarantine: Of the quarantine when going back began.
    """

    migration_id: str
    flow: str
    stage: str
    start: str
    position: Mapping[str, Any]
    table_id: str
    query: Mapping[str, Any]
    old: Mapping[str, Any]
    old_version: int
    old_quarantine: int
    new_quarantine: int = -1


def migration_of(text: str) -> Migration:
    """A stored migration; what an earlier version stored is comparable with the query of today."""
    body = json.loads(text)
    for content, name in ((body["old"], "stateful_operators"), (body["query"], "operators")):
        if content.get(name) is not None:
            content[name] = list(stable_operators(content[name]))
    return Migration(**body)
