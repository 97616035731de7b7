import functools
from collections.abc import Callable

import pytest

import penstock as dp
from penstock._api.registry import Registry, registration
from penstock._model.flow import OutputMode


class Column:
    """A stand-in for Spark's class, which `datasets` recognizes by its name."""

    def __bool__(self):
        raise ValueError("a Column is not a boolean")

    def __eq__(self, other):
        return Column()

    __hash__ = None


def _errors(declare: Callable[[], object]) -> list:
    registry = Registry()
    with registration(registry):
        declare()
    return list(registry.errors)


def _definition(declare: Callable[[], object]):
    registry = Registry()
    with registration(registry):
        declare()
    return registry.build()


FULL_TABLE = {
    "name": "c.s.t",
    "comment": "about",
    "spark_conf": {"a": "b"},
    "table_properties": {"quality": "gold"},
    "cluster_by": ["k"],
    "cluster_by_auto": True,
    "schema": "k INT",
    "path": "/data/t",
    "row_filter": "ROW FILTER f ON (c)",
    "private": True,
    "format": "delta",
    "quarantine": False,
}


@pytest.mark.parametrize("declare", [dp.table, dp.materialized_view, dp.create_table])
def test_dataset_has_all_fields_when_all_parameters_are_set(declare):
    dataset = _definition(lambda: declare(**FULL_TABLE)(lambda: None)).datasets[0]
    for field, value in FULL_TABLE.items():
        assert getattr(dataset, field) == (tuple(value) if field == "cluster_by" else value)


def test_streaming_table_has_all_fields_when_all_parameters_are_set():
    parameters = {key: value for key, value in FULL_TABLE.items() if key != "private"}
    dataset = _definition(lambda: dp.create_streaming_table(**parameters)).datasets[0]
    for field, value in parameters.items():
        assert getattr(dataset, field) == (tuple(value) if field == "cluster_by" else value)


@pytest.mark.parametrize(
    "declare",
    [
        lambda arguments: dp.table(**arguments)(_query),
        lambda arguments: dp.materialized_view(**arguments)(_query),
        lambda arguments: dp.create_streaming_table(**(arguments | {"name": "_query"})),
    ],
)
def test_parameter_none_means_the_default(declare):
    names = set(FULL_TABLE) | {"partition_cols"}

    def none_values(names):
        return dict.fromkeys(names - {"private"})

    with_none = _definition(lambda: declare(none_values(names))).datasets[0]
    without = _definition(lambda: declare({})).datasets[0]
    shown = [
        {key: getattr(d, key) for key in d.__dataclass_fields__ if key != "origin"}
        for d in (with_none, without)
    ]
    assert shown[0] == shown[1]


def _query(): ...


def test_implicit_flow_has_the_settings_of_its_table():
    flow = _definition(
        lambda: dp.table(spark_conf={"a": "b"}, output_mode="complete", comment="c")(_query)
    ).flows[0]
    assert flow.output_mode is OutputMode.COMPLETE
    assert (dict(flow.spark_conf), flow.comment, flow.once) == ({"a": "b"}, "c", False)


def test_temporary_means_private():
    dataset = _definition(lambda: dp.table(temporary=True)(_query)).datasets[0]
    assert dataset.private is True


def test_expectations_of_create_streaming_table_are_ordered_by_action():
    dataset = _definition(
        lambda: dp.create_streaming_table(
            "t",
            expect_all_or_fail={"c": "z"},
            expect_all={"a": "x"},
            expect_all_or_drop={"b": "y"},
        )
    ).datasets[0]
    assert [(e.name, e.condition, e.on_violation) for e in dataset.expectations] == [
        ("a", "x", "warn"),
        ("b", "y", "drop"),
        ("c", "z", "fail"),
    ]


def test_append_flow_sets_all_fields_of_the_flow():
    flow = _definition(lambda: dp.append_flow("s.t")(_query)).flows[0]
    assert (flow.name, flow.target, flow.once, flow.output_mode) == ("_query", "s.t", False, None)
    flow = _definition(
        lambda: dp.append_flow(
            target="s.t",
            name="backfill",
            once=True,
            spark_conf={"a": 1},
            comment="old rows",
            output_mode="Update",
        )(_query)
    ).flows[0]
    assert (flow.name, flow.once, flow.output_mode) == ("backfill", True, OutputMode.UPDATE)
    assert (dict(flow.spark_conf), flow.comment) == ({"a": "1"}, "old rows")


def test_sink_options_are_converted_to_strings():
    sink = _definition(
        lambda: dp.create_sink("out", "kafka", {"a": True, "b": 5, "c": 0.5, "d": "x"})
    ).sinks[0]
    assert dict(sink.options) == {"a": "true", "b": "5", "c": "0.5", "d": "x"}


@pytest.mark.parametrize("condition", ["a > 0", Column()])
def test_condition_is_stored_unchanged_when_string_or_column(condition):
    def declare():
        dp.table(dp.expect("r", condition)(_query))

    assert _definition(declare).datasets[0].expectations[0].condition is condition


def test_schema_is_stored_unchanged_when_it_is_a_struct_type():
    from pyspark.sql.types import StructType

    schema = StructType()
    assert _definition(lambda: dp.table(schema=schema)(_query)).datasets[0].schema is schema


WRONG = [
    ("name is a number", lambda: dp.table(name=3)(_query), "INVALID_PARAMETER", "`name`"),
    ("name is blank", lambda: dp.table(name=" ")(_query), "INVALID_PARAMETER", "`name`"),
    ("name has four parts", lambda: dp.table(name="a.b.c.d")(_query), "INVALID_NAME", "`name`"),
    ("name has a space", lambda: dp.table(name="a b")(_query), "INVALID_NAME", "`name`"),
    (
        "partial has no name",
        lambda: dp.table(functools.partial(_query)),
        "INVALID_PARAMETER",
        "no name of its own",
    ),
    ("comment is a list", lambda: dp.table(comment=[])(_query), "INVALID_PARAMETER", "`comment`"),
    ("conf is a list", lambda: dp.view(spark_conf=[])(_query), "INVALID_PARAMETER", "`spark_conf`"),
    (
        "property is None",
        lambda: dp.table(table_properties={"a": None})(_query),
        "INVALID_PARAMETER",
        "`table_properties`",
    ),
    (
        "property key is a number",
        lambda: dp.table(table_properties={1: "a"})(_query),
        "INVALID_PARAMETER",
        "`table_properties`",
    ),
    (
        "columns are a string",
        lambda: dp.table(partition_cols="day")(_query),
        "INVALID_PARAMETER",
        "['day']",
    ),
    (
        "column is a number",
        lambda: dp.table(cluster_by=[1])(_query),
        "INVALID_PARAMETER",
        "`cluster_by`",
    ),
    (
        "duplicate column",
        lambda: dp.table(cluster_by=["a", "A"])(_query),
        "INVALID_PARAMETER",
        "`cluster_by`",
    ),
    (
        "partitioned and clustered",
        lambda: dp.table(partition_cols=["a"], cluster_by=["b"])(_query),
        "CONFLICTING_PARAMETERS",
        "cannot be used together",
    ),
    ("flag is a string", lambda: dp.table(private="yes")(_query), "INVALID_PARAMETER", "`private`"),
    (
        "quarantine is a number",
        lambda: dp.table(quarantine=1)(_query),
        "INVALID_PARAMETER",
        "`quarantine`",
    ),
    ("schema is a dict", lambda: dp.table(schema={})(_query), "INVALID_PARAMETER", "`schema`"),
    (
        "output mode unknown",
        lambda: dp.table(output_mode="apend")(_query),
        "INVALID_PARAMETER",
        "'append'",
    ),
    (
        "refresh policy unknown",
        lambda: dp.materialized_view(refresh_policy="never")(_query),
        "INVALID_PARAMETER",
        "auto, incremental, incremental_strict, full",
    ),
    (
        "unknown parameter",
        lambda: dp.table(partition_columns=["a"])(_query),
        "UNKNOWN_PARAMETER",
        "`partition_cols`",
    ),
    (
        "no similar parameter",
        lambda: dp.view(xyzzy=1)(_query),
        "UNKNOWN_PARAMETER",
        "`name`, `comment`, `spark_conf`",
    ),
    (
        "refresh policy of a table",
        lambda: dp.table(refresh_policy="full")(_query),
        "UNKNOWN_PARAMETER",
        "`refresh_policy`",
    ),
    ("target misspelt", lambda: dp.append_flow(tarjet="t")(_query), "UNKNOWN_PARAMETER", "target"),
    ("target missing", lambda: dp.append_flow()(_query), "INVALID_CALL", "target"),
    ("target is None", lambda: dp.append_flow(target=None)(_query), "INVALID_PARAMETER", "target"),
    ("append_flow is bare", lambda: dp.append_flow(_query), "INVALID_PARAMETER", "`target`"),
    (
        "flow name has parts",
        lambda: dp.append_flow("t", name="a.b")(_query),
        "INVALID_NAME",
        "`name`",
    ),
    (
        "depends_on is a number",
        lambda: dp.append_flow("t", depends_on=3)(_query),
        "INVALID_PARAMETER",
        "must be a list of dataset names",
    ),
    (
        "depends_on has duplicates",
        lambda: dp.append_flow("t", depends_on=["a", "A"])(_query),
        "INVALID_PARAMETER",
        "lists dataset `a` more than once",
    ),
    (
        "once is a string",
        lambda: dp.append_flow("t", once="x")(_query),
        "INVALID_PARAMETER",
        "once",
    ),
    ("name missing", lambda: dp.create_streaming_table(), "INVALID_CALL", "name"),
    ("name is None", lambda: dp.create_streaming_table(None), "INVALID_PARAMETER", "`name`"),
    (
        "too many by position",
        lambda: dp.create_streaming_table("t", "comment"),
        "INVALID_CALL",
        "positional",
    ),
    ("sink without format", lambda: dp.create_sink("s"), "INVALID_CALL", "format"),
    (
        "table name by position",
        lambda: dp.table("orders")(_query),
        "DECORATOR_ARGUMENT_NOT_CALLABLE",
        "@table(name=...)",
    ),
    (
        "decorated thing is None",
        lambda: dp.table(name="t")(None),
        "DECORATOR_ARGUMENT_NOT_CALLABLE",
        "NoneType",
    ),
    (
        "query function takes a parameter",
        lambda: dp.table(lambda batch: None),
        "QUERY_FUNCTION_HAS_PARAMETERS",
        "`batch`",
    ),
    ("condition blank", lambda: dp.expect("r", "  ")(_query), "INVALID_EXPECTATION", "`r`"),
    ("condition None", lambda: dp.expect("r", None)(_query), "INVALID_EXPECTATION", "NoneType"),
    ("condition bool", lambda: dp.expect("r", True)(_query), "INVALID_EXPECTATION", "bool"),
    ("rule name blank", lambda: dp.expect("", "x")(_query), "INVALID_PARAMETER", "`name`"),
    ("rule name a list", lambda: dp.expect([], "x")(_query), "INVALID_PARAMETER", "`name`"),
    ("condition missing", lambda: dp.expect("r")(_query), "INVALID_CALL", "inv"),
    ("expect is bare", lambda: dp.expect(_query), "INVALID_CALL", "inv"),
    (
        "expect_all is bare",
        lambda: dp.expect_all(_query),
        "INVALID_PARAMETER",
        "`expectations`",
    ),
    (
        "rules are a list",
        lambda: dp.expect_all_or_drop(["x"])(_query),
        "INVALID_PARAMETER",
        "`expectations`",
    ),
    (
        "rules of a table are a list",
        lambda: dp.create_streaming_table("t", expect_all=["x"]),
        "INVALID_PARAMETER",
        "`expect_all`",
    ),
    (
        "replace_where is blank",
        lambda: dp.table(replace_where=" ")(_query),
        "INVALID_PARAMETER",
        "`replace_where` is blank",
    ),
    (
        "replace_where is a list",
        lambda: dp.table(replace_where=["a > 1"])(_query),
        "INVALID_PARAMETER",
        "`replace_where` must be a SQL string or a Column, not list",
    ),
    (
        "replace_where with an output mode",
        lambda: dp.table(replace_where="a > 1", output_mode="append")(_query),
        "CONFLICTING_PARAMETERS",
        "`replace_where` and `output_mode`",
    ),
]


@pytest.mark.parametrize(
    ("declare", "condition", "message"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_error_names_the_parameter_when_an_argument_is_invalid(declare, condition, message):
    (error,) = _errors(declare)
    assert error.condition == condition
    assert message in str(error)
    assert error.origin.file.endswith("test_arguments.py")


def test_each_invalid_argument_of_a_call_is_an_error():
    errors = _errors(lambda: dp.table(name=3, private="x", colour="red", comment=1)(_query))
    assert [e.condition for e in errors] == ["UNKNOWN_PARAMETER"] + ["INVALID_PARAMETER"] * 3


def test_error_does_not_show_option_values():
    errors = _errors(lambda: dp.create_sink("s", "kafka", {"password": ["hunter2"]}))
    assert "password" in str(errors[0])
    assert "hunter2" not in str(errors[0])


def test_expect_all_accepts_an_empty_dictionary():
    assert _definition(lambda: dp.table(dp.expect_all({})(_query))).datasets[0].expectations == ()


def test_query_function_may_have_parameters_with_defaults():
    assert len(_definition(lambda: dp.table(name="t")(lambda batch=1: None)).datasets) == 1


@pytest.mark.parametrize(
    "decorate",
    [
        lambda f: dp.table(f),
        lambda f: dp.table()(f),
        lambda f: dp.table(name="t")(f),
        lambda f: dp.materialized_view(f),
        lambda f: dp.temporary_view(f),
        lambda f: dp.append_flow("t")(f),
        lambda f: dp.expect("r", "x")(f),
        lambda f: dp.expect_all({"r": "x"})(f),
        lambda f: dp.table("wrong")(f),
        lambda f: dp.table(unknown=1)(f),
        lambda f: dp.append_flow()(f),
        lambda f: dp.append_flow(f),
        lambda f: dp.expect(f),
        lambda f: dp.expect_all(f),
        lambda f: dp.expect("r", "")(f),
        lambda f: dp.update_flow(target="s")(f),
        lambda f: dp.foreach_batch_sink(f),
        lambda f: dp.foreach_batch_sink(name="s")(f),
        lambda f: dp.on_event_hook(f),
    ],
)
def test_decorator_returns_the_original_function_even_when_invalid(decorate):
    with registration(Registry()):
        assert decorate(_query) is _query


def test_sinks_flows_and_hooks_are_declared():
    registry = Registry()
    with registration(registry):

        @dp.foreach_batch_sink
        def store(df, batch_id): ...

        @dp.foreach_batch_sink(name="other")
        def anything(*arguments): ...

        @dp.update_flow(target="store", spark_conf={"a": 1})
        def changed(): ...

        @dp.append_flow(target="other", depends_on=["first", "second"])
        def added(): ...

        @dp.on_event_hook(max_allowable_consecutive_failures=3)
        def limited(event): ...

        @dp.on_event_hook
        def unlimited(event, more=None): ...

    declared = registry.build()
    assert [(sink.name, sink.format) for sink in declared.sinks] == [
        ("store", "foreach_batch"),
        ("other", "foreach_batch"),
    ]
    assert declared.sinks[0].write_batch is store
    assert [(flow.name, flow.target, flow.output_mode) for flow in declared.flows] == [
        ("changed", "store", "update"),
        ("added", "other", None),
    ]
    assert declared.flows[0].spark_conf == {"a": "1"}
    assert declared.flows[1].depends_on == ("first", "second")
    assert [(hook.name, hook.max_consecutive_failures) for hook in declared.hooks] == [
        ("limited", 3),
        ("unlimited", None),
    ]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: dp.foreach_batch_sink(lambda df: None), "two arguments"),
        (lambda: dp.on_event_hook(lambda: None), "one argument"),
        (
            lambda: dp.on_event_hook(max_allowable_consecutive_failures=-1)(lambda event: None),
            "0 or more",
        ),
        (
            lambda: dp.on_event_hook(max_allowable_consecutive_failures=True)(lambda event: None),
            "whole number",
        ),
    ],
)
def test_sink_or_hook_is_refused_when_its_function_or_limit_is_invalid(declare, message):
    (error,) = _errors(declare)
    assert error.condition == "INVALID_PARAMETER"
    assert message in str(error)
