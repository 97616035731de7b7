"""The text of a query is the same in every process, and differs between queries."""

import json

import pytest

from penstock._execution.flow_state import FlowState, check_state, state_of
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._repair.migration_plan import migration_of
from penstock._spark.generated_names import (
    stable_operators,
    stable_plan,
    without_generated_names,
)
from penstock.errors import CheckpointError

UUID_1, UUID_2 = "38d99452b3f6445595fc78cb1566339f", "17060a64eeb94847b8b741e47f39ccde"
FLOW = Flow(name="agg", target="agg", function=lambda: None, origin=SourceLocation("x.sql", 1))

# Texts of the same query that two processes of an earlier version stored.
SAME = [
    (
        "aggregate by [__penstock_5.id] of [__penstock_5.id, sum(CAST(__penstock_5.v AS DOUBLE)) "
        "AS total]",
        "aggregate by [__penstock_61.id] of [__penstock_61.id, sum(CAST(__penstock_61.v AS DOUBLE))"
        " AS total]",
    ),
    (
        "aggregate by [__penstock_2.`n m`, __penstock_2.st.`value`] of [count(1) AS c]",
        "aggregate by [__penstock_7.`n m`, __penstock_7.st.`value`] of [count(1) AS c]",
    ),
    (
        "aggregate by [window, `__penstock_2`.id] of [pivotfirst(__penstock_2.name, "
        "`sum(__penstock_2.v)`) AS `__pivot_sum(__penstock_2.v) AS ``sum(__penstock_2.v)```]",
        "aggregate by [window, `__penstock_3`.id] of [pivotfirst(__penstock_3.name, "
        "`sum(__penstock_3.v)`) AS `__pivot_sum(__penstock_3.v) AS ``sum(__penstock_3.v)```]",
    ),
    (
        f"aggregate by [_pyspark_{UUID_1}.id] of [sum(_pyspark_{UUID_1}.v) AS `sum(v)`]",
        f"aggregate by [_pyspark_{UUID_2}.id] of [sum(_pyspark_{UUID_2}.v) AS `sum(v)`]",
    ),
    (
        "stream-stream join INNER on Some(((id = id2) AND exists(arr, lambdafunction((lambda x_1 "
        "= lambda y_2), lambda x_1, false))))",
        "stream-stream join INNER on Some(((id = id2) AND exists(arr, lambdafunction((lambda x_8 "
        "= lambda y_9), lambda x_8, false))))",
    ),
    (
        "stream-stream join INNER on Some((id#4L = id#12L))",
        "stream-stream join INNER on Some((id = id))",
    ),
]
WITHOUT_WINDOWS = ("aggregate by [window] of []", "aggregate by [window] of [] in windows of 5 s")
DIFFERENT = [
    (
        "aggregate by [window] of [] in windows of 5 s",
        "aggregate by [window] of [] in windows of 10 s",
    ),
    ("aggregate by [__penstock_5.id] of []", "aggregate by [__penstock_5.v] of []"),
    ("aggregate by [] of [sum(__penstock_5.v)]", "aggregate by [] of [max(__penstock_5.v)]"),
    ("aggregate by [a.id] of []", "aggregate by [b.id] of []"),
    (
        "aggregate by [] of [sum(CAST(__penstock_1.v AS DOUBLE))]",
        "aggregate by [] of [sum(CAST(__penstock_1.v AS BIGINT))]",
    ),
    ("join on Some((id = id2))", "join on Some((id = id3))"),
    ("join on exists(lambda x_1 = lambda x_1)", "join on exists(lambda x_1 = lambda y_2)"),
    ("source StreamingRelation", "source StreamingRelationV2"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_query_text_is_the_same_in_every_process(first, second):
    assert first != second
    assert without_generated_names(first) == without_generated_names(second)
    assert stable_operators([first]) == stable_operators(stable_operators([second]))


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different_queries_have_different_texts(first, second):
    assert without_generated_names(first) != without_generated_names(second)


@pytest.mark.parametrize(
    "text",
    [
        "aggregate by [o.id] of [o.id, sum(o.v) AS t]",
        "aggregate by [my__penstock_3.id] of [_pyspark_total.id]",
        "aggregate by [transform(arr, lambdafunction(namedlambdavariable()))] of [<lambda>(name)]",
    ],
)
def test_query_text_without_generated_names_is_unchanged(text):
    assert without_generated_names(text) == text


@pytest.mark.parametrize(("stored", "now"), [*SAME, WITHOUT_WINDOWS])
def test_checkpoint_of_an_earlier_version_continues_with_the_same_query(stored, now):
    state = state_of({"epoch": "e", "stateful_operators": [stored, "source StreamingRelation"]})
    operators = stable_operators([now, "source StreamingRelation"])
    check_state(FLOW, state, operators=operators, output_mode="complete", display="agg")


@pytest.mark.parametrize(("stored", "now"), DIFFERENT)
def test_checkpoint_of_an_earlier_version_is_refused_with_another_query(stored, now):
    state = state_of({"epoch": "e", "stateful_operators": [stored]})
    with pytest.raises(CheckpointError) as refused:
        check_state(
            FLOW,
            state,
            operators=stable_operators([now]),
            output_mode="complete",
            display="agg",
        )
    assert refused.value.condition == "STATEFUL_QUERY_CHANGED"
    assert "__penstock_" not in refused.value.message


def test_state_without_operators_counts_as_never_started():
    assert state_of({"epoch": "e"}).stateful_operators is None
    assert state_of({"epoch": "e", "stateful_operators": []}) == FlowState(
        epoch="e", stateful_operators=()
    )


def test_migration_of_an_earlier_version_is_comparable_with_the_current_query():
    stored, now = SAME[0]
    body = json.loads(
        '{"migration_id": "m", "flow": "agg", "stage": "building", "start": "earliest", '
        '"position": {}, "table_id": "t", "old_version": 3, "old_quarantine": -1, '
        f'"query": {{"operators": ["{stored}"], "output_mode": "complete", "columns": {{}}}}, '
        f'"old": {{"epoch": "e", "stateful_operators": ["{stored}"]}}}}'
    )
    migration = migration_of(**body)
    assert migration.query["operators"] == list(stable_operators([now]))
    assert state_of(migration.old).stateful_operators == stable_operators([now])


def test_plan_text_does_not_depend_on_counters_of_the_process():
    def plan(first: int, second: int, left: int, right: int, relation: str) -> str:
        return (
            f"WithCTE\n:- CTERelationDef {first}, false\n:- CTERelationDef {second}, false\n"
            f"+- Join\n   :- CTERelationRef {left}, true\n   +- CTERelationRef {right}, true\n"
            f"      +- {relation}\n"
            f":  +- 'UnionLoop {first}\n:     +- UnionLoopRef {left}, [x], false"
        )

    text = stable_plan(plan(0, 1, 0, 1, "KafkaTable@1f3a"))
    assert text == stable_plan(plan(12, 17, 12, 17, "KafkaTable@ff0"))
    assert text != stable_plan(plan(0, 1, 1, 0, "KafkaTable@1f3a"))
    assert text != stable_plan(plan(0, 1, 0, 1, "OtherTable@1f3a"))


def test_text_of_a_watermark_has_its_delay_and_not_its_id():
    def plan(node: str, delay: str) -> str:
        return f"~EventTimeWatermark {node}, none#1: timestamp, {delay}"

    first, second = "0f3c5b7e-1a2b-4c3d-8e9f-001122334455", "7d9e0a1b-2c3d-4e5f-9a8b-554433221100"
    assert stable_plan(plan(first, "1 hours")) == stable_plan(plan(second, "1 hours"))
    assert stable_plan(plan(first, "1 hours")) != stable_plan(plan(first, "2 hours"))
    assert stable_plan(f"Filter (id = {first})") != stable_plan(f"Filter (id = {second})")


def test_only_seeds_of_the_query_are_part_of_its_text():
    plans = "Project [rand({0}) AS #0, uuid(Some({0})), shuffle(array(1, 2), Some({0}))]"
    texts = {stable_plan(plans.format(seed)) for seed in (864940256487141, -4831831939149557270)}
    assert len(texts) == 1
    assert stable_plan(plans.format(5)) not in {*texts, stable_plan(plans.format(6))}
