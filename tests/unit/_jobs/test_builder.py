import math
from typing import Any

import pytest

from penstock._jobs.builder import has_packages
from penstock._jobs.job import Job
from penstock._observe.bus import EventBus
from penstock._observe.events import EventOrigin
from penstock._update import UpdateOptions


class Queries:
    """Records how the queries of a job are stopped."""

    def __init__(self) -> None:
        self.stops: list[str] = []

    def request_stop(self) -> None:
        self.stops.append("stop")

    def interrupt(self) -> None:
        self.stops.append("interrupt")


def test_second_stop_interrupts_without_a_limit_for_the_first():
    queries: Any = Queries()
    settings: Any = None
    options = UpdateOptions(stop_timeout_seconds=math.inf)
    job = Job(settings, settings, (), queries, EventBus(), EventOrigin(), options, lambda: None)
    for _ in range(2):
        job.request_stop()
    job._stop_on_request()
    assert queries.stops == ["stop", "interrupt"]


@pytest.mark.parametrize(
    ("coordinates", "expected"),
    [
        ("org.apache.spark:spark-sql-kafka-0-10_2.12:3.3.0", True),
        ("org.apache.spark:spark-avro_2.12:3.5.0, org.postgresql:postgresql:42.2.18", True),
        ("io.delta:delta-core_2.12:1.0.0", True),
        ("org.apache.spark:spark-sql-kafka-0-10_2.12:3.3.0,com.datastax.spark:x_2.12:3.0.0", False),
        ("org.example:spark-sql-kafka-0-10-extra_2.12:3.3.0", False),
        ("spark-avro", False),
        ("", False),
    ],
)
def test_packages_of_every_session_are_recognized(coordinates: str, expected: bool):
    assert has_packages(coordinates) is expected
