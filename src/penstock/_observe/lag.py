"""The lag of a flow as JSON values, from Spark's progress and from separate measurements.

A measurement is valid for the offsets at which it was made. When the flow has read further, only
the values that still apply are shown; the others are unknown until the next measurement.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock._observe.events import LagProgress
from penstock._observe.spark_progress import Progress, ended_at, timestamp_of

_MEASURED = ("earliest_offset", "seconds_behind", "seconds_to_loss", "loss", "loss_by")
_LOSSES = ("none", "unknown", "expected", "happened")


def lag_sources(progress: Progress, measured: LagProgress | None) -> list[dict[str, Any]]:
    """One object per source, from Spark's progress and the latest measurement, if any."""
    beside = measured.sources if measured is not None else ()
    # If a batch has ended since the measurement, the sources respond.
    has_answered = measured is not None and _has_ended_since(progress, measured.measured_at)
    views = []
    for number, source in enumerate(progress.get("sources") or ()):
        known = beside[number] if number < len(beside) else {}
        is_same = known.get("source") == source.get("description", "")
        view = source_view(source, known if is_same else {})
        if has_answered:
            view |= {"problem": None, "problem_since": None}
        views.append(view)
    return views


def _has_ended_since(progress: Progress, measured_at: str | None) -> bool:
    ended, measured = ended_at(progress), timestamp_of(measured_at)
    try:
        return ended is not None and measured is not None and ended > measured
    except TypeError:  # only one timestamp has a time zone
        return False


def waiting_rows(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Unread rows of the sources that count them (Kafka, Delta); `None` unless all are known."""
    counts: list[int | None] = []
    for source in sources:
        counts += [part.get("records") for part in source.get("partitions") or ()]
        if source.get("problem"):
            counts.append(None)
        if source.get("versions") is not None:
            counts.append(source.get("rows") if source["versions"] else 0)
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def problem_of(sources: list[dict[str, Any]]) -> tuple[str, str] | None:
    """Why a source of a flow does not respond, and since when; `None` if all respond."""
    for source in sources:
        if source.get("problem"):
            return str(source["problem"]), str(source.get("problem_since") or "")
    return None


def lag_summary(sources: list[dict[str, Any]]) -> dict[str, Any]:
    """Lag of the flow: highest age, shortest time to loss and worst loss of its sources.

    The age is known only if it is known for each source that can report one.
    """
    parts = [part for source in sources for part in source.get("partitions") or ()]
    ages = [age for source in sources for age in ages_of(source)]
    times = [part["seconds_to_loss"] for part in parts if part["seconds_to_loss"] is not None]
    losses = [part["loss"] for part in parts]
    return {
        "seconds_behind": _highest(ages) if ages else None,
        "seconds_to_loss": min(times, default=None),
        "loss": max(losses, key=_LOSSES.index, default=None),
    }


def ages_of(source: Mapping[str, Any]) -> list[float | None]:
    """Age of the oldest unread data of each part of a source, in seconds; `None` if unknown.

    Empty for sources that never report an age.
    """
    ages = [part["seconds_behind"] for part in source.get("partitions") or ()]
    ages += [shard["behind_seconds"] for shard in source.get("shards") or ()]
    if not ages and source.get("kind") not in (None, "other"):
        ages.append(source.get("seconds_behind"))
    return ages


def source_view(
    source: Mapping[str, Any], measured: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Lag of one source, from Spark's `source` progress and the measurement, if any."""
    measured = measured or {}
    end, latest = source.get("endOffset"), source.get("latestOffset")
    behind = latest.get("behind_millis") if isinstance(latest, dict) else None
    view = {
        "source": source.get("description", ""),
        "kind": measured.get("kind"),
        "input_rows": source.get("numInputRows", 0),
        "end_offset": end,
        "latest_offset": latest,
        "partitions": _partitions(end, latest, measured) if behind is None else [],
        "shards": [_shard(shard_id, millis) for shard_id, millis in (behind or {}).items()],
        "retention": measured.get("retention"),
        "problem": measured.get("problem"),
        "problem_since": measured.get("problem_since"),
        "files": measured.get("files"),
        "versions": measured.get("versions"),
        "rows": measured.get("rows"),
        "bytes": measured.get("bytes"),
        "seconds_behind": measured.get("seconds_behind"),
        "metrics": dict(source.get("metrics") or {}),
    }
    if ages := ages_of(view):
        view["seconds_behind"] = _highest(ages)
    return view


def _highest(ages: list[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None


def _shard(shard_id: str, millis: int) -> dict[str, Any]:
    """How far a Kinesis shard was behind when it was read; the number of records is unknown."""
    stream, _, shard = shard_id.rpartition("/")
    return {"stream": stream, "shard": shard, "behind_seconds": round(millis / 1000, 3)}


def _partitions(end: Any, latest: Any, measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    beside = {(part["topic"], part["partition"]): part for part in measured.get("partitions", ())}
    if not isinstance(end, dict) or not isinstance(latest, dict | None):
        return []
    partitions = []
    for topic, newest in {**end, **(latest or {})}.items():
        done = end.get(topic)
        if not (isinstance(newest, dict) and isinstance(done, dict | None)):
            continue
        for partition, offset in newest.items():
            read = (done or {}).get(partition, 0)
            if not (isinstance(offset, int) and isinstance(read, int)):
                continue  # a source with another form of offsets
            reported = offset if latest is not None else None
            partitions.append(
                _partition(topic, partition, read, reported, beside.get((topic, partition)))
            )
    return partitions


def _partition(
    topic: str, partition: str, read: int, latest: int | None, measured: Mapping[str, Any] | None
) -> dict[str, Any]:
    part: dict[str, Any] = {"topic": topic, "partition": partition, "offset": read}
    if measured is not None and measured["offset"] == read:
        ends = [end for end in (latest, measured["latest_offset"]) if end is not None]
        newest = max(ends, default=None)
        part |= {key: measured[key] for key in (*_MEASURED, "lost_records")}
        if newest is not None and measured["latest_offset"] == read and newest > read:
            # Rows have arrived since the measurement.
            part |= {"seconds_behind": None, "seconds_to_loss": None, "loss": "unknown"}
    else:
        newest = latest
        is_read = newest is not None and newest <= read
        part |= dict.fromkeys((*_MEASURED, "lost_records"))
        part |= {"seconds_behind": 0.0 if is_read else None}
        part |= {"loss": "none" if is_read else "unknown"}
    part["latest_offset"] = newest
    part["records"] = None if newest is None else max(0, newest - read)
    return part
