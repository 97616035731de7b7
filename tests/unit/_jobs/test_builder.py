import pytest

from penstock._jobs.builder import has_packages


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
