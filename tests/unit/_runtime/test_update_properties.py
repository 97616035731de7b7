"""With any graph and any failures, the loop ends and reports the correct results."""

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import FOREVER, Harness, Run, fatal, once, stream, transient, view

from penstock._observe.events import UpdateState
from penstock._plan.steps import RefreshView, StartFlow

FINAL = {"COMPLETED", "IDLE", "FAILED", "SKIPPED", "STOPPED"}
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0])


@st.composite
def runs_of_a_flow(draw, name, *, endless=False):
    """Up to four transient failures, then a fatal failure, a success, or an endless run."""
    script = []
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))):
        how = draw(st.sampled_from(["start", "run", "early"]))
        script.append(
            Run(
                seconds=draw(SECONDS),
                start_seconds=draw(SECONDS),
                start_error=transient(name) if how == "start" else None,
                error=transient(name),
                ends_before_start_returns=how == "early",
            )
        )
    if draw(st.integers(0, 5)) == 0:
        script.append(Run(seconds=draw(SECONDS), error=fatal(name)))
    elif endless:
        script.append(FOREVER)
    else:
        script.append(
            Run(
                seconds=draw(SECONDS),
                start_seconds=draw(SECONDS),
                ends_before_start_returns=draw(st.booleans()),
                changed=draw(st.booleans()),
            )
        )
    stubborn = draw(st.integers(0, 9))
    ignores_stop, ignores_all = stubborn < 2, stubborn == 0
    last = script[-1]
    script[-1] = Run(
        **{
            **last.__dict__,
            "stop_seconds": None if ignores_stop else draw(SECONDS),
            "interrupt_seconds": None if ignores_all else draw(SECONDS),
        }
    )
    return script


@st.composite
def pipelines(draw, *, continuous):
    """A random acyclic graph with a script for each flow."""
    interval = 5.0 if continuous else None
    datasets, steps, scripts, setups = [], [], {}, {}
    for number in range(draw(st.integers(1, 7))):
        dataset = f"d{number}"
        for part in range(draw(st.sampled_from([1, 1, 1, 2]))):
            upstream = draw(st.lists(st.sampled_from(datasets), unique=True)) if datasets else []
            kind = draw(st.sampled_from(["stream", "stream", "once", "view"]))
            name = f"{dataset}_{part}"
            if kind == "view" and part == 0:
                steps.append(view(dataset, *upstream, interval=interval))
                name = dataset
            elif kind == "once":
                steps.append(once(name, *upstream, target=dataset))
            else:
                steps.append(stream(name, *upstream, target=dataset, interval=interval))
            endless = continuous and isinstance(steps[-1], StartFlow)
            scripts[name] = draw(runs_of_a_flow(name, endless=endless))
            if isinstance(steps[-1], RefreshView):
                break
        failure = draw(st.sampled_from([None] * 12 + [transient(), fatal()]))
        setups[dataset] = draw(st.sampled_from([[failure], [failure, None]]))
        datasets.append(dataset)
    return {"runs": steps, "scripts": scripts, "tables": datasets, "setups": setups}


def check_truth(harness, result):
    """Assert the invariants of any finished update."""
    steps = harness.plan.runs
    by_status = {name: [] for name in FINAL}
    for step in steps:
        by_status[harness.statuses(step.flow)[-1]].append(step.flow)
    assert list(result.skipped) == by_status["SKIPPED"]
    assert list(result.stopped) == by_status["STOPPED"]
    assert set(result.completed) == {*by_status["COMPLETED"], *by_status["IDLE"]}
    assert bool(result.failures) == bool(by_status["FAILED"])
    assert (result.state is UpdateState.FAILED) == bool(by_status["FAILED"])
    assert harness.states()[-1] == result.state.value
    assert harness.states().count(result.state.value) == 1
    # A flow has at most one active run.
    open_runs = set()
    for _, what, name in harness.engine.log:
        if what == "start":
            assert name not in open_runs
            open_runs.add(name)
        elif what in ("ended", "failed"):
            open_runs.discard(name)
    return by_status


@settings(max_examples=40, deadline=None)
@given(pipeline=pipelines(continuous=False), limit=st.integers(1, 3))
def test_triggered_update_keeps_its_guarantees_when_anything_fails(pipeline, limit):
    harness = Harness(**pipeline, max_batch_steps=limit, max_streaming_flows=limit)
    result = harness.run()
    by_status = check_truth(harness, result)
    assert not by_status["STOPPED"]
    assert result.state in (UpdateState.COMPLETED, UpdateState.FAILED)
    assert harness.engine.peak["stream"] <= limit
    assert harness.engine.peak["batch"] <= limit
    not_done = {s.target for s in harness.plan.runs for f in [s.flow]} & {
        s.target
        for s in harness.plan.runs
        if s.flow in by_status["FAILED"] or s.flow in by_status["SKIPPED"]
    }
    for step in harness.plan.runs:
        statuses = harness.statuses(step.flow)
        assert sum(status in FINAL for status in statuses) == 1
        starts = harness.engine.times("start", step.flow)
        assert len(starts) <= 3
        # A flow is skipped if and only if an upstream is not done and its own table was prepared.
        upstream_not_done = not not_done.isdisjoint(step.upstream)
        if statuses[-1] == "SKIPPED":
            assert upstream_not_done
            assert not starts
        if upstream_not_done:
            assert statuses[-1] in ("SKIPPED", "FAILED")
            assert not starts
        # A flow starts only after all flows into its upstreams have succeeded.
        for other in harness.plan.runs:
            if starts and other.target in step.upstream and other is not step:
                assert harness.engine.times("ended", other.flow)[-1] <= starts[0]


@settings(max_examples=40, deadline=None)
@given(
    pipeline=pipelines(continuous=False),
    stops=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0, 20.0, 80.0]), max_size=3),
)
def test_triggered_update_ends_in_time_whenever_it_is_stopped(pipeline, stops):
    harness = Harness(**pipeline, stops=stops)
    result = harness.run()
    by_status = check_truth(harness, result)
    for step in harness.plan.runs:
        assert sum(status in FINAL for status in harness.statuses(step.flow)) == 1
    if "STOPPING" in harness.states():
        # At most the stop timeout and the interrupt timeout after the stop request.
        assert harness.time.monotonic() <= min(stops) + 60.0 + 15.0
        stopped = min(stops)
        assert all(when <= stopped for when, what, _ in harness.engine.log if what == "start")
    elif not by_status["FAILED"]:
        assert result.state is UpdateState.COMPLETED


@settings(max_examples=40, deadline=None)
@given(
    pipeline=pipelines(continuous=True),
    stop=st.sampled_from([0.0, 3.0, 12.0, 100.0, 2000.0]),
    again=st.booleans(),
)
def test_continuous_update_ends_in_time_whenever_it_is_stopped(pipeline, stop, again):
    harness = Harness(**pipeline, continuous=True, stops=[stop, stop + 2.0] if again else [stop])
    result = harness.run()
    by_status = check_truth(harness, result)
    assert harness.time.monotonic() <= stop + 60.0 + 15.0
    dead = {s.target for s in harness.plan.runs if s.flow in by_status["FAILED"]}
    for step in harness.plan.runs:
        last = harness.statuses(step.flow)[-1]
        assert last in FINAL
        if isinstance(step, StartFlow) and not dead.isdisjoint(step.upstream):
            assert last in ("SKIPPED", "STOPPED", "FAILED")
        if last == "SKIPPED":
            assert not harness.engine.times("start", step.flow)
