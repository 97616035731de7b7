"""`expect*`: rules of the dataset that the same function defines, in any order of decorators."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock._api.arguments import Arguments, ColumnNames, F, checked_call, excusing, stand_in
from penstock._api.query import decorator
from penstock._model.expectation import Expectation, OnViolation, RowBounds

if TYPE_CHECKING:
    from pyspark.sql import Column

Rules = Mapping[str, "str | Column"]

_PARAMETERS = {
    "expect_all": OnViolation.WARN,
    "expect_all_or_drop": OnViolation.DROP,
    "expect_all_or_fail": OnViolation.FAIL,
    "expect_all_or_quarantine": OnViolation.QUARANTINE,
}


@checked_call
def expect(name: str, inv: "str | Column") -> Callable[[F], F]:
    """Keep and count rows that violate a rule.

    Args:
        name: Name of the rule, unique within its dataset.
        inv: SQL boolean expression or Column. A row passes only when it is true: NULL violates it.
    """
    return _single_rule("expect", name, inv, OnViolation.WARN)


@checked_call
def expect_or_drop(name: str, inv: "str | Column") -> Callable[[F], F]:
    """Move rows that violate a rule to quarantine and count them.

    Parameters as of `expect`: a row passes only when `inv` is true.
    """
    return _single_rule("expect_or_drop", name, inv, OnViolation.DROP)


@checked_call
def expect_or_quarantine(name: str, inv: "str | Column") -> Callable[[F], F]:
    """Like `expect_or_drop`; the rows are kept even where the pipeline's quarantine is off.

    Parameters as of `expect`: a row passes only when `inv` is true.
    """
    return _single_rule("expect_or_quarantine", name, inv, OnViolation.QUARANTINE)


@checked_call
def expect_or_fail(name: str, inv: "str | Column") -> Callable[[F], F]:
    """Fail the flow if a row violates a rule, and write nothing of its batch.

    Parameters as of `expect`: a row passes only when `inv` is true.
    """
    return _single_rule("expect_or_fail", name, inv, OnViolation.FAIL)


@checked_call
def expect_all(expectations: Rules) -> Callable[[F], F]:
    """Like `expect`, for several rules: name to condition."""
    return _all_rules("expect_all", expectations, OnViolation.WARN)


@checked_call
def expect_all_or_drop(expectations: Rules) -> Callable[[F], F]:
    """Like `expect_or_drop`, for several rules: name to condition."""
    return _all_rules("expect_all_or_drop", expectations, OnViolation.DROP)


@checked_call
def expect_all_or_quarantine(expectations: Rules) -> Callable[[F], F]:
    """Like `expect_or_quarantine`, for several rules: name to condition."""
    return _all_rules("expect_all_or_quarantine", expectations, OnViolation.QUARANTINE)


@checked_call
def expect_all_or_fail(expectations: Rules) -> Callable[[F], F]:
    """Like `expect_or_fail`, for several rules: name to condition."""
    return _all_rules("expect_all_or_fail", expectations, OnViolation.FAIL)


@checked_call
def expect_unique(
    name: str, columns: ColumnNames | str, *, on_violation: str | None = None
) -> Callable[[F], F]:
    """No two rows of a materialized view have the same values in some columns.

    Every row that shares its values with another one violates the rule. NULL equals NULL.

    Args:
        name: Name of the rule, unique within its dataset.
        columns: One or more columns.
        on_violation: `warn`, `drop`, `quarantine` or `fail`; `fail` if not given.
    """
    arguments = Arguments("expect_unique")
    keys = arguments.columns("columns", [columns] if isinstance(columns, str) else columns)
    action = arguments.choice("on_violation", on_violation, list(OnViolation)) or "fail"
    if not columns:
        arguments.reject("columns", "must name at least one column")
    rules = _named(arguments, name, f"unique ({', '.join(keys)})", action, unique=keys)
    return _decorator(arguments, rules) if rules and keys else excusing(arguments.registry)


@checked_call
def expect_row_count(
    name: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    on_violation: str | None = None,
) -> Callable[[F], F]:
    """A materialized view has at least or at most so many rows, counted after all other rules.

    Args:
        name: Name of the rule, unique within its dataset.
        minimum: At least so many rows.
        maximum: At most so many rows.
        on_violation: `warn`, or `fail`: the view keeps its last rows; `fail` if not given.
    """
    arguments = Arguments("expect_row_count")
    for parameter, value in (("minimum", minimum), ("maximum", maximum)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            arguments.reject(parameter, f"must be a whole number, not {type(value).__name__}")
            return excusing(arguments.registry)
    if minimum is None and maximum is None:
        arguments.reject("minimum", "or `maximum` must be given")
        return excusing(arguments.registry)
    action = arguments.choice("on_violation", on_violation, ["warn", "fail"]) or "fail"
    words = " and ".join(
        f"{word} {value}"
        for word, value in (("at least", minimum), ("at most", maximum))
        if value is not None
    )
    bounds = RowBounds(minimum=minimum, maximum=maximum)
    rules = _named(arguments, name, f"{words} rows", action, rows=bounds)
    return _decorator(arguments, rules) if rules else excusing(arguments.registry)


def _named(
    arguments: Arguments, name: object, words: str, action: str, **about: Any
) -> tuple[Expectation, ...]:
    parsed = _parse_pairs(arguments, "name", [(name, words)], OnViolation(action))
    return tuple(replace(rule, **about) for rule in parsed)


def _parse_rules(
    arguments: Arguments, parameter: str, rules: object, on_violation: OnViolation
) -> tuple[Expectation, ...]:
    if rules is None:
        return ()
    if not isinstance(rules, Mapping):
        arguments.reject(
            parameter, f"must be a dictionary of rule name to condition, not {type(rules).__name__}"
        )
        return ()
    return _parse_pairs(arguments, parameter, rules.items(), on_violation)


def parse_parameters(arguments: Arguments, values: Mapping[str, object]) -> tuple[Expectation, ...]:
    """Return the rules in the `expect_all*` parameters of a call."""
    return tuple(
        rule
        for parameter, on_violation in _PARAMETERS.items()
        for rule in _parse_rules(arguments, parameter, values.get(parameter), on_violation)
    )


def _parse_pairs(
    arguments: Arguments,
    parameter: str,
    pairs: Iterable[tuple[object, object]],
    on_violation: OnViolation,
) -> tuple[Expectation, ...]:
    parsed = []
    for name, inv in pairs:
        if not isinstance(name, str) or not name.strip():
            arguments.reject(
                parameter, "must have a string that is not blank as the name of each rule"
            )
            continue
        condition = arguments.condition(name, inv)
        if condition is not None:
            parsed.append(
                Expectation(
                    name=name,
                    condition=condition,
                    on_violation=on_violation,
                    origin=arguments.origin,
                )
            )
    return tuple(parsed)


def _single_rule(
    function_name: str, name: object, inv: object, on_violation: OnViolation
) -> Callable[[F], F]:
    arguments = Arguments(function_name)
    rules = _parse_pairs(arguments, "name", [(name, inv)], on_violation)
    return _decorator(arguments, rules) if rules else excusing(arguments.registry)


def _all_rules(function_name: str, rules: object, on_violation: OnViolation) -> Callable[[F], F]:
    arguments = Arguments(function_name)
    if rules is None:
        arguments.reject("expectations", "must be a dictionary of rule name to condition, not None")
    parsed = _parse_rules(arguments, "expectations", rules, on_violation)
    if parsed:
        return _decorator(arguments, parsed)
    # An empty dictionary is valid: rules may be read from a table, which may be empty.
    return cast("Callable[[F], F]", stand_in(arguments.registry, (rules,)))


def _decorator(arguments: Arguments, rules: tuple[Expectation, ...]) -> Callable[[F], F]:
    def declare(applied: Arguments, function: Callable[..., Any]) -> None:
        applied.registry.add_expectations(function, rules, applied.origin)

    return decorator(arguments, None, declare)
