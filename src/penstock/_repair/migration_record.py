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
    """A migration as it is stored.

    Attributes:
        migration_id: Epoch of the new checkpoint.
        stage: One of the stages above.
        start: Start position, for messages.
        position: The resolved start position.
        table_id: Delta's id of the table.
        query: Stateful operators, output mode and columns of the new query.
        old: State of the flow before the cut-over.
        old_version: Version of the table before the cut-over.
        old_quarantine: Version of the quarantine then; -1 if there was none.
        new_quarantine: Version of the quarantine before an undo.
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


def migration_of(body: dict[str, Any]) -> Migration:
    """A stored migration; operators stored by earlier versions get comparable names."""
    for content, name in ((body["old"], "stateful_operators"), (body["query"], "operators")):
        if content.get(name) is not None:
            content[name] = list(stable_operators(content[name]))
    return Migration(**body)
