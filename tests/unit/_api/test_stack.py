"""Expectations and datasets that are declared on the same function."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as dp
from penstock._api.registry import Registry, registration
from penstock._api.stack import FunctionHistory
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.origin import SourceLocation


def _above():
    @dp.expect("r", "x")
    @dp.table(name="a")
    def f(): ...


def _below():
    @dp.table(name="a")
    @dp.expect("r", "x")
    def f(): ...


def _bare_above():
    @dp.expect("r", "x")
    @dp.table
    def a(): ...


def _bare_below():
    @dp.table
    @dp.expect("r", "x")
    def a(): ...


def _one_line_inside():
    dp.table(name="a")(dp.expect("r", "x")(lambda: None))


def _one_line_outside():
    dp.expect("r", "x")(dp.table(name="a")(lambda: None))


def _function_passed():
    def f(): ...

    dp.table(dp.expect("r", "x")(f), name="a")


def _broken_over_lines():
    def f(): ...

    dp.table(
        name="a",
    )(
        dp.expect(
            "r",
            "x",
        )(f)
    )


def _rules_first_table_later():
    @dp.expect("r", "x")
    def f(): ...

    dp.table(name="a")(f)


def _rules_later():
    @dp.table(name="a")
    def f(): ...

    dp.expect("r", "x")(f)


def _factory():
    def make(name, rules):
        @dp.table(name=name)
        @dp.expect_all(rules)
        def f(): ...

    make("a", {"r": "x"})


SHAPES = [
    _above,
    _below,
    _bare_above,
    _bare_below,
    _one_line_inside,
    _one_line_outside,
    _function_passed,
    _broken_over_lines,
    _rules_first_table_later,
    _rules_later,
    _factory,
]


def _rules(declare: Callable[[], None]) -> dict[str, list[str]]:
    registry = Registry()
    with registration(registry):
        declare()
    return {d.name: [e.name for e in d.expectations] for d in registry.build().datasets}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_dataset_has_its_expectation_in_any_form_of_declaration(shape):
    assert _rules(shape) == {"a": ["r"]}


def test_each_dataset_has_its_own_expectations_when_a_loop_reuses_a_function():
    def f(): ...

    def declare():
        for name in ("a", "b", "c"):
            dp.table(name=name)(dp.expect(f"rule {name}", "x")(f))

    assert _rules(declare) == {"a": ["rule a"], "b": ["rule b"], "c": ["rule c"]}


def test_expectations_of_a_function_apply_to_all_datasets_declared_from_it():
    def declare():
        @dp.expect("r", "x")
        def f(): ...

        for name in ("a", "b"):
            dp.table(name=name)(f)

    assert _rules(declare) == {"a": ["r"], "b": ["r"]}


def test_all_expectations_apply_when_a_stack_declares_two_datasets():
    def declare():
        @dp.expect("top", "x")
        @dp.table(name="b")
        @dp.expect("middle", "x")
        @dp.table(name="a")
        @dp.expect("bottom", "x")
        def f(): ...

    order = ["top", "middle", "bottom"]
    assert _rules(declare) == {"a": order, "b": order}


def _rule(name: str, line: int) -> Expectation:
    return Expectation(
        name=name,
        condition="x",
        on_violation=OnViolation.WARN,
        origin=SourceLocation("f.py", line),
    )


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_no_expectation_is_lost_or_duplicated_in_any_decorator_order(is_dataset):
    """`is_dataset` lists decorators from top to bottom; Python applies the lowest one first."""
    history = FunctionHistory(lambda: None)
    for line in range(len(is_dataset), 0, -1):
        if is_dataset[line - 1]:
            history.add_dataset(line, SourceLocation("f.py", line))
        else:
            history.add_rules((_rule(f"r{line}", line),), SourceLocation("f.py", line))
    rules_of, left_over = history.resolve()
    source_order = [f"r{line}" for line, dataset in enumerate(is_dataset, 1) if not dataset]
    datasets = {line for line, dataset in enumerate(is_dataset, 1) if dataset}
    assert set(rules_of) == datasets
    for rules in rules_of.values():
        assert [rule.name for rule in rules] == source_order
    assert [rule.name for rule in left_over] == ([] if datasets else source_order)
