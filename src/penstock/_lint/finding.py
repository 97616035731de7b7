"""Lint rules and findings."""

from dataclasses import dataclass
from enum import StrEnum

from penstock._model.origin import SourceLocation


class Severity(StrEnum):
    NOTE = "note"
    """Worth knowing; often intended."""
    WARNING = "warning"
    """Causes problems later: missed rows, growing state, repeated work."""
    ERROR = "error"
    """Wrong: refused by Spark, lost or duplicated rows, an exposed secret."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True)
class Rule:
    """One lint rule. Its id and name are stable, never reused, and form the anchor of the page."""

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str

    @property
    def page(self) -> str:
        """Path and anchor of the documentation."""
        return f"docs/lint.md#{self.id.lower()}-{self.name}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One location that violates a rule.

    `message` never contains the value of a secret. A comment at `declared`, the declaration of the
    flow, also suppresses the finding.
    """

    rule: Rule
    origin: SourceLocation
    message: str
    flow: str | None = None
    declared: SourceLocation | None = None
