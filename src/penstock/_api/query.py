"""Functions that all decorators of query functions share."""

import inspect
from collections.abc import Callable
from typing import Any

from penstock._api.arguments import Arguments, excusing
from penstock.errors import DefinitionError

Declare = Callable[[Arguments, Callable[..., Any]], None]
"""Adds the declaration of a decorator to the registry, for the decorated function."""


def decorator(call: Arguments, query_function: object, declare: Declare) -> Callable[..., Any]:
    """Return the function if the decorator is used bare, otherwise the decorator.

    Args:
        call: The call of the decorator; its origin is used if the decorator is bare.
        query_function: The positional argument; `None` if the decorator is called with options.
        declare: Called once for each function that the decorator is applied to.
    """

    def decorate(function: Any) -> Any:
        call.registry.unapplied.pop(call, None)
        arguments = Arguments(call.function)  # its origin is the line where it is applied
        if callable(function):
            declare(arguments, function)
        else:
            _not_callable(arguments, function)
        return function

    if query_function is None:
        call.registry.unapplied[call] = f"{call.origin}: `{call.function}`"
        return decorate
    if not callable(query_function):
        _not_callable(call, query_function)
        return excusing(call.registry)
    declare(call, query_function)
    return query_function


def is_query_function(arguments: Arguments, function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments; records an error if not."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a callable of C code without a signature
        return True
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if not required:
        return True
    arguments.registry.record(
        DefinitionError(
            "QUERY_FUNCTION_HAS_PARAMETERS",
            f"the query function `{getattr(function, '__name__', function)}` requires "
            f"{', '.join(f'`{name}`' for name in required)}, but is called without arguments",
            origin=arguments.origin,
            hint="give the parameters defaults, or define the function inside of another one "
            "that takes them",
        )
    )
    return False


def takes(
    arguments: Arguments, function: Callable[..., Any], *values: object, problem: str
) -> bool:
    """Whether a function can be called with these values; records the problem if not."""
    try:
        inspect.signature(function).bind(*values)
    except TypeError:
        arguments.reject("function", problem)
        return False
    except ValueError:  # a callable of C code without a signature
        pass
    return True


def own_name(
    arguments: Arguments, function: object, check: Callable[[str, object], str | None]
) -> str | None:
    """The name of a function, as the name of its dataset, flow or sink; records errors."""
    if not hasattr(function, "__name__"):
        arguments.reject("name", "must be given: the function has no name of its own")
        return None
    return check("name", function.__name__)


def _not_callable(arguments: Arguments, value: object) -> None:
    has_name = isinstance(value, str) and not arguments.function.startswith("expect")
    hint = f"write `@{arguments.function}(name=...)`" if has_name else None
    arguments.registry.record(
        DefinitionError(
            "DECORATOR_ARGUMENT_NOT_CALLABLE",
            f"`{arguments.function}` decorates a function, not {type(value).__name__}",
            origin=arguments.origin,
            hint=hint,
        )
    )
