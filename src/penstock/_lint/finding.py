"""Rules and what they find."""

from dataclasses import dataclass
from enum import StrEnum

from penstock._model.origin import SourceLocation


class Severity(StrEnum):
    """How bad it is."""

    NOTE = "note"
    """Worth knowing; often right as it is."""
    WARNING = "warning"
    """Will hurt one day: rows missed, state that grows, work done twice."""
    ERROR = "error"
    """Wrong now: refused by Spark, rows lost or duplicated, a secret shown."""

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return list(Severity).index(self)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing to look for.

    Attributes:
        id: Stable: never given to another rule.
        name: Stable too; id and name make the anchor on the page.
        severity: Of each of its findings.
        summary: What it looks for, half a sentence.
        why: What happens otherwise.
        fix: What to do.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str

    @property
    def page(self) -> str:
        """Where the documentation describes it."""
        return f"docs/lint.md#{self.id.lower()}-{self.name}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One place that a rule complains about.

    Attributes:
        rule: Which.
        origin: The line to look at.
        message: What is there; never holds the value of a secret.
        flow: The flow or dataset that it is about.
        declared: Where that was declared: a comment there suppresses the finding as well.
    """

    rule: Rule
    origin: SourceLocation
    message: str
    flow: str | None = None
    declared: SourceLocation | None = None
