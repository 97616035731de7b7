"""Lag that is measured independently of Spark's progress, and for how long it is shown."""

from typing import Any

from made_events import flow_progress, stream_progress

from penstock._execution.listener import backlog_records
from penstock._observe.events import Event, EventOrigin, FlowStatus, LagProgress
from penstock._observe.lag import lag_sources, lag_summary
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import status_json

NAME = "KafkaV2[Subscribe[orders]]"
FLOW = EventOrigin(pipeline_name="shop", update_id="8c1f", dataset_name="c.s.b", flow_name="b")


def progress(end: dict[str, int], latest: dict[str, int] | None) -> dict[str, Any]:
    return {
        "batchId": 3,
        "numInputRows": 1,
        "sources": [
            {
                "description": NAME,
                "numInputRows": 1,
                "endOffset": {"orders": end},
                "latestOffset": None if latest is None else {"orders": latest},
            },
            {"description": "FileStreamSource[file:/in]", "endOffset": {"logOffset": 4}},
        ],
    }


def part(number: str, offset: int, latest: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": number,
        "offset": offset,
        "earliest_offset": 2,
        "latest_offset": latest,
        "records": latest - offset,
        "seconds_behind": 0.0 if latest == offset else 30.0,
        "seconds_to_loss": None if latest == offset else 600.0,
        "loss": "none" if latest == offset else "expected",
        "loss_by": None if latest == offset else "age",
        "lost_records": 0,
        **more,
    }


def measured(*parts: dict[str, Any], files: int | None = 7) -> LagProgress:
    return LagProgress(
        measured_at="2026-03-04T10:00:00.000Z",
        sources=(
            {"source": NAME, "kind": "kafka", "partitions": list(parts), "retention": {}},
            {
                "source": "FileStreamSource[file:/in]",
                "kind": "files",
                "files": files,
                "bytes": 70,
                "seconds_behind": None if files is None else 12.0,
            },
        ),
    )


def test_measured_lag_is_shown_per_partition_and_for_the_flow():
    sources = lag_sources(
        progress({"0": 60, "1": 40}, {"0": 90, "1": 40}),
        measured(part("0", 60, 95), part("1", 40, 40)),
    )
    first, second = sources[0]["partitions"]
    assert (first["records"], first["latest_offset"], first["seconds_behind"]) == (35, 95, 30.0)
    assert (first["seconds_to_loss"], first["loss"], first["earliest_offset"]) == (
        600.0,
        "expected",
        2,
    )
    assert (second["records"], second["seconds_behind"], second["loss"]) == (0, 0.0, "none")
    assert (sources[1]["files"], sources[1]["bytes"], sources[1]["partitions"]) == (7, 70, [])
    assert lag_summary(sources) == {
        "seconds_behind": 30.0,
        "seconds_to_loss": 600.0,
        "loss": "expected",
    }


def test_lag_is_unknown_after_progress_until_it_is_measured_again():
    sources = lag_sources(progress({"0": 80}, {"0": 90}), measured(part("0", 60, 95)))
    (partition,) = sources[0]["partitions"]
    assert (partition["records"], partition["seconds_behind"], partition["loss"]) == (
        10,
        None,
        "unknown",
    )
    assert partition["seconds_to_loss"] is None
    assert lag_summary(sources)["seconds_behind"] is None
    # All rows are read, so the lag is known without a measurement.
    (partition,) = lag_sources(progress({"0": 95}, {"0": 95}), None)[0]["partitions"]
    assert (partition["records"], partition["seconds_behind"], partition["loss"]) == (
        0,
        0.0,
        "none",
    )
    # Rows arrived after the measurement.
    (partition,) = lag_sources(progress({"0": 95}, {"0": 99}), measured(part("0", 95, 95)))[0][
        "partitions"
    ]
    assert (partition["records"], partition["seconds_behind"], partition["loss"]) == (
        4,
        None,
        "unknown",
    )


def test_unknown_lag_is_none_and_not_zero():
    unknown = part("0", 60, 0, latest_offset=None, records=None, seconds_behind=None)
    unknown |= {"seconds_to_loss": None, "loss": "unknown", "loss_by": None, "lost_records": None}
    sources = lag_sources(progress({"0": 60}, None), measured(unknown, files=None))
    (partition,) = sources[0]["partitions"]
    assert {partition[key] for key in ("records", "latest_offset", "seconds_behind")} == {None}
    assert (sources[1]["files"], sources[1]["versions"]) == (None, None)
    assert lag_sources(progress({"0": 60}, None), None)[0]["partitions"][0]["records"] is None
    mixed = [{"partitions": [part("0", 1, 9, loss="unknown"), part("1", 2, 9, loss="happened")]}]
    assert lag_summary(mixed)["loss"] == "happened"
    assert lag_summary([]) == {"seconds_behind": None, "seconds_to_loss": None, "loss": None}


def test_lag_of_files_tables_and_shards_has_the_measured_age():
    def age(*parts: dict[str, Any], files: float | None, end: int = 60) -> Any:
        body = measured(*parts)
        body.sources[1]["seconds_behind"] = files
        sources = lag_sources(progress({"0": end}, {"0": 90}), body)
        assert sources[1]["seconds_behind"] == files
        # The summary of the event equals that of its reader.
        if end == 60:
            assert lag_summary(list(body.sources)) == lag_summary(sources)
        return sources[0]["seconds_behind"], lag_summary(sources)["seconds_behind"]

    assert age(part("0", 60, 95), files=12.5) == (30.0, 30.0)
    assert age(part("0", 60, 95), files=99.5) == (30.0, 99.5)
    assert age(part("0", 60, 95), files=None) == (30.0, None)
    assert age(part("0", 60, 95), files=99.5, end=70) == (None, None)
    table = {"source": "DeltaSource[/t]", "kind": "delta", "versions": 1, "seconds_behind": 7.0}
    assert lag_summary([table])["seconds_behind"] == 7.0
    # A source without an age does not hide the age of others.
    assert lag_summary([table, {"source": "rate", "kind": "other"}])["seconds_behind"] == 7.0
    shards = [{"stream": "s", "shard": str(at), "behind_seconds": at} for at in (2.0, 9.0)]
    assert lag_summary([{"kind": "kinesis", "shards": shards}])["seconds_behind"] == 9.0


def test_status_shows_the_measured_lag():
    def folded(*events: Event) -> dict[str, Any]:
        fold = ObservedUpdate()
        for event in events:
            fold(event)
        return status_json(fold)

    status = folded(
        flow_progress(FLOW, FlowStatus.RUNNING, ""),
        stream_progress(FLOW, progress({"0": 60}, {"0": 90})),
        Event(FLOW, measured(part("0", 60, 95))),
    )
    lag = status["flows"][0]["lag"]
    assert (lag["seconds_behind"], lag["loss"], lag["seconds_to_loss"]) == (30.0, "expected", 600.0)
    assert lag["measured_at"] == "2026-03-04T10:00:00.000Z"


def test_lag_of_a_custom_source_has_its_own_age_and_offsets():
    end = {"url": 9, "files": {"a": "x", "b": {"line": 3}}}
    entry = {"description": "tape", "endOffset": end, "latestOffset": {"files": {"a": "y"}}}
    body = {"source": "tape", "kind": "tape", "seconds_behind": 7.5, "ids": 3}
    at = LagProgress(measured_at="2026-03-04T10:00:00.000Z", sources=(body,))
    (view,) = lag_sources({"sources": [entry]}, at)
    assert (view["kind"], view["seconds_behind"], view["partitions"]) == ("tape", 7.5, [])
    assert lag_summary([view])["seconds_behind"] == 7.5
    assert lag_summary([body | {"seconds_behind": None}])["seconds_behind"] is None
    assert backlog_records({"sources": [entry]}) is None
