"""The base class of all parts of `dbutils`: missing attributes raise a clear error."""

from typing import Any

from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError


class UnavailableError(DefinitionError, AttributeError):
    """Something that `dbutils` does not have or cannot do here.

    `is_elsewhere`: it would be available if the data were on this machine.
    """

    def __init__(self, what: str, hint: str, *, is_elsewhere: bool = False) -> None:
        self.is_elsewhere = is_elsewhere
        super().__init__(
            "DBUTILS_NOT_AVAILABLE", f"{what} is not available", origin=capture_origin(), hint=hint
        )


class Part:
    """A part of `dbutils`; only its public members are available.

    Args:
        name: The name as the user writes it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def help(self, *_arguments: Any) -> None:
        """No effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        members = ", ".join(member for member in dir(self) if not member.startswith("_"))
        raise UnavailableError(f"`{self._name}.{name}`", f"`{self._name}` has {members} here")


def nothing(*_arguments: Any, **_parameters: Any) -> None:
    """Do nothing; replaces functions without an effect here."""
