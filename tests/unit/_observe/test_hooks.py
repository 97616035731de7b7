import sys
import threading
from typing import Any

from made_events import details, stream_progress, update_progress

from penstock._model.origin import SourceLocation
from penstock._model.pipeline import EventHook
from penstock._observe.bus import EventBus
from penstock._observe.events import Event, EventOrigin, PlanWarning, UpdateState
from penstock._observe.hooks import EventHooks

ORIGIN = EventOrigin(pipeline_name="shop", update_id="u1")


def hook(function: Any, limit: int | None = None) -> EventHook:
    return EventHook(
        name=function.__name__,
        function=function,
        max_consecutive_failures=limit,
        origin=SourceLocation("pipeline.py", 9),
    )


def delivered(*hooks: EventHook, timeout: float = 30) -> list[Event]:
    """Emit three events, the first of them before the hooks are added."""
    bus = EventBus()
    reported: list[Event] = []
    events = EventHooks(bus, ORIGIN)
    bus.subscribe(reported.append)
    bus.subscribe(events)
    bus.emit(update_progress(ORIGIN, UpdateState.INITIALIZING, "start"))
    events.start(hooks)
    bus.emit(update_progress(ORIGIN, UpdateState.RUNNING, "run"))
    bus.emit(update_progress(ORIGIN, UpdateState.COMPLETED, "end"))
    events.close(timeout)
    return [event for event in reported if event.event_type == "hook_progress"]


def test_hook_gets_all_events_in_order():
    received: list[dict[str, Any]] = []

    def collect(event: dict[str, Any]) -> None:
        received.append(event)

    assert delivered(hook(collect)) == []
    assert [event["message"] for event in received] == ["start", "run", "end"]
    assert [event["sequence"]["data_plane_id"]["seq_no"] for event in received] == [1, 2, 3]
    assert {event["origin"]["update_id"] for event in received} == {"u1"}


def test_other_hooks_continue_when_one_raises():
    received: list[str] = []

    def broken(event: dict[str, Any]) -> None:
        raise ValueError("no")

    def collect(event: dict[str, Any]) -> None:
        received.append(event["message"])

    def leaving(event: dict[str, Any]) -> None:
        sys.exit("no")

    reports = delivered(hook(leaving))
    assert [event.message for event in reports] == [
        "event hook 'leaving' raised SystemExit: no",
        "event hook 'leaving' raised for 3 events",
    ]
    reports = delivered(hook(broken), hook(collect))
    assert received == ["start", "run", "end"]
    assert [event.message for event in reports] == [
        "event hook 'broken' raised ValueError: no",
        "event hook 'broken' raised for 3 events",
    ]
    assert {event.error.condition for event in reports if event.error} == {"HOOK_FAILED"}


def test_event_changed_by_a_hook_is_unchanged_for_others():
    event = stream_progress(ORIGIN, {"sources": [{"numInputRows": 1}]})
    events = EventHooks(EventBus(), ORIGIN)
    received: list[Any] = []

    def changes(event: dict[str, Any]) -> None:
        received.append(event["details"]["stream_progress"]["progress_json"]["sources"].pop())

    events.start([hook(changes), hook(changes)])
    events(event)
    events.close()
    assert len(received) == 2 and details(event)["progress_json"]["sources"] == [
        {"numInputRows": 1}
    ]


def test_hook_is_disabled_when_it_fails_too_often_in_a_row():
    calls: list[str] = []

    def broken(event: dict[str, Any]) -> None:
        calls.append(event["message"])
        raise ValueError("no")

    reports = delivered(hook(broken, limit=1))
    assert calls == ["start", "run"]
    assert reports[-1].message == "event hook 'broken' is disabled after 2 failures in a row"


def test_failures_are_reset_after_a_successful_call():
    calls: list[str] = []

    def shaky(event: dict[str, Any]) -> None:
        calls.append(event["message"])
        if event["message"] != "run":
            raise ValueError("no")

    delivered(hook(shaky, limit=1))
    assert calls == ["start", "run", "end"]


def test_end_of_the_update_is_not_delayed_when_a_hook_hangs():
    release = threading.Event()

    def slow(event: dict[str, Any]) -> None:
        release.wait(60)

    try:
        (report,) = delivered(hook(slow), timeout=0.05)
    finally:
        release.set()
    assert "did not finish in time; 3 events were not delivered" in report.message


def test_bus_removes_the_subscribers_of_a_scope_at_its_end():
    bus, before, inside = EventBus(), list[Event](), list[Event]()
    bus.subscribe(before.append)
    with bus.scope():
        bus.subscribe(inside.append)
        bus.emit(Event(ORIGIN, PlanWarning("one"), "one"))
    bus.emit(Event(ORIGIN, PlanWarning("two"), "two"))
    assert ([e.message for e in before], [e.message for e in inside]) == (["one", "two"], ["one"])


def test_memory_is_bounded_when_a_hook_is_slow_or_disabled():
    began, release = threading.Event(), threading.Event()
    received: list[str] = []

    def slow(event: dict[str, Any]) -> None:
        began.set()
        release.wait(60)
        received.append(event["message"])

    def broken(event: dict[str, Any]) -> None:
        raise ValueError("no")

    bus, reported = EventBus(), list[Event]()
    events = EventHooks(bus, ORIGIN, most_waiting=5)
    bus.subscribe(reported.append)
    bus.subscribe(events)
    events.start([hook(slow), hook(broken, limit=0)])
    bus.emit(update_progress(ORIGIN, UpdateState.RUNNING, "0"))
    assert began.wait(30)
    broken_line = events._workers[1]
    assert broken_line.thread is not None
    broken_line.thread.join(30)
    for number in range(1, 21):
        bus.emit(update_progress(ORIGIN, UpdateState.RUNNING, str(number)))
    assert [line.events.qsize() for line in events._workers] == [5, 0]
    release.set()
    events.close()
    assert received == ["0", "1", "2", "3", "4", "5"]
    messages = [
        e.message for e in reported if e.event_type == "hook_progress" and "slow" in e.message
    ]
    assert messages == [
        "event hook 'slow' is too slow: events are dropped",
        "event hook 'slow' was too slow: 15 events were not delivered",
    ]
