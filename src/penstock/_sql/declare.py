"""SQL source text: every statement goes to the active registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock._api.registry import active_registry
from penstock._model.origin import SourceLocation
from penstock.errors import DefinitionError


@dataclass
class SqlContext:
    """What one statement of a source tells the next; one per file, shared by a notebook's cells.

    Attributes:
        variables: Replaces `${key}`: the pipeline's configuration, and what `SET` added.
        catalog: Set by `USE CATALOG`; `None` = the pipeline's.
        schema: Set by `USE SCHEMA`; `None` = the pipeline's.
    """

    variables: dict[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    catalog: str | None = None
    schema: str | None = None


def declare_sql(text: str, *, file: str, context: SqlContext, first_line: int = 1) -> None:
    """Declare everything that SQL text declares. What is wrong is recorded, never raised.

    Args:
        text: Statements, separated by `;`.
        file: As in a `SourceLocation`.
        context: Updated by `USE` and `SET`.
        first_line: Line of the file at which the text begins.
    """
    registry = active_registry("SQL")
    registry.record(
        DefinitionError(
            "FEATURE_NOT_AVAILABLE",
            "SQL sources are not available yet",
            origin=SourceLocation(file, first_line),
        )
    )
