"""Checks of the arguments that users pass to the declarative API.

Errors are recorded with the name of the parameter, not raised: loading continues. Messages contain
values only if these are from a closed set: options may contain secrets.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast, get_args

from penstock._api.registry import Registry, active_registry
from penstock._model.name import resolve_name, split_name
from penstock._model.origin import capture_origin
from penstock._model.similar import nearest, suggested
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

ConfValues = Mapping[str, str | bool | int | float]
"""What users may pass as properties, settings and options; numbers and booleans become strings."""

ColumnNames = list[str] | tuple[str, ...]

_alias: ContextVar[str | None] = ContextVar("penstock_alias", default=None)


def checked_call(function: Callable[P, R]) -> Callable[P, R]:
    """Record a `DefinitionError` for a call with wrong parameters instead of raising `TypeError`.

    Unknown keywords are recorded and removed; if the other arguments do not bind either, the
    function is not called and an identity decorator is returned, so that loading continues.

    Raises:
        DefinitionError: No registry is active.
    """
    signature = _with_keywords(inspect.signature(function))
    name = function.__name__

    @wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R:
        called = _alias.get() or name
        registry = active_registry(called)
        unknown = [key for key in kwargs if key not in signature.parameters]
        for key in unknown:
            listed = ", ".join(f"`{known}`" for known in signature.parameters)
            registry.record(
                DefinitionError(
                    "UNKNOWN_PARAMETER",
                    f"`{called}` has no parameter `{key}`",
                    origin=capture_origin(),
                    hint=suggested(key, signature.parameters, f"it has {listed}"),
                )
            )
        known_only = {key: value for key, value in kwargs.items() if key not in unknown}
        try:
            signature.bind(*args, **known_only)
        except TypeError as error:
            if not unknown:  # otherwise, the missing parameter is most likely the misspelled one
                hint = "pass later arguments by name" if "positional" in str(error) else None
                registry.record(
                    DefinitionError(
                        "INVALID_CALL", f"`{called}`: {error}", origin=capture_origin(), hint=hint
                    )
                )
            return cast(R, stand_in(registry, args))
        return cast("Callable[..., R]", function)(*args, **known_only)

    guard.__signature__ = signature  # type: ignore[attr-defined]
    return guard


def aliased(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """Return a checked function under another name, which is used in its errors."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _alias.set(name)
        try:
            return function(*args, **kwargs)
        finally:
            _alias.reset(token)

    call.__name__ = call.__qualname__ = name
    return call


def _with_keywords(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the keys of an `Unpack[TypedDict]` as keyword parameters."""
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(parameter)
            continue
        (keywords,) = get_args(parameter.annotation)
        parameters += [
            inspect.Parameter(key, parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for key, kind in keywords.__annotations__.items()
        ]
    return signature.replace(parameters=parameters)


def stand_in(registry: Registry, args: tuple[object, ...]) -> object:
    """Return the function that a failed bare decorator is applied to, or else a decorator."""
    if len(args) == 1 and inspect.isfunction(args[0]):
        registry.excuse(args[0])
        return args[0]
    return excusing(registry)


def excusing(registry: Registry) -> Callable[[F], F]:
    """Return a decorator that declares nothing, for a call with invalid arguments."""

    def decorate(function: F) -> F:
        if callable(function):
            registry.excuse(function)
        return function

    return decorate


class Arguments:
    """Checks the arguments of one call and records errors.

    Every check returns the value as used by the model; `None` means "not given" and returns the
    default. For an invalid value, an error is recorded, and the default is returned.
    """

    def __init__(self, function: str) -> None:
        self.function = _alias.get() or function
        self.registry = active_registry(self.function)
        self.origin = capture_origin()

    def record(self, condition: str, problem: str, hint: str | None = None) -> None:
        """Record an error of the call."""
        message = f"`{self.function}`: {problem}"
        error = DefinitionError(condition, message, origin=self.origin, hint=hint)
        self.registry.record(error)

    def reject(self, parameter: str, problem: str, hint: str | None = None) -> None:
        """Record that the value of a parameter cannot be used."""
        self.record("INVALID_PARAMETER", f"`{parameter}` {problem}", hint)

    def require(self, **values: object) -> None:
        """Record an error for each of these parameters that is `None`."""
        for parameter, value in values.items():
            if value is None:
                self.reject(parameter, "must be given")

    def conflict(self, first: str, second: str, hint: str = "keep one of the two") -> None:
        """Record that two parameters cannot be used together."""
        problem = f"`{first}` and `{second}` cannot be used together"
        self.record("CONFLICTING_PARAMETERS", problem, hint)

    def _reject_type(self, parameter: str, wanted: str, value: object) -> None:
        hint = f'write `@{self.function}({parameter}="...")`' if inspect.isfunction(value) else None
        self.reject(parameter, f"must be {wanted}, not {type(value).__name__}", hint)

    def text(self, parameter: str, value: object) -> str | None:
        """A string that is not blank."""
        if value is None:
            return None
        if not isinstance(value, str):
            self._reject_type(parameter, "a string", value)
            return None
        if not value.strip():
            self.reject(parameter, "is blank")
            return None
        return value

    def free_text(self, parameter: str, value: object) -> str | None:
        """A string that may be blank, such as a comment."""
        if value is None or isinstance(value, str):
            return value
        self._reject_type(parameter, "a string", value)
        return None

    def flag(self, parameter: str, value: object) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self._reject_type(parameter, "True or False", value)
        return None

    def choice(self, parameter: str, value: object, allowed: Iterable[str]) -> str | None:
        """A value from a closed set, case-insensitive."""
        text = self.text(parameter, value)
        if text is None:
            return None
        known = list(allowed)
        if text.lower() in known:
            return text.lower()
        close = nearest(text, known)
        self.reject(
            parameter,
            f"is {text!r}, but must be one of {', '.join(known)}",
            f"did you mean {close!r}?" if close else None,
        )
        return None

    def columns(self, parameter: str, value: object, *, kind: str = "column") -> tuple[str, ...]:
        """A list of names; `kind` is the kind of the named objects."""
        if value is None:
            return ()
        if isinstance(value, str):
            self.reject(
                parameter, f"must be a list of {kind} names, not a string", f"write [{value!r}]"
            )
            return ()
        if not isinstance(value, list | tuple):
            self._reject_type(parameter, f"a list of {kind} names", value)
            return ()
        if not all(isinstance(entry, str) and entry.strip() for entry in value):
            self.reject(parameter, "must contain only strings")
            return ()
        names = tuple(entry.strip() for entry in value)
        return () if self.has_duplicates(parameter, names, kind=kind) else names

    def has_duplicates(self, parameter: str, names: Iterable[str], *, kind: str = "column") -> bool:
        """Whether a name is listed more than once, case-insensitive; records an error if so."""
        counts = Counter(name.lower() for name in names)
        duplicates = sorted(name for name, count in counts.items() if count > 1)
        if duplicates:
            self.reject(parameter, f"lists {kind} `{duplicates[0]}` more than once")
        return bool(duplicates)

    def mapping(self, parameter: str, value: object) -> Mapping[str, str]:
        """String keys with string values; numbers and booleans are converted."""
        result: dict[str, str] = {}
        if value is not None and not isinstance(value, Mapping):
            self._reject_type(parameter, "a dictionary", value)
            value = None
        for key, entry in (value or {}).items():
            if not isinstance(key, str):
                kind = type(key).__name__
                self.reject(parameter, f"has a key of type {kind}; it must be a string")
            elif isinstance(entry, bool):
                result[key] = "true" if entry else "false"
            elif isinstance(entry, str | int | float):
                result[key] = str(entry)
            else:
                self.reject(
                    parameter,
                    f"has a value of type {type(entry).__name__} at {key!r}; "
                    "it must be a string, a number or a boolean",
                )
        return MappingProxyType(result)

    def schema(self, value: object) -> "str | StructType | None":
        return cast("str | StructType | None", self._text_or("schema", value, "DDL", "StructType"))

    def dataset_name(self, parameter: str, value: object) -> str | None:
        """A name of one to three parts."""
        return self._name(parameter, value, lambda text: resolve_name(text, catalog="", schema=""))

    def single_name(self, parameter: str, value: object) -> str | None:
        """A name of one part, as for flows and sinks."""
        return self._name(parameter, value, _check_single)

    def _name(self, parameter: str, value: object, check: Callable[[str], object]) -> str | None:
        text = self.text(parameter, value)
        if text is not None:
            try:
                check(text)
            except ValueError as error:
                self.record(
                    "INVALID_NAME",
                    f"`{parameter}`: {error}",
                    "use letters, digits and underscores; put other characters in `backticks`",
                )
                return None
        return text

    def condition(self, rule: str, value: object) -> "str | Column | None":
        """The condition of an expectation: a SQL string that is not blank, or a Column."""
        if isinstance(value, str) and value.strip():
            return value
        if is_a(value, "Column"):
            return cast("Column", value)
        problem = (
            "is blank"
            if isinstance(value, str)
            else f"must be a SQL string or a Column, not {type(value).__name__}"
        )
        self.record("INVALID_EXPECTATION", f"the condition of `{rule}` {problem}")
        return None

    def row_condition(self, parameter: str, value: object) -> "str | Column | None":
        """A condition on rows: a SQL string that is not blank, or a Column."""
        return cast("str | Column | None", self._text_or(parameter, value, "SQL", "Column"))

    def _text_or(self, parameter: str, value: object, language: str, class_name: str) -> object:
        if value is None or isinstance(value, str):
            return self.text(parameter, value)
        if is_a(value, class_name):
            return value
        self._reject_type(parameter, f"a {language} string or a {class_name}", value)
        return None

    def unavailable(self, parameter: str, value: object) -> None:
        """Record an error if a parameter is given that is not available yet."""
        if value is not None:
            problem = f"`{parameter}` is not available yet"
            self.record("FEATURE_NOT_AVAILABLE", problem, "leave the parameter out")


def _check_single(name: str) -> None:
    if len(split_name(name)) > 1:
        raise ValueError(f"{name!r} must not have dots")


def is_a(value: object, class_name: str) -> bool:
    """Whether a value is an instance of a class with this name; does not import Spark."""
    return any(kind.__name__ == class_name for kind in type(value).__mro__)
