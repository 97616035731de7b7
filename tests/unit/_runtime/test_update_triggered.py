import logging
from dataclasses import replace

import pytest
from scripted_engine import FOREVER, Harness, Run, fatal, once, stream, transient, view

from penstock._model.redaction import forget_secrets, remember_secret
from penstock._observe.events import FlowProgress, FlowStatus, Level, UpdateState
from penstock.errors import FlowError, InternalError, SetupError

DIAMOND = (stream("a"), stream("b", "a"), stream("c", "a"), view("d", "b", "c"))


def test_diamond_runs_branches_side_by_side_when_their_upstream_is_done():
    harness = Harness(DIAMOND, {"c": [Run(seconds=3.0)]}, tables="abcd")
    result = harness.run()
    assert result.state is UpdateState.COMPLETED
    assert result.completed == ("a", "b", "c", "d")
    assert [harness.engine.times("start", name) for name in "abcd"] == [[0], [1], [1], [4]]
    assert harness.states() == ["SETTING_UP_TABLES", "RUNNING", "COMPLETED"]
    assert harness.statuses("b") == ["QUEUED", "STARTING", "RUNNING", "COMPLETED"]
    assert harness.engine.stopped_at_end is False


def test_events_name_dataset_flow_and_update():
    runs = [stream("a", target="c.s.a"), stream("out", "c.s.a", target="webhook")]
    harness = Harness(runs, tables=["c.s.a"], excluded=("c.s.x",), excluded_sinks=("y",))
    harness.run()
    origin = harness.last("a").origin
    assert (origin.pipeline_name, origin.update_id) == ("shop", "u1")
    assert (origin.dataset_name, origin.sink_name) == ("c.s.a", "")
    sink = harness.last("out").origin
    assert (sink.dataset_name, sink.sink_name) == ("", "webhook")
    excluded = harness.events[0]
    assert excluded.body == FlowProgress(FlowStatus.EXCLUDED)
    assert (excluded.origin.dataset_name, excluded.origin.flow_name) == ("c.s.x", "")
    assert harness.events[1].body == excluded.body
    assert (harness.events[1].origin.dataset_name, harness.events[1].origin.sink_name) == ("", "y")


def test_empty_plan_completes_when_there_is_nothing_to_do():
    harness = Harness([])
    assert harness.run().state is UpdateState.COMPLETED
    assert harness.states() == ["COMPLETED"]


def test_dataset_is_done_only_when_all_flows_into_it_completed():
    runs = [
        stream("live", target="t"),
        once("backfill", target="t"),
        view("v", "t"),
    ]
    harness = Harness(runs, {"backfill": [Run(seconds=9.0)]}, tables="tv")
    harness.run()
    assert harness.engine.times("start", "v") == [9.0]
    assert harness.statuses("backfill")[-1] == "COMPLETED"


def test_flow_does_not_wait_for_itself_when_it_reads_its_own_target():
    harness = Harness([stream("a", "a")])
    assert harness.run().state is UpdateState.COMPLETED


def test_view_is_idle_and_lets_dependents_run_when_nothing_changed():
    harness = Harness([view("a"), view("b", "a")], {"a": [Run(changed=False)]})
    result = harness.run()
    assert harness.statuses("a")[-1] == "IDLE"
    assert harness.statuses("b")[-1] == "COMPLETED"
    assert result.state is UpdateState.COMPLETED
    assert "said so" in harness.last("a").message


def test_failed_branch_skips_its_dependents_while_other_branches_continue():
    error = fatal("b")
    harness = Harness(
        [*DIAMOND, stream("e", "c"), view("f", "d")], {"b": [Run(error=error)]}, tables="abcdef"
    )
    result = harness.run()
    assert result.state is UpdateState.FAILED
    assert result.failures == (error,)
    assert result.skipped == ("d", "f")
    assert result.completed == ("a", "c", "e")
    assert harness.statuses("f") == ["QUEUED", "SKIPPED"]
    assert "because b failed" in harness.last("f").message
    failed = harness.last("b")
    assert failed.level is Level.ERROR
    assert failed.error is not None
    assert (failed.error.condition, failed.error.fatal) == ("TEST_FATAL", True)
    final = harness.events[-1]
    assert final.error is not None
    assert final.error.condition == "UPDATE_FAILED"


def test_other_flow_into_the_same_table_continues_when_one_fails():
    runs = [stream("x", target="t"), stream("y", target="t"), view("v", "t")]
    harness = Harness(runs, {"x": [Run(error=fatal())], "y": [Run(seconds=5.0)]}, tables="tv")
    result = harness.run()
    assert result.completed == ("y",)
    assert result.skipped == ("v",)


def test_dependents_wait_when_a_flow_fails_and_succeeds_in_its_retry_window():
    harness = Harness(
        [stream("a"), stream("b", "a")], {"a": [Run(error=transient("a")), Run()]}, tables="ab"
    )
    result = harness.run()
    assert result.state is UpdateState.COMPLETED
    assert harness.statuses("a") == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "QUEUED",
        "STARTING",
        "RUNNING",
        "COMPLETED",
    ]
    assert harness.engine.times("start", "a") == [0.0, 6.0]
    assert harness.engine.times("start", "b") == [7.0]
    assert harness.statuses("b") == ["QUEUED", "STARTING", "RUNNING", "COMPLETED"]
    waiting = [event for event in harness.events if event.level is Level.WARN]
    assert len(waiting) == 1
    assert waiting[0].error is not None
    assert not waiting[0].error.fatal
    assert "retry 1 in 5.0 s" in waiting[0].message


@pytest.mark.parametrize(
    "step", [stream("a"), view("a"), once("a")], ids=["stream", "view", "once"]
)
def test_flow_fails_after_three_attempts(step):
    harness = Harness([step, view("b", "a")], {"a": [Run(error=transient("a"))]})
    result = harness.run()
    assert harness.engine.times("start", "a") == [0.0, 6.0, 17.0]
    assert result.state is UpdateState.FAILED
    assert len(result.failures) == 1
    assert result.skipped == ("b",)
    assert "gave up after 3 runs" in harness.last("a").message


def test_a_flow_has_its_own_number_of_attempts():
    runs = [replace(stream("a"), max_retries=0), replace(once("b"), max_retries=1), view("c")]
    harness = Harness(runs, {name: [Run(error=transient(name))] for name in "abc"})
    harness.run()
    assert [len(harness.engine.times("start", name)) for name in "abc"] == [1, 2, 3]


def test_start_is_retried_when_starting_itself_fails():
    harness = Harness([stream("a")], {"a": [Run(start_error=transient("a")), Run()]})
    assert harness.run().state is UpdateState.COMPLETED
    assert harness.engine.times("start", "a") == [0.0, 5.0]


@pytest.mark.parametrize(("error", "state"), [(None, "COMPLETED"), (fatal("a"), "FAILED")])
def test_statuses_keep_their_order_when_a_flow_ends_before_its_start_returns(error, state):
    harness = Harness([stream("a")], {"a": [Run(ends_before_start_returns=True, error=error)]})
    assert harness.run().state.value == state
    assert harness.statuses("a") == ["QUEUED", "STARTING", "RUNNING", state]


def test_unexpected_exception_is_an_internal_error_with_its_message_in_the_log(caplog):
    for run in (Run(error=KeyError("password=s3cret")), Run(error=SystemExit(7))):
        harness = Harness([view("a")], {"a": [run]})
        with caplog.at_level(logging.ERROR):
            (error,) = harness.run().failures
        assert isinstance(error, InternalError)
        assert error.__cause__ is run.error
        assert "s3cret" not in str(error)
        assert type(run.error).__name__ in str(error)
        assert len(harness.engine.times("start", "a")) == 1
    assert "s3cret" in caplog.text


def test_unexpected_error_at_the_end_of_a_flow_is_an_internal_error():
    harness = Harness([stream("a")], {"a": [Run(error=ValueError("x"))]})
    (error,) = harness.run().failures
    assert isinstance(error, InternalError)


def test_streaming_flows_are_limited_when_many_are_ready():
    runs = [stream(f"s{number}") for number in range(40)]
    harness = Harness(runs)
    harness.run()
    assert harness.engine.peak["stream"] == 16
    assert harness.engine.times("start", "s39") == [2.0]


def test_batch_steps_and_streams_have_separate_limits():
    runs = [*(view(f"v{number}") for number in range(9)), stream("s")]
    harness = Harness(runs, max_batch_steps=3)
    harness.run()
    assert harness.engine.peak == {"stream": 1, "batch": 3}
    assert harness.engine.times("start", "s") == [0.0]


def test_flow_that_waits_for_a_retry_takes_no_slot():
    runs = [view("a"), view("b")]
    harness = Harness(runs, {"a": [Run(error=transient("a")), Run()]}, max_batch_steps=1)
    assert harness.run().state is UpdateState.COMPLETED
    assert harness.engine.times("start", "b") == [1.0]


def test_tables_are_reset_then_prepared_when_a_full_refresh_is_planned():
    harness = Harness(DIAMOND, tables="abcdefghij", resets="ba", setup_seconds=1.0)
    harness.run()
    done = [(at, what, name) for at, what, name in harness.engine.log][:12]
    assert sorted(done) == [
        (0.0, "reset", "a"),
        (0.0, "reset", "b"),
        *((1.0, "prepare", name) for name in "abcdefgh"),
        (2.0, "prepare", "i"),
        (2.0, "prepare", "j"),
    ]
    assert harness.engine.times("start", "a") == [3.0]
    assert harness.states() == ["RESETTING", "SETTING_UP_TABLES", "RUNNING", "COMPLETED"]
    assert "MainThread" not in harness.engine.setup_threads


def test_table_that_cannot_be_prepared_fails_its_flows_and_skips_dependents():
    error = SetupError("TEST_DISK", "full")
    runs = [
        stream("x", target="t"),
        stream("y", target="t"),
        view("v", "t"),
        stream("other"),
    ]
    harness = Harness(runs, tables=["t", "v", "other"], setups={"t": [error]})
    result = harness.run()
    assert result.failures == (error,)
    assert harness.statuses("x") == harness.statuses("y") == ["QUEUED", "FAILED"]
    assert result.skipped == ("v",)
    assert result.completed == ("other",)
    assert harness.engine.times("start", "v") == []


def test_table_is_not_prepared_when_its_reset_failed():
    harness = Harness([stream("a")], tables="a", resets="a", setups={"a": [fatal()]})
    assert harness.run().state is UpdateState.FAILED
    assert harness.engine.times("prepare", "a") == []
    assert harness.engine.times("start", "a") == []


def test_setup_is_retried_when_its_error_is_transient():
    harness = Harness([stream("a")], tables="ab", setups={"a": [transient(), None]})
    assert harness.run().state is UpdateState.COMPLETED
    assert harness.engine.times("prepare", "a") == [0.0, 5.0]
    assert harness.engine.times("prepare", "b") == [0.0]
    assert harness.engine.times("start", "a") == [5.0]


def test_setup_fails_after_three_attempts():
    harness = Harness([stream("a")], tables="ab", setups={"a": [transient()]})
    result = harness.run()
    assert harness.engine.times("prepare", "a") == [0.0, 5.0, 15.0]
    assert len(result.failures) == 1
    assert harness.engine.times("prepare", "b") == [0.0]
    harness = Harness([stream("a")], tables="a", setups={"a": [transient()]}, setup_retries=1)
    assert len(harness.run().failures) == 1
    assert harness.engine.times("prepare", "a") == [0.0, 5.0]


def test_nothing_is_prepared_while_a_reset_is_retried():
    harness = Harness([stream("a")], tables="ab", resets="ab", setups={"a": [transient(), None]})
    assert harness.run().state is UpdateState.COMPLETED
    assert harness.engine.times("reset", "a") == [0.0, 5.0]
    assert harness.engine.times("reset", "b") == [0.0]
    assert harness.engine.times("prepare", "b") == [5.0]


def test_skipped_flow_stays_skipped_when_the_setup_of_its_table_is_retried():
    runs = [stream("a"), stream("x", target="t"), stream("y", "a", target="t")]
    setups = {"a": [fatal()], "t": [transient(), None]}
    harness = Harness(runs, tables="at", setups=setups)
    result = harness.run()
    assert harness.statuses("y") == ["QUEUED", "SKIPPED"]
    assert result.skipped == ("y",)
    assert result.completed == ("x",)


@pytest.fixture
def secret():
    remember_secret("hunter2x")
    yield "hunter2x"
    forget_secrets()


def test_no_event_shows_a_secret_of_an_error_message(secret):
    for retryable in (True, False):
        error = FlowError(
            "TEST_SECRET", f"cannot log in, password={secret}", flow="a", retryable=retryable
        )
        for options in ({"scripts": {"a": [Run(error=error)]}}, {"setups": {"a": [error]}}):
            harness = Harness([stream("a")], tables="a", **options)
            assert harness.run().failures == (error,)
            assert "cannot log in" in harness.last("a").message
            assert not [event for event in harness.events if secret in repr(event)]


def test_update_fails_instead_of_hanging_when_flows_wait_for_each_other():
    harness = Harness([stream("a", "b"), stream("b", "a"), stream("c")])
    result = harness.run()
    assert [error.condition for error in result.failures] == ["PLAN_STALLED"]
    assert result.completed == ("c",)


def test_engine_is_stopped_when_the_loop_fails(monkeypatch):
    harness = Harness([stream("a"), view("b")], {"a": [FOREVER], "b": [FOREVER]})

    def interrupted():
        raise KeyboardInterrupt

    harness.time.at(3.0, lambda: harness.update._inbox.put(interrupted))
    with pytest.raises(KeyboardInterrupt):
        harness.run()
    # Other threads stop the flows; virtual time advances only when these threads wait or end.
    harness.time.receive(harness.update._inbox, 4.0)
    assert harness.engine.times("interrupted", "a") == [3.0]
    assert harness.engine.times("cancel", "") == [3.0]
