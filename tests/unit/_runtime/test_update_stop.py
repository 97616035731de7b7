import os
import signal
import threading

from scripted_engine import FOREVER, Harness, Run, fatal, once, stream, transient, view

from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._plan.steps import Plan
from penstock._runtime.ports import RunOutcome
from penstock._runtime.update import Update


def test_no_flow_starts_when_stopped_before_the_run():
    harness = Harness([stream("a")], tables="a")
    harness.update.request_stop()
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert result.stopped == ("a",)
    assert harness.engine.log == []
    assert harness.statuses("a") == ["QUEUED", "STOPPED"]


def test_running_flow_ends_and_queued_flows_do_not_start_when_stopped():
    harness = Harness([stream("a"), stream("b", "a")], {"a": [FOREVER]}, stops=[3.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert not result.interrupted
    assert harness.engine.times("asked to stop", "a") == [3.0]
    assert harness.engine.times("interrupted", "a") == []
    assert harness.engine.times("start", "b") == []
    assert harness.statuses("a")[-1] == harness.statuses("b")[-1] == "STOPPED"
    assert harness.time.monotonic() == 3.5
    assert harness.states() == ["RUNNING", "STOPPING", "CANCELED"]
    assert harness.engine.stopped_at_end


def test_flow_that_is_starting_is_stopped_after_its_start():
    harness = Harness([stream("a")], {"a": [Run(seconds=None, start_seconds=5.0)]}, stops=[2.0])
    result = harness.run()
    assert result.stopped == ("a",)
    assert harness.engine.times("asked to stop", "a") == [5.0]


def test_batch_step_finishes_when_stopped_before_the_deadline():
    harness = Harness([view("v"), once("o")], {"v": [Run(seconds=50.0)]}, stops=[3.0])
    result = harness.run()
    # The stop has interrupted no work.
    assert result.state is UpdateState.COMPLETED
    assert harness.time.monotonic() == 50.0
    assert harness.engine.times("cancel", "") == []


def test_flow_that_waits_for_a_retry_does_not_run_again_when_stopped():
    harness = Harness([stream("a"), stream("b", "a")], {"a": [Run(error=transient())]}, stops=[3.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert result.failures == ()
    assert result.stopped == ("a", "b")
    assert harness.engine.times("start", "a") == [0.0]
    assert harness.time.monotonic() == 3.0
    error = harness.last("a").error
    assert error is not None
    assert not error.fatal


def test_second_stop_interrupts_flows_and_cancels_batch_steps():
    scripts = {"a": [Run(seconds=None, stop_seconds=None)], "v": [FOREVER]}
    harness = Harness([stream("a"), view("v")], scripts, stops=[3.0, 4.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert result.interrupted
    assert result.stopped == ("a", "v")
    assert harness.engine.times("interrupted", "a") == [4.0]
    assert harness.engine.times("cancel", "") == [4.0]
    assert harness.time.monotonic() < 5.0


def test_deadline_interrupts_when_a_flow_ignores_the_stop():
    scripts = {"a": [Run(seconds=None, stop_seconds=None)]}
    harness = Harness([stream("a")], scripts, stops=[3.0], stop_timeout_seconds=20.0)
    result = harness.run()
    assert result.interrupted
    assert harness.engine.times("interrupted", "a") == [23.0]


def test_flow_that_starts_after_the_interrupt_is_interrupted():
    scripts = {"a": [Run(seconds=None, start_seconds=9.0)]}
    harness = Harness([stream("a")], scripts, stops=[1.0, 2.0])
    assert harness.run().stopped == ("a",)
    assert harness.engine.times("interrupted", "a") == [9.0]
    assert harness.engine.times("asked to stop", "a") == []


def test_update_ends_when_a_flow_ignores_the_interrupt():
    scripts = {"a": [Run(seconds=None, stop_seconds=None, interrupt_seconds=None)]}
    harness = Harness([stream("a")], scripts, stops=[1.0, 2.0], interrupt_timeout_seconds=15.0)
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert harness.time.monotonic() == 17.0
    assert "did not stop in time" in harness.last("a").message


def test_update_is_failed_when_a_flow_had_failed_before_the_stop():
    scripts = {"a": [Run(error=fatal())], "b": [FOREVER]}
    result = Harness([stream("a"), stream("b")], scripts, stops=[3.0]).run()
    assert result.state is UpdateState.FAILED
    assert result.stopped == ("b",)


def test_deterministic_failure_counts_when_it_happens_during_the_stop():
    scripts = {"v": [Run(seconds=5.0, error=fatal())], "w": [Run(seconds=6.0, error=transient())]}
    harness = Harness([view("v"), view("w"), view("x", "v")], scripts, stops=[3.0])
    result = harness.run()
    assert result.state is UpdateState.FAILED
    assert len(result.failures) == 1
    assert result.stopped == ("w", "x")


def test_running_setup_finishes_and_no_flow_starts_when_stopped():
    harness = Harness([stream("a")], tables="abcdefghij", setup_seconds=2.0, stops=[1.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert sorted(name for _, _, name in harness.engine.log) == list("abcdefgh")
    assert harness.time.monotonic() == 2.0


def test_update_is_canceled_when_only_tables_remained_at_the_stop():
    harness = Harness([], tables="abcdefghi", setup_seconds=2.0, stops=[1.0])
    assert harness.run().state is UpdateState.CANCELED


def test_setup_that_waits_for_a_retry_is_canceled_when_stopped():
    harness = Harness([stream("a")], tables="a", setups={"a": [transient()]}, stops=[3.0])
    result = harness.run()
    assert result.state is UpdateState.CANCELED
    assert harness.engine.times("prepare", "a") == [0.0]
    assert harness.time.monotonic() == 3.0


def test_update_ends_when_the_setup_hangs():
    harness = Harness([stream("a")], tables="a", setup_seconds=1e6, stops=[1.0, 2.0])
    assert harness.run().state is UpdateState.CANCELED
    assert harness.time.monotonic() == 17.0


class RealEngine:
    """An engine with a batch step and a stream that runs until it is stopped, in real time."""

    def __init__(self, running: threading.Event) -> None:
        self._running = running

    def reset(self, step):
        raise AssertionError

    def prepare(self, step):
        pass

    def refresh(self, step):
        raise AssertionError

    def run_once(self, step):
        return RunOutcome(changed=True, reason="done")

    def cancel(self):
        pass

    def finish(self, *, is_stopped):
        pass

    def start_flow(self, step, on_end):
        self._running.set()
        return RealFlow(step.flow, on_end)


class RealFlow:
    def __init__(self, flow, on_end):
        self._end = lambda: on_end(None)

    def request_stop(self):
        threading.Thread(target=self._end).start()

    def interrupt(self):
        raise AssertionError


def test_stop_signal_ends_the_update():
    running = threading.Event()
    plan = Plan(runs=(stream("a"), once("o")))
    update = Update(plan, RealEngine(running), EventBus(), pipeline_name="p", update_id="u")

    def send():
        assert running.wait(10)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: update.request_stop())
    try:
        threading.Thread(target=send).start()
        result = update.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result.state is UpdateState.CANCELED
    assert result.completed == ("o",)
    assert result.stopped == ("a",)
