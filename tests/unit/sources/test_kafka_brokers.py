"""Brokers of a source that the settings map to others."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock._model.paths import PathMap
from penstock.sources.kafka.admin import KafkaOptions, client_properties
from penstock.sources.kafka.options import at_mapped_servers

SECURED = {
    "Kafka.Bootstrap.Servers": "prod:9092",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.jaas.config": "password",
    "subscribe": "orders",
}
MAP = PathMap({"kafka://prod:9092": "kafka://localhost:9092"}).map


def test_mapped_broker_does_not_get_the_credentials_of_the_original():
    assert at_mapped_servers(SECURED, MAP) == {
        **SECURED,
        "Kafka.Bootstrap.Servers": "localhost:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    "options", [{}, {"subscribe": "x"}, {**SECURED, "Kafka.Bootstrap.Servers": "other:9092"}]
)
def test_options_are_unchanged_when_no_broker_is_mapped(options):
    assert at_mapped_servers(options, MAP) == options


def test_client_options_have_the_spelling_of_kafka():
    class Properties(dict):
        put = dict.__setitem__

    util = SimpleNamespace(Properties=Properties)
    spark: Any = SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(util=util)))
    properties = client_properties(spark, KafkaOptions(SECURED), 5)
    assert properties["bootstrap.servers"] == "prod:9092"
    assert "subscribe" not in properties
