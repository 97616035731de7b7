"""The exception hierarchy of Penstock.

::

    PenstockError
    |- DefinitionError      a declaration in the user's source is wrong
    |  `- DefinitionErrors  all definition errors of a pipeline
    |- SpecError            a settings file, a setting or a command-line option is wrong
    |- PlanError            a valid pipeline, an impossible request
    |- UserCodeError        the user's code raised; `__cause__` is its exception
    |- ConnectorError       options of a source or sink are wrong
    |  `- MissingExtraError a Python package of an extra is not installed
    |- FlowError            a started flow failed; `retryable` if a retry may succeed
    |  |- ExpectationFailedError
    |  `- CheckpointError
    |- UpdateFailedError    the update ended with failed flows
    |- SetupError           the machine: Java, jars, ports, locks, disk
    `- InternalError        a bug in Penstock

Every error has a `condition`, a stable SCREAMING_SNAKE name that `docs/errors.md` explains.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock._model.origin import SourceLocation


class PenstockError(Exception):
    """Base class of all errors that Penstock raises.

    Args:
        condition: Stable name in SCREAMING_SNAKE case, explained in `docs/errors.md`.
        message: What happened and why, in one or two sentences.
        origin: The declaration that the error is about.
        hint: What to do about it.

    Attributes:
        exit_code: Exit code of `penstock` when this error ends a command.
    """

    exit_code = 2

    def __init__(
        self,
        condition: str,
        message: str,
        *,
        origin: "SourceLocation | None" = None,
        hint: str | None = None,
    ) -> None:
        self.condition = condition
        self.message = message
        self.origin = origin
        self.hint = hint
        super().__init__(condition, message)

    def __str__(self) -> str:
        """`[CONDITION] message`, then origin and hint, one per line."""
        lines = [f"[{self.condition}] {self.message}"]
        if self.origin is not None:
            lines.append(f"  declared at {self.origin}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class DefinitionError(PenstockError, ValueError):
    """A declaration in the user's source is wrong."""


class DefinitionErrors(DefinitionError):
    """All definition errors of a pipeline.

    Attributes:
        errors: In the order of their declarations.
    """

    def __init__(self, errors: Sequence[PenstockError]) -> None:
        self.errors = tuple(errors)
        count = len(self.errors)
        super().__init__(
            "INVALID_PIPELINE", f"the pipeline has {count} error{'s' if count != 1 else ''}"
        )

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class SpecError(PenstockError, ValueError):
    """A settings file, a setting or a command-line option is wrong."""


class PlanError(PenstockError):
    """The pipeline is valid, but the requested update is impossible."""


class UserCodeError(PenstockError):
    """The user's own code raised. The `__cause__` is their exception."""


class ConnectorError(PenstockError):
    """The options of a source or sink are wrong, or its system refused the request."""


class MissingExtraError(ConnectorError, ImportError):
    """A Python package that only an extra installs is missing; the hint names the extra."""


class FlowError(PenstockError):
    """A started flow failed.

    Attributes:
        flow: Name of the flow.
        batch_id: The failed micro-batch, if known.
        query_id: Spark's id of the streaming query, if known.
        retryable: Whether a retry of the same batch may succeed.
    """

    exit_code = 1
    retryable = False

    def __init__(
        self,
        condition: str,
        message: str,
        *,
        flow: str,
        batch_id: int | None = None,
        query_id: str | None = None,
        retryable: bool | None = None,
        origin: "SourceLocation | None" = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(condition, message, origin=origin, hint=hint)
        self.flow = flow
        self.batch_id = batch_id
        self.query_id = query_id
        if retryable is not None:
            self.retryable = retryable


class ExpectationFailedError(FlowError):
    """A row violated an `expect_or_fail` rule. Nothing of its batch was written. Never retried."""


class CheckpointError(FlowError):
    """A checkpoint is incompatible with the current query. Never retried."""


class UpdateFailedError(PenstockError):
    """At least one flow of the update failed.

    Attributes:
        failures: The error of each failed flow.
    """

    exit_code = 1

    def __init__(self, failures: Sequence[PenstockError]) -> None:
        self.failures = tuple(failures)
        flows = "1 flow" if len(self.failures) == 1 else f"{len(self.failures)} flows"
        super().__init__("UPDATE_FAILED", f"{flows} failed")


class SetupError(PenstockError):
    """The machine is not ready: Java, jars, ports, locks, disk."""

    exit_code = 3


class InternalError(PenstockError):
    """A bug in Penstock. The message requests a report."""

    exit_code = 70
