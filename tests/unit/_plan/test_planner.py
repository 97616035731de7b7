from dataclasses import replace

import pytest

from penstock._model.duration import parse_seconds
from penstock._model.flow import OutputMode
from penstock._model.trigger import Trigger, TriggerKind, parse_trigger
from penstock._plan.explain import explain_json, explain_text
from penstock._plan.planner import PlanOptions, make_plan
from penstock._plan.steps import PrepareTable, RefreshView, ResetTable, RunOnceFlow, StartFlow
from penstock.errors import DefinitionError, PlanError, SpecError

NO_RESET = {"pipelines.reset.allowed": "false"}


def key(name):
    return f"spark_catalog.default.{name}"


def plan_of(draft, configuration=None, **options):
    return make_plan(draft.graph(), PlanOptions(**options), configuration=configuration)


@pytest.fixture
def shop(draft):
    draft.table("bronze", external=("kafka: orders",))
    draft.view("parsed", "bronze")
    draft.table("silver", "parsed")
    draft.materialized_view("totals", "silver")
    draft.table("alerts", "silver")
    draft.sink("out")
    draft.append_flow("publish", "out", "alerts")
    return draft


# -- steps --------------------------------------------------------------------------------------


def test_all_flows_run_in_order_without_a_selection(shop):
    plan = plan_of(shop)
    assert plan.resets == ()
    assert plan.excluded == ()
    assert [step.dataset for step in plan.tables] == [
        key("bronze"),
        key("silver"),
        key("totals"),
        key("alerts"),
    ]
    assert plan.runs == (
        StartFlow(flow="bronze", target=key("bronze"), output_mode=OutputMode.APPEND),
        StartFlow(
            flow="silver",
            target=key("silver"),
            output_mode=OutputMode.APPEND,
            upstream=(key("bronze"),),
        ),
        StartFlow(
            flow="alerts",
            target=key("alerts"),
            output_mode=OutputMode.APPEND,
            upstream=(key("silver"),),
        ),
        StartFlow(
            flow="publish", target="out", output_mode=OutputMode.APPEND, upstream=(key("alerts"),)
        ),
        RefreshView(target=key("totals"), flow="totals", upstream=(key("silver"),)),
    )


def test_a_view_runs_before_a_streaming_flow_that_reads_it(draft):
    draft.table("orders")
    draft.materialized_view("customers")
    draft.materialized_view("top_customers", "customers")
    draft.table("joined", "orders", "customers")
    steps = [step.flow for step in plan_of(draft).runs]
    assert steps == ["orders", "customers", "joined", "top_customers"]


def test_a_view_runs_before_a_streaming_flow_that_reads_it_through_another_view(draft):
    draft.materialized_view("a")
    draft.materialized_view("b", "a")
    draft.materialized_view("c", "b")
    draft.table("stream", "b")
    assert [step.flow for step in plan_of(draft).runs] == ["a", "b", "stream", "c"]


def test_a_one_time_flow_is_planned_as_a_run_once_step(draft):
    draft.empty_table("orders")
    draft.append_flow("live", "orders")
    draft.append_flow("history", "orders", once=True)
    assert plan_of(draft).runs[1] == RunOnceFlow(flow="history", target=key("orders"))


def test_the_output_mode_is_that_of_the_analysis(draft):
    draft.table("counts", mode=OutputMode.UPDATE)
    assert plan_of(draft).runs[0].output_mode is OutputMode.UPDATE


# -- selection ----------------------------------------------------------------------------------


def test_only_selected_tables_run(shop):
    plan = plan_of(shop, refresh=("SILVER", "live.totals"))
    assert [step.flow for step in plan.runs] == ["silver", "totals"]
    assert plan.tables == (PrepareTable(dataset=key("silver")), PrepareTable(dataset=key("totals")))
    assert plan.excluded == (key("bronze"), key("alerts"))
    # Flows do not wait for excluded tables.
    assert plan.runs[0].upstream == ()
    assert plan.runs[1].upstream == (key("silver"),)


@pytest.mark.parametrize("name", ["out", "`Out`"])
def test_only_the_sink_runs_when_a_sink_is_selected(shop, name):
    plan = plan_of(shop, refresh=(name,))
    assert [step.flow for step in plan.runs] == ["publish"]
    assert plan.tables == ()
    assert len(plan.excluded) == 4


def test_sinks_are_excluded_when_only_tables_are_selected(shop):
    plan = plan_of(shop, refresh=("alerts",))
    assert [step.flow for step in plan.runs] == ["alerts"]
    assert plan.excluded_sinks == ("out",)
    assert plan_of(shop).excluded_sinks == plan_of(shop, refresh=("out",)).excluded_sinks == ()


def test_sink_and_table_run_when_both_are_selected(shop):
    assert [s.flow for s in plan_of(shop, refresh=("alerts", "out")).runs] == ["alerts", "publish"]


@pytest.mark.parametrize("option", ["refresh", "full_refresh"])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("silvr", "did you mean 'silver'?"),
        ("BRONCE", "did you mean 'bronze'?"),
        ("zzz", "tables: bronze, silver, totals, alerts, out"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint_when_it_is_selected(shop, option, name, hint):
    with pytest.raises(SpecError) as caught:
        plan_of(shop, **{option: (name,)})
    assert (caught.value.condition, caught.value.hint) == ("UNKNOWN_DATASET_SELECTED", hint)


def test_a_temporary_view_is_refused_when_it_is_selected(shop):
    with pytest.raises(SpecError, match="is a temporary view and holds no rows"):
        plan_of(shop, refresh=("parsed",))


# -- full refresh -------------------------------------------------------------------------------


def test_only_the_reset_table_runs_in_a_full_refresh(shop):
    plan = plan_of(shop, full_refresh=("bronze",))
    assert plan.resets == (ResetTable(dataset=key("bronze"), flows=("bronze",)),)
    assert [step.flow for step in plan.runs] == ["bronze"]


def test_other_selected_tables_are_not_reset_when_one_table_is_reset(shop):
    plan = plan_of(shop, refresh=("silver",), full_refresh=("bronze",))
    assert [step.dataset for step in plan.resets] == [key("bronze")]
    assert [step.flow for step in plan.runs] == ["bronze", "silver"]


def test_all_flows_of_a_table_are_reset_with_it(draft):
    draft.empty_table("orders")
    draft.append_flow("live", "orders")
    draft.append_flow("history", "orders", once=True)
    plan = plan_of(draft, full_refresh=("orders",))
    assert plan.resets == (ResetTable(dataset=key("orders"), flows=("live", "history")),)


def test_a_full_refresh_recomputes_a_view_completely(shop):
    (run,) = plan_of(shop, full_refresh=("totals",)).runs
    assert run.full is True


def test_upstream_tables_are_reset_first_when_all_tables_are_reset(shop):
    plan = plan_of(shop, full_refresh_all=True)
    assert [step.dataset for step in plan.resets] == [
        key("bronze"),
        key("silver"),
        key("totals"),
        key("alerts"),
    ]
    assert len(plan.runs) == 5


def test_full_refresh_fails_when_the_table_does_not_allow_resets(draft):
    draft.table("bronze", table_properties=NO_RESET)
    with pytest.raises(PlanError) as caught:
        plan_of(draft, full_refresh=("bronze",))
    assert caught.value.condition == "TABLE_NOT_RESETTABLE"
    assert str(caught.value.origin) == "pipeline.py:10"


def test_full_refresh_of_all_skips_a_table_that_does_not_allow_resets(draft):
    draft.table("bronze", table_properties=NO_RESET)
    draft.table("silver", "bronze")
    plan = plan_of(draft, full_refresh_all=True)
    assert [step.dataset for step in plan.resets] == [key("silver")]
    assert plan.notes == ("bronze keeps its rows: pipelines.reset.allowed is false",)
    assert [step.flow for step in plan.runs] == ["bronze", "silver"]


def test_reset_property_of_a_table_overrides_that_of_the_pipeline(draft):
    draft.table("bronze")
    draft.table("silver", "bronze", table_properties={"pipelines.reset.allowed": "TRUE"})
    plan = plan_of(draft, configuration=NO_RESET, full_refresh_all=True)
    assert [step.dataset for step in plan.resets] == [key("silver")]


def test_full_refresh_of_a_sink_is_refused(shop):
    with pytest.raises(PlanError) as caught:
        plan_of(shop, full_refresh=("out",))
    assert caught.value.condition == "SINK_NOT_RESETTABLE"


def test_note_names_flows_that_stream_from_a_reset_table(shop):
    notes = plan_of(shop, full_refresh=("silver",)).notes
    assert notes == (
        "flow alerts keeps its checkpoint while the rows of silver are removed: if it reads them "
        "as a stream it fails with SOURCE_ROWS_CHANGED; --full-refresh alerts as well",
    )


def test_note_names_sinks_when_all_tables_are_reset(shop):
    (note,) = plan_of(shop, full_refresh_all=True).notes
    assert note.startswith("flow publish keeps its checkpoint while the rows of alerts are removed")
    assert note.endswith("then use `penstock checkpoint reset publish --from POSITION`")


def test_no_note_names_readers_that_are_reset_too(shop):
    assert plan_of(
        shop, full_refresh=("bronze", "silver", "alerts"), refresh=("totals",)
    ).notes == (plan_of(shop, full_refresh=("alerts",)).notes)


def test_no_note_is_added_when_a_view_is_reset(draft):
    draft.table("orders")
    draft.materialized_view("customers")
    draft.table("joined", "orders", "customers")
    assert plan_of(draft, full_refresh=("customers",)).notes == ()


@pytest.mark.parametrize("option", ["refresh", "full_refresh"])
def test_selection_is_refused_with_full_refresh_of_all(shop, option):
    with pytest.raises(SpecError) as caught:
        plan_of(shop, full_refresh_all=True, **{option: ("bronze",)})
    assert caught.value.condition == "CONFLICTING_REFRESH_OPTIONS"


# -- continuous ---------------------------------------------------------------------------------


def test_flows_and_views_have_default_intervals_in_a_continuous_update(shop):
    plan = plan_of(shop, continuous=True)
    assert plan.continuous is True
    assert {step.flow: step.interval_seconds for step in plan.runs} == {
        "bronze": 1.0,
        "silver": 1.0,
        "alerts": 1.0,
        "publish": 1.0,
        "totals": 10.0,
    }


def test_no_interval_is_set_when_the_update_is_triggered(draft):
    draft.table("a", table_properties={"pipelines.trigger.interval": "5 seconds"})
    assert plan_of(draft).runs[0].interval_seconds is None


def test_the_most_specific_interval_wins(draft):
    def interval(text):
        return {"pipelines.trigger.interval": text}

    draft.empty_table("a", spark_conf=interval("2 seconds"),
                      table_properties=interval("3 seconds"))  # fmt: skip
    draft.append_flow("flow_conf", "a", spark_conf=interval("1 seconds"))
    draft.append_flow("dataset_conf", "a")
    draft.table("table_property", table_properties=interval("3 seconds"))
    draft.materialized_view("pipeline_conf")
    plan = plan_of(draft, configuration=interval("4 seconds"), continuous=True)
    assert {step.flow: step.interval_seconds for step in plan.runs} == {
        "flow_conf": 1.0,
        "dataset_conf": 2.0,
        "table_property": 3.0,
        "pipeline_conf": 4.0,
    }


def test_the_most_specific_number_of_retries_wins(draft):
    def retries(number, key="pipelines.maxFlowRetryAttempts"):
        return {key: number}

    draft.empty_table("a", spark_conf=retries("2"), table_properties=retries("3"))
    draft.append_flow("flow_conf", "a", spark_conf=retries("0"))
    draft.append_flow("dataset_conf", "a", once=True)
    draft.table("table_property", table_properties=retries("3"))
    draft.materialized_view("pipeline_conf")
    of_spark = retries("4", "spark.sql.pipelines.maxFlowRetryAttempts")
    conf = {**of_spark, "pipelines.numUpdateRetryAttempts": "5"}
    plan = plan_of(draft, configuration=conf)
    assert {step.flow: step.max_retries for step in plan.runs} == {
        "flow_conf": 0,
        "dataset_conf": 2,
        "table_property": 3,
        "pipeline_conf": 4,
    }
    assert plan.setup_retries == 5
    assert plan_of(draft).setup_retries is None


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5"])
def test_retries_are_refused_when_they_are_not_a_number(draft, text):
    draft.table("a")
    with pytest.raises(SpecError, match=r"\[INVALID_RETRY_ATTEMPTS\].*maxFlowRetryAttempts"):
        plan_of(draft, configuration={"pipelines.maxFlowRetryAttempts": text})


@pytest.mark.parametrize(
    ("setting", "text", "condition"),
    [
        ("pipelines.reset.allowed", "maybe", "SETTING_INVALID"),
        ("pipelines.enableTypeWidening", "", "SETTING_INVALID"),
        ("pipelines.cdc.tombstoneGCThresholdInSeconds", "two days", "SETTING_INVALID"),
        ("pipelines.applyChanges.tombstoneGCThresholdInSeconds", "-1", "SETTING_INVALID"),
        ("penstock.growingState", "perhaps", "INVALID_GROWING_STATE"),
        ("pipelines.trigger.interval", "soon", "INVALID_TRIGGER_INTERVAL"),
        ("pipelines.numUpdateRetryAttempts", "-2", "INVALID_RETRY_ATTEMPTS"),
    ],
)
def test_an_invalid_setting_is_refused_before_the_update_starts(draft, setting, text, condition):
    draft.table("a")
    with pytest.raises(SpecError, match=rf"\[{condition}\].*{setting}"):
        plan_of(draft, configuration={setting: text})


def test_a_flow_that_replaces_rows_is_planned_like_a_view(draft):
    draft.empty_table("t")
    draft.append_flow("f", "t", streaming=False, replace_where="day  >=\n 1")
    plan = plan_of(draft, continuous=True)
    step = RefreshView(target=key("t"), flow="f", interval_seconds=10.0)
    assert plan.runs == (step,)
    text = "\n".join(explain_text(draft.graph(), plan))
    assert "replaces rows where day >= 1, checked every 10 s" in text
    reset = plan_of(draft, full_refresh=("t",))
    assert reset.runs[0].full
    assert explain_json(draft.graph(), reset)["steps"][0]["replace_where"] == "day >= 1"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 seconds", 5.0),
        ("1 second", 1.0),
        ("100 milliseconds", 0.1),
        ("1.5 MINUTES", 90.0),
        (" 2 hours ", 7200.0),
        ("1 day", 86400.0),
        ("0 seconds", 0.0),
        ("30seconds", 30.0),
    ],
)
def test_an_interval_is_a_number_and_a_unit(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "seconds", "-1 seconds", "5 parsecs", "", "1 e5 days"])
def test_an_invalid_interval_is_refused(draft, text):
    assert parse_seconds(text) is None
    draft.table("a", table_properties={"pipelines.trigger.interval": text})
    with pytest.raises(SpecError) as caught:
        plan_of(draft, continuous=True)
    assert caught.value.condition == "INVALID_TRIGGER_INTERVAL"
    assert caught.value.origin is not None
    assert "of flow 'a'" in caught.value.message


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("default", Trigger(TriggerKind.DEFAULT)),
        ("availablenow", Trigger(TriggerKind.AVAILABLE_NOW)),
        ("availableNow=true", Trigger(TriggerKind.AVAILABLE_NOW)),
        ("once", Trigger(TriggerKind.ONCE)),
        ("10 seconds", Trigger(TriggerKind.PROCESSING_TIME, 10)),
        ("processingTime='1 minute'", Trigger(TriggerKind.PROCESSING_TIME, 60)),
        ("ProcessingTime 5s", Trigger(TriggerKind.PROCESSING_TIME, 5)),
        ("continuous", Trigger(TriggerKind.CONTINUOUS, 1)),
        ("realTime(5 minutes)", Trigger(TriggerKind.REAL_TIME, 300)),
    ],
)
def test_a_trigger_is_parsed_in_the_spelling_of_spark(text, trigger):
    assert parse_trigger(text) == trigger


@pytest.mark.parametrize(
    "text", ["", "sometimes", "processingTime", "continuous=soon", "once=3 s", "availableNow 5s"]
)
def test_an_invalid_trigger_is_refused(draft, text):
    assert parse_trigger(text) is None
    draft.table("a", spark_conf={"pipelines.trigger": text})
    with pytest.raises(SpecError) as caught:
        plan_of(draft, continuous=True)
    assert caught.value.condition == "INVALID_TRIGGER"
    assert caught.value.origin is not None
    assert "of flow 'a'" in caught.value.message


def test_each_flow_has_its_own_trigger_when_the_update_is_continuous(draft):
    draft.table("soon", spark_conf={"pipelines.trigger": "default"})
    draft.table("slow", table_properties={"pipelines.trigger": "processingTime=1 hour"})
    draft.table("plain")
    plan = plan_of(draft, configuration={"pipelines.trigger": "7 seconds"}, continuous=True)
    triggers = {step.flow: (step.interval_seconds, step.trigger) for step in plan.runs}
    assert triggers == {"soon": (0.0, None), "slow": (3600.0, None), "plain": (7.0, None)}


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        ("availableNow", "but the update is continuous"),
        ("once", "but the update is continuous"),
        ("continuous=1 second", "writes to a table"),
        ("realTime=5 minutes", "writes to a table"),
    ],
)
def test_a_trigger_is_refused_when_the_flow_does_not_support_it(draft, trigger, reason):
    draft.table("a", spark_conf={"pipelines.trigger": trigger})
    with pytest.raises(PlanError, match=reason) as caught:
        plan_of(draft, continuous=True)
    assert caught.value.condition == "TRIGGER_NOT_SUPPORTED"
    assert caught.value.hint
    (step,) = plan_of(draft).runs
    assert step.interval_seconds is None and step.trigger is None


@pytest.mark.parametrize(
    ("trigger", "sink", "reads", "external", "reason"),
    [
        ("continuous=1 second", "kafka", (), ("kafka: orders",), None),
        ("continuous=1 second", "noop", (), ("rate",), None),
        ("realTime=5 minutes", "kafka", (), ("kafka: orders",), None),
        ("realTime=5 minutes", "noop", (), ("kafka: orders",), "format noop"),
        ("realTime=5 minutes", "kafka", (), ("rate",), "other sources than kafka"),
        ("continuous=1 second", "kafka", ("upstream",), (), "other sources than kafka or rate"),
        ("continuous=1 second", "json", (), ("kafka: orders",), "format json"),
        ("realTime=1 second", "kafka", (), ("kafka: orders",), "at least 5 seconds"),
    ],
)
def test_continuous_and_real_time_triggers_are_planned_when_spark_supports_them(
    draft, trigger, sink, reads, external, reason
):
    draft.table("upstream")
    draft.sink("out", sink)
    conf = {"pipelines.trigger": trigger}
    draft.append_flow("quick", "out", *reads, external=external, spark_conf=conf)
    if reason is not None:
        with pytest.raises(PlanError, match=reason) as caught:
            plan_of(draft, continuous=True)
        assert caught.value.condition == "TRIGGER_NOT_SUPPORTED"
        return
    (step,) = [step for step in plan_of(draft, continuous=True).runs if step.flow == "quick"]
    assert step.trigger == parse_trigger(trigger)
    (warning,) = plan_of(draft).warnings
    assert "the trigger only applies with --continuous" in warning


@pytest.mark.parametrize(
    ("row_ids", "refused", "warned"),
    [(None, False, True), ("false", False, False), ("TRUE", True, False)],
)
def test_row_ids_are_refused_or_warned_about_with_a_real_time_trigger(
    draft, row_ids, refused, warned
):
    draft.sink("out", "kafka", **({} if row_ids is None else {"rowIds": row_ids}))
    draft.append_flow(
        "send",
        "out",
        external=("kafka: orders",),
        spark_conf={"pipelines.trigger": "realTime=5 minutes"},
    )
    if refused:
        with pytest.raises(PlanError, match="assigned per batch") as caught:
            plan_of(draft, continuous=True)
        assert caught.value.condition == "TRIGGER_NOT_SUPPORTED"
        return
    plan = plan_of(draft, continuous=True)
    assert any("penstock-id" in text for text in plan.warnings) is warned
    assert not any("penstock-id" in text for text in plan_of(draft).warnings)


def test_warning_explains_that_trigger_once_runs_as_available_now(draft):
    draft.table("a", spark_conf={"pipelines.trigger": "once"})
    draft.table("b")
    (warning,) = plan_of(draft).warnings
    assert warning.startswith("a: the trigger once")
    assert "availableNow" in warning


def test_warning_names_the_setting_that_a_misspelt_one_is_similar_to(draft):
    draft.table("a", spark_conf={"pipelines.triger": "once"}, table_properties={"pipelines.x": "1"})
    draft.table("b", table_properties={"pipelines.reset.alowed": "false"})
    plan = plan_of(draft, {"penstock.lease.duration": "1 minute", "penstock.growing": "allow"})
    assert [text.partition(" is unknown")[0] for text in plan.warnings] == [
        "the setting `pipelines.triger`",
        "the setting `pipelines.reset.alowed`",
    ]
    assert "did you mean `pipelines.trigger`?" in plan.warnings[0]


# -- not supported by Delta ---------------------------------------------------------------------


def test_a_row_filter_is_refused(draft):
    draft.table("a", row_filter="ROW FILTER f ON (c)")
    with pytest.raises(PlanError) as caught:
        plan_of(draft)
    assert caught.value.condition == "ROW_FILTER_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("written", "notes"),
    [("DELTA", ()), ("parquet", ("a has format parquet but is written as Delta",))],
)
def test_a_table_with_another_format_is_written_as_delta(draft, written, notes):
    draft.table("a", format=written)
    plan = plan_of(draft)
    assert len(plan.runs) == 1
    assert plan.notes == notes


def test_note_names_a_stream_from_an_auto_cdc_target(draft):
    draft.table("people")
    draft.table("audit", "people")
    analysis = draft.analyses["audit"]
    draft.analyses["audit"] = replace(analysis, changing_inputs=(key("people"),))
    (note,) = plan_of(draft).notes
    assert note.startswith("people is read as a stream, and auto CDC changes its rows in place")


def test_a_refused_flow_is_in_the_plan_and_its_table_is_not_reset(draft):
    refusal = DefinitionError("OUTPUT_MODE_NOT_SUPPORTED", "no")
    draft.table("a")
    draft.table("b", "a")
    draft.analyses["a"] = replace(draft.analyses["a"], refusal=refusal)
    plan = plan_of(draft, full_refresh_all=True)
    assert plan.refused == {"a": refusal}
    assert [step.dataset for step in plan.resets] == [key("b")]
    assert plan_of(draft, refresh=("b",)).refused == {}
