from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._local.broker import BrokerHandle, start_broker, stop_broker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """One broker for all Kafka tests of a run; every test makes its own topic."""
    directory: Path = tmp_path_factory.mktemp("kafka")
    try:
        yield start_broker(directory)
    finally:
        stop_broker(directory)
