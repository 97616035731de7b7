"""Types of the declarative API, checked by mypy; run by pytest like any other test."""

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, assert_type, get_args, get_overloads

import pytest

import penstock as dp
from penstock._api.registry import Registry, registration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    assert_type(dp.read("a"), DataFrame)
    assert_type(dp.read_stream("a"), DataFrame)
    assert_type(dp.readStream("a"), DataFrame)

    def column() -> Column: ...

    dp.expect("r", column())
    dp.expect_all({"r": column(), "s": "a > 0"})


@pytest.fixture(autouse=True)
def registry() -> Iterator[Registry]:
    with registration(Registry()) as active:
        yield active


def query() -> int:
    return 1


def test_decorators_keep_the_type_of_the_function_when_bare() -> None:
    assert_type(dp.table(query), Callable[[], int])
    assert_type(dp.materialized_view(query), Callable[[], int])
    assert_type(dp.temporary_view(query), Callable[[], int])
    assert_type(dp.view(query), Callable[[], int])
    assert_type(dp.create_table(query), Callable[[], int])


def test_decorators_keep_the_type_of_the_function_when_called(registry: Registry) -> None:
    assert_type(
        dp.table(
            name="t",
            comment=None,
            spark_conf={"a": "b"},
            table_properties={"quality": "gold"},
            partition_cols=["a"],
            cluster_by=None,
            cluster_by_auto=False,
            schema="a INT",
            path=None,
            row_filter=None,
            private=True,
            temporary=False,
            format="delta",
            output_mode="append",
            quarantine=True,
        )(query),
        Callable[[], int],
    )
    assert_type(
        dp.materialized_view(name="m", refresh_policy="full", quarantine=False)(query),
        Callable[[], int],
    )
    assert_type(dp.table(name="w", replace_where="a > 1")(query), Callable[[], int])
    assert_type(dp.temporary_view(name="v", comment="c", spark_conf={})(query), Callable[[], int])
    assert_type(dp.append_flow(target="s", name="f", once=True)(query), Callable[[], int])
    assert_type(dp.expect("r", "a")(query), Callable[[], int])
    assert_type(dp.expect_or_drop("r2", "a")(query), Callable[[], int])
    assert_type(dp.expect_or_fail("r3", "a")(query), Callable[[], int])
    assert_type(dp.expect_all({"r4": "a"})(query), Callable[[], int])
    assert_type(dp.expect_all_or_drop({"r5": "a"})(query), Callable[[], int])
    assert_type(dp.expect_all_or_fail({"r6": "a"})(query), Callable[[], int])
    assert registry.errors == ()


def test_functions_return_nothing_when_they_only_declare(registry: Registry) -> None:
    create_table: Callable[[str], None] = dp.create_streaming_table
    create_sink: Callable[[str, str, dict[str, str]], None] = dp.create_sink
    create_table("s")
    create_sink("out", "kafka", {"topic": "t"})
    dp.create_streaming_table("s", expect_all={"r": "a"}, expect_all_or_drop=None)
    dp.create_sink("out", "console", options={"numRows": 5, "truncate": False})
    dp.create_auto_cdc_flow("t", "s", ["id"], "seq", stored_as_scd_type=2, once=None)
    dp.apply_changes(target="t", source="s", keys=["id"], sequence_by="seq", name="other")
    dp.create_auto_cdc_from_snapshot_flow("t", lambda latest: None, ["id"], "2", name="third")
    assert registry.errors == ()


def test_mypy_refuses_a_call_when_it_is_wrong(registry: Registry) -> None:
    """mypy must report an error in each line, otherwise it reports the comment as unused."""
    dp.table(nmae="t")  # type: ignore[call-overload]
    dp.table("t")  # type: ignore[call-overload]
    dp.table(partition_cols="day")  # type: ignore[call-overload]
    dp.table(private="yes")  # type: ignore[call-overload]
    dp.materialized_view(output_mode="append")  # type: ignore[call-overload]
    dp.temporary_view(quarantine=True)  # type: ignore[call-overload]
    dp.append_flow()  # type: ignore[call-arg]
    dp.append_flow("t", once="yes")  # type: ignore[arg-type]
    dp.create_streaming_table()  # type: ignore[call-arg]
    dp.create_streaming_table("t", refresh_policy="full")  # type: ignore[call-arg]
    dp.create_streaming_table("t", quarantine="yes")  # type: ignore[arg-type]
    dp.create_table(refresh_policy="full")  # type: ignore[call-overload]
    dp.create_sink("s")  # type: ignore[call-arg]
    dp.expect("r")  # type: ignore[call-arg]
    dp.expect("r", 5)  # type: ignore[arg-type]
    dp.expect_all(["a"])  # type: ignore[arg-type]
    assert len(registry.errors) == 16


@pytest.mark.parametrize(
    "function", [dp.table, dp.materialized_view, dp.temporary_view, dp.create_table]
)
def test_overloads_cover_the_implementation_when_it_has_parameters(
    function: Callable[..., Any],
) -> None:
    bare, called = get_overloads(inspect.unwrap(function))
    assert list(inspect.signature(bare).parameters) == ["query_function"]
    implementation = inspect.signature(inspect.unwrap(function)).parameters
    overload = inspect.signature(called).parameters
    assert list(overload) == list(implementation) == ["query_function", "options"]
    assert overload["options"] == implementation["options"]
    assert overload["query_function"].default is implementation["query_function"].default is None


@pytest.mark.parametrize(
    "function",
    [
        dp.table,
        dp.materialized_view,
        dp.temporary_view,
        dp.create_table,
        dp.create_streaming_table,
    ],
)
def test_signature_lists_each_parameter_when_they_come_from_a_typed_dict(
    function: Callable[..., Any],
) -> None:
    declared = inspect.unwrap(function).__annotations__["options"]
    (keys,) = get_args(declared)
    parameters = list(inspect.signature(function).parameters.values())
    assert [parameter.name for parameter in parameters[1:]] == list(keys.__annotations__)
    for parameter in parameters[1:]:
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default is None
        assert parameter.annotation == keys.__annotations__[parameter.name]
