import threading

import pytest

import penstock as dp
from penstock._api.registry import Registry, registration
from penstock._model.dataset import DatasetKind, LateRows
from penstock._model.expectation import OnViolation
from penstock.errors import DefinitionError, DefinitionErrors


def test_declaration_is_refused_when_no_registry_is_active():
    with pytest.raises(DefinitionError) as caught:

        @dp.table
        def orders(): ...

    assert caught.value.condition == "OUTSIDE_PIPELINE"
    assert caught.value.origin.file.endswith("test_registry.py")
    assert "penstock run" in str(caught.value)


def test_declaration_is_refused_after_the_files_were_loaded():
    with registration(Registry()):
        late = dp.table(name="late")
    with pytest.raises(DefinitionError, match="OUTSIDE_PIPELINE"):
        late(lambda: None)


def test_decorator_that_was_not_applied_to_a_function_is_a_warning():
    with registration(Registry()) as registry:
        dp.view(name="lost")
        dp.table(comment="x")(lambda: None)
        dp.create_table(name="empty")
        expect = dp.expect("lost too", "x > 1")
        kept = dp.expect("kept", "x > 1")

        @kept
        @dp.table
        def orders(): ...

        lost_view, lost_rule = registry.declared().warnings
        assert ": `view` was not applied to a function" in lost_view
        assert ": `expect` was not applied to a function" in lost_rule
        expect(orders)
    assert registry.declared().warnings == (lost_view,)


def test_registry_is_not_active_in_another_thread():
    conditions = []

    def declare():
        try:
            dp.create_streaming_table("x")
        except DefinitionError as error:
            conditions.append(error.condition)

    with registration(Registry()):
        thread = threading.Thread(target=declare)
        thread.start()
        thread.join()
    assert conditions == ["OUTSIDE_PIPELINE"]


def test_outer_registry_is_active_again_after_an_inner_one():
    outer, inner = Registry(), Registry()
    with registration(outer):
        with registration(inner):
            dp.create_streaming_table("a")
        dp.create_streaming_table("b")
    assert [d.name for d in inner.build().datasets] == ["a"]
    assert [d.name for d in outer.build().datasets] == ["b"]


def test_declarations_keep_their_order():
    registry = Registry()
    with registration(registry):
        dp.create_streaming_table("z")

        @dp.append_flow(target="z")
        def feed(): ...

        @dp.view
        def y(): ...

        dp.create_sink("out", "console")

        @dp.materialized_view(name="gold.x")
        def x(): ...

        @dp.table
        def w(): ...

    definition = registry.build()
    assert [(d.name, d.kind) for d in definition.datasets] == [
        ("z", DatasetKind.STREAMING_TABLE),
        ("y", DatasetKind.TEMPORARY_VIEW),
        ("gold.x", DatasetKind.MATERIALIZED_VIEW),
        ("w", None),
    ]
    assert [(f.name, f.target, f.implicit) for f in definition.flows] == [
        ("feed", "z", False),
        ("y", "y", True),
        ("gold.x", "gold.x", True),
        ("w", "w", True),
    ]
    assert [s.name for s in definition.sinks] == ["out"]
    assert definition.flows[1].function is y


def test_create_table_declares_an_empty_table_when_it_decorates_no_function():
    registry = Registry()
    with registration(registry):
        dp.create_table(
            "first",
            comment="c",
            expect_all={"known": "a > 0"},
            expect_all_or_quarantine={"kept": "b > 0"},
            late_rows="quarantine",
            deduplicate_by=["a"],
        )
        dp.create_table(name="last", private=True)
        old = dp.create_table(name="query", comment="q")

        @old
        def anything(): ...

        @dp.create_table
        def bare(): ...

        dp.create_table(name="ruled", expect_all_or_drop={"known": "a > 0"})
    datasets = {dataset.name: dataset for dataset in registry.build().datasets}
    assert list(datasets) == ["first", "query", "bare", "ruled", "last"]
    assert [d.kind for d in datasets.values()].count(DatasetKind.STREAMING_TABLE) == 3
    assert (datasets["query"].kind, datasets["query"].comment) == (None, "q")
    first = datasets["first"]
    assert [rule.name for rule in first.expectations] == ["known", "kept"]
    assert (first.late_rows, first.deduplicate_by) == (LateRows.QUARANTINE, ("a",))
    assert [flow.name for flow in registry.build().flows] == ["query", "bare"]
    assert datasets["last"].private


def test_an_empty_table_is_declared_once_when_its_notebook_is_executed_again():
    registry = Registry()
    notebook = compile("dp.create_table(name='raw')", "notebook.py", "exec")
    with registration(registry):
        exec(notebook, {"dp": dp})
        with registry.repeating():
            exec(notebook, {"dp": dp})
    assert [dataset.name for dataset in registry.build().datasets] == ["raw"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_function": "a", "name": "b"}, "`name` is given twice"),
        ({"query_function": "a", "replace_where": "x > 1"}, "`replace_where` belongs to a query"),
        ({"expect_all": {"r": "x > 1"}}, "`name` must be given"),
        ({"query_function": "a..b"}, "`name`"),
    ],
)
def test_create_table_is_refused_when_its_arguments_are_invalid(arguments, message):
    registry = Registry()
    with registration(registry):
        dp.create_table(**arguments)
    (error,) = registry.errors
    assert message in error.message


def test_datasets_with_the_same_name_are_both_recorded():
    registry = Registry()
    with registration(registry):
        dp.create_streaming_table("orders")
        dp.create_streaming_table("Orders")
    assert [d.name for d in registry.build().datasets] == ["orders", "Orders"]


def test_all_errors_are_raised_together():
    registry = Registry()
    with registration(registry):
        dp.create_streaming_table("a", partition_cols="day")
        dp.create_sink("a.b", "console")

        @dp.table(nmae="x")
        def fine(): ...

    with pytest.raises(DefinitionErrors) as caught:
        registry.build()
    assert [e.condition for e in caught.value.errors] == [
        "INVALID_PARAMETER",
        "INVALID_NAME",
        "UNKNOWN_PARAMETER",
    ]
    assert len({e.origin.line for e in caught.value.errors}) == 3


def test_duplicate_expectation_error_names_both_locations():
    registry = Registry()
    with registration(registry):

        @dp.expect("positive", "a > 0")
        @dp.table
        @dp.expect_all_or_drop({"positive": "b > 0"})
        def t(): ...

    (error,) = registry.errors
    assert error.condition == "DUPLICATE_EXPECTATION"
    assert error.message.count("test_registry.py:") == 2


def test_duplicate_expectation_in_two_dictionaries_is_an_error():
    registry = Registry()
    with registration(registry):
        dp.create_streaming_table("t", expect_all={"a": "x"}, expect_all_or_fail={"a": "y"})
    assert [e.condition for e in registry.errors] == ["DUPLICATE_EXPECTATION"]


def test_expectations_of_different_datasets_may_have_the_same_name():
    registry = Registry()
    with registration(registry):
        for name in ("a", "b"):

            @dp.table(name=name)
            @dp.expect("positive", "x > 0")
            def t(): ...

    assert [d.expectations[0].name for d in registry.build().datasets] == ["positive"] * 2


def test_expectations_without_a_dataset_are_errors():
    registry = Registry()
    with registration(registry):

        @dp.expect("positive", "x > 0")
        def forgotten(): ...

        @dp.append_flow(target="orders")
        @dp.expect("flow rule", "x > 0")
        def feed(): ...

    errors = registry.errors
    assert [e.condition for e in errors] == ["EXPECTATION_WITHOUT_DATASET"] * 2
    assert "forgotten" in errors[0].message
    assert "create_streaming_table('orders'" in errors[1].hint


def test_expectations_add_no_error_when_their_dataset_is_invalid():
    registry = Registry()
    with registration(registry):

        @dp.table("orders")
        @dp.expect("positive", "x > 0")
        def orders(): ...

    assert [e.condition for e in registry.errors] == ["DECORATOR_ARGUMENT_NOT_CALLABLE"]


def test_origin_is_the_line_of_the_decorator():
    registry = Registry()
    with registration(registry):

        @dp.expect("upper", "true")
        @dp.table(
            name="t",
        )
        @dp.expect("lower", "true")
        def t(): ...

    dataset = registry.build().datasets[0]
    upper, lower = dataset.expectations
    assert (upper.name, lower.name) == ("upper", "lower")
    assert upper.origin.line == dataset.origin.line - 1
    assert lower.origin.line == dataset.origin.line + 3


def test_each_expect_decorator_sets_its_action():
    registry = Registry()
    with registration(registry):

        @dp.table
        @dp.expect("a", "1")
        @dp.expect_or_drop("b", "1")
        @dp.expect_or_fail("c", "1")
        @dp.expect_all({"d": "1", "e": "1"})
        @dp.expect_all_or_drop({"f": "1"})
        @dp.expect_all_or_fail({"g": "1"})
        def t(): ...

    rules = registry.build().datasets[0].expectations
    warn, drop, fail = OnViolation.WARN, OnViolation.DROP, OnViolation.FAIL
    assert [(r.name, r.on_violation) for r in rules] == [
        ("a", warn),
        ("b", drop),
        ("c", fail),
        ("d", warn),
        ("e", warn),
        ("f", drop),
        ("g", fail),
    ]


def test_quarantine_unique_and_row_count_expectations_are_declared():
    registry = Registry()
    with registration(registry):

        @dp.materialized_view
        @dp.expect_or_quarantine("kept", "a > 0")
        @dp.expect_all_or_quarantine({"kept too": "b > 0"})
        @dp.expect_unique("one", ["a", "b"], on_violation="DROP")
        @dp.expect_unique("single", "a")
        @dp.expect_row_count("some", minimum=1, maximum=9)
        def people(): ...

        dp.create_streaming_table("t", expect_all_or_quarantine={"kept": "a > 0"})

    people_, table = registry.build().datasets
    assert [(r.name, r.condition, r.on_violation, r.unique) for r in people_.expectations] == [
        ("kept", "a > 0", OnViolation.QUARANTINE, ()),
        ("kept too", "b > 0", OnViolation.QUARANTINE, ()),
        ("one", "unique (a, b)", OnViolation.DROP, ("a", "b")),
        ("single", "unique (a)", OnViolation.FAIL, ("a",)),
        ("some", "at least 1 and at most 9 rows", OnViolation.FAIL, ()),
    ]
    bounds = people_.expectations[-1].rows
    assert bounds is not None
    assert [bounds.hold(rows) for rows in (0, 1, 9, 10)] == [False, True, True, False]
    assert table.expectations[0].on_violation is OnViolation.QUARANTINE


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: dp.expect_unique("one", []), "at least one column"),
        (lambda: dp.expect_unique("one", None), "at least one column"),
        (lambda: dp.expect_unique("one", ["a"], on_violation="explode"), "must be one of"),
        (lambda: dp.expect_row_count("some"), "must be given"),
        (lambda: dp.expect_row_count("some", minimum="3"), "whole number"),
        (lambda: dp.expect_row_count("some", minimum=1, on_violation="drop"), "must be one of"),
    ],
)
def test_invalid_unique_and_row_count_expectations_are_errors(declare, message):
    registry = Registry()
    with registration(registry):

        @dp.table
        @declare()
        def people(): ...

    (error,) = registry.errors
    assert error.condition == "INVALID_PARAMETER"
    assert message in str(error)
