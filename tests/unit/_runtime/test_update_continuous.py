from functools import partial

import scripted_engine as steps
from scripted_engine import FOREVER, Harness, Run, fatal, once, transient

from penstock._observe.events import UpdateState
from penstock._plan.steps import StartFlow
from penstock.errors import DefinitionError, FlowError

stream = partial(steps.stream, interval=5.0)
view = partial(steps.view, interval=60.0)


def continuous(runs, scripts, **options):
    endless = {step.flow: [FOREVER] for step in runs if isinstance(step, StartFlow)}
    return Harness(runs, {**endless, **scripts}, continuous=True, **options)


def test_all_streams_start_at_once_when_continuous():
    runs = [stream(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(30)]
    harness = continuous(runs, {}, stops=[100.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert not result.interrupted
    assert len(result.stopped) == 30
    assert {when for when, what, _ in harness.engine.log if what == "start"} == {0.0}


def test_view_is_refreshed_at_its_interval_counted_from_start_to_start():
    harness = continuous([stream("a"), view("v", "a")], {"v": [Run(seconds=10.0)]}, stops=[200.0])
    harness.run()
    assert harness.engine.times("start", "v") == [0.0, 60.0, 120.0, 180.0]


def test_view_is_refreshed_without_a_pause_when_it_takes_longer_than_its_interval():
    harness = continuous([view("v", interval=5.0)], {"v": [Run(seconds=8.0)]}, stops=[20.0])
    harness.run()
    assert harness.engine.times("start", "v") == [0.0, 8.0, 16.0]


def test_view_reports_only_changes_at_later_refreshes():
    script = [Run(), Run(changed=False), Run(changed=False), Run(), Run(changed=False)]
    harness = continuous([view("v")], {"v": script}, stops=[250.0])
    result = harness.run()
    assert harness.statuses("v") == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "COMPLETED",
        "IDLE",
        "COMPLETED",
        "IDLE",
        "STOPPED",
    ]
    assert result.state is UpdateState.CANCELED


def test_first_refresh_waits_for_upstream_views_and_backfills_but_not_for_streams():
    runs = [stream("a"), once("o"), view("v", "a", "o"), view("w", "v")]
    harness = continuous(runs, {"o": [Run(seconds=7.0)], "v": [Run(seconds=3.0)]}, stops=[30.0])
    result = harness.run()
    assert harness.engine.times("start", "v") == [7.0]
    assert harness.engine.times("start", "w") == [10.0]
    assert result.completed == ("o",)


def test_stream_waits_for_the_first_refresh_when_it_reads_a_view():
    runs = [view("v"), stream("a", "v"), once("o"), stream("b", "o")]
    harness = continuous(runs, {"v": [Run(seconds=4.0)], "o": [Run(seconds=9.0)]}, stops=[30.0])
    harness.run()
    assert harness.engine.times("start", "a") == [4.0]
    assert harness.engine.times("start", "b") == [0.0]


def test_run_once_flows_start_before_views_when_slots_are_limited():
    runs = [view("v"), once("o")]
    harness = continuous(runs, {}, max_batch_steps=1, stops=[10.0])
    harness.run()
    assert harness.engine.times("start", "o") == [0.0]
    assert harness.engine.times("start", "v") == [1.0]


def test_running_refresh_is_finished_when_the_update_is_stopped():
    harness = continuous([view("v")], {"v": [Run(seconds=9.0)]}, stops=[3.0])
    result = harness.run()
    assert harness.statuses("v")[-2:] == ["COMPLETED", "STOPPED"]
    assert result.state is UpdateState.CANCELED
    assert harness.time.monotonic() == 9.0


def test_dependents_stop_and_other_flows_continue_when_a_flow_fails():
    runs = [stream("a"), stream("b", "a"), view("v", "b"), stream("c")]
    harness = continuous(runs, {"a": [Run(seconds=30.0, error=fatal("a"))]}, stops=[100.0])
    result = harness.run()
    assert result.state is UpdateState.FAILED
    assert harness.engine.times("asked to stop", "b") == [30.0]
    assert harness.engine.times("asked to stop", "c") == [100.0]
    assert harness.statuses("v")[-1] == "STOPPED"
    assert "because a failed" in harness.last("b").message
    assert "because a failed" in harness.last("v").message
    assert result.stopped == ("b", "v", "c")


def test_dependents_that_never_ran_are_skipped_when_a_view_fails():
    runs = [view("v"), stream("a", "v")]
    harness = continuous(runs, {"v": [Run(error=fatal("v"))]})
    result = harness.run()
    assert result.state is UpdateState.FAILED
    assert result.skipped == ("a",)


def test_update_ends_when_all_flows_have_failed_or_stopped():
    runs = [stream("a"), stream("b", "a")]
    harness = continuous(runs, {"a": [Run(seconds=30.0, error=fatal("a"))]})
    result = harness.run()
    assert result.state is UpdateState.FAILED
    assert harness.time.monotonic() == 30.5


def test_dependents_continue_when_a_flow_fails_and_recovers():
    runs = [stream("a"), stream("b", "a")]
    harness = continuous(
        runs, {"a": [Run(seconds=9.0, error=transient("a")), FOREVER]}, stops=[50.0]
    )
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert harness.engine.times("start", "a") == [0.0, 14.0]
    assert harness.engine.times("asked to stop", "b") == [50.0]


def test_retries_are_reset_when_a_stream_ran_well_between_failures():
    crash = Run(seconds=700.0, error=transient("a"))
    harness = continuous([stream("a")], {"a": [crash] * 40 + [FOREVER]}, stops=[40 * 705.0 + 10])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert len(harness.engine.times("start", "a")) == 41


def test_failures_of_a_view_do_not_add_up_when_refreshes_succeed_in_between():
    script = [Run(error=transient("v")), Run()] * 20
    harness = continuous([view("v")], {"v": script}, stops=[60.0 * 20])
    assert harness.run().state is UpdateState.CANCELED


def test_stopped_flow_shows_no_error_from_before_it_recovered():
    harness = continuous([stream("a")], {"a": [Run(error=transient("a")), FOREVER]}, stops=[50.0])
    harness.run()
    assert harness.last("a").error is None


def test_deterministic_failure_counts_when_a_dependent_fails_while_being_stopped():
    runs = [stream("a"), view("v", "a")]
    scripts = {
        "a": [Run(seconds=5.0, error=fatal("a"))],
        "v": [Run(seconds=9.0, error=fatal("v"))],
    }
    result = continuous(runs, scripts).run()
    assert len(result.failures) == 2


def test_waiting_flows_fail_immediately_when_the_engine_died():
    died = [Run(), Run(error=FlowError("JVM_DIED", "signal 9", flow="v"))]
    retried = [Run(error=transient("s")), Run(start_error=FlowError("JVM_DIED", "9", flow="s"))]
    runs = [stream("s"), view("v", interval=3600.0)]
    harness = continuous(runs, {"s": retried, "v": died})
    harness.time.at(3.0, harness.update.engine_died)
    result = harness.run()
    assert [error.condition for error in result.failures] == ["JVM_DIED", "JVM_DIED"]
    assert harness.time.monotonic() < 10.0


def test_set_up_is_retried_immediately_when_the_engine_died():
    died = FlowError("JVM_DIED", "signal 9", flow="a")
    harness = continuous([stream("a")], {}, tables=["a"], setups={"a": [transient("a"), died]})
    harness.time.at(1.0, harness.update.engine_died)
    result = harness.run()
    assert result.failures == (died,)
    assert result.setup_was_cut
    assert harness.time.monotonic() < 2.0


def test_refused_flow_fails_before_the_set_up():
    refusal = DefinitionError("OUTPUT_MODE_NOT_SUPPORTED", "flow 'b' cannot run")
    runs = [stream("a"), stream("b"), stream("c", "b"), view("v", "c"), view("w", "a")]
    tables = ["a", "b", "c", "v", "w"]
    harness = continuous(runs, {}, tables=tables, refused={"b": refusal}, stops=[9.0])
    result = harness.run()
    assert result.failures == (refusal,)
    assert result.skipped == ("c", "v")
    assert [name for _, what, name in harness.engine.log if what == "prepare"] == ["a", "w"]
    assert result.state is UpdateState.FAILED
    alone = continuous([stream("b")], {}, tables=["b"], resets=["b"], refused={"b": refusal})
    assert alone.run().failures == (refusal,)
    assert alone.engine.log == []
