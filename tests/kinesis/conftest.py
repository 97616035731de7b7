import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kinesis_double import ACCESS_KEY, REGION, SECRET_KEY, FaultProxy, KinesisDouble, Stream

_numbers = itertools.count()


@pytest.fixture(scope="session")
def kinesis_double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesisDouble]:
    """One server for all tests of a run; every test creates its own stream."""
    double = KinesisDouble(tmp_path_factory.mktemp("kinesis") / "double.log")
    try:
        yield double
    finally:
        double.close()


@pytest.fixture
def proxy(kinesis_double: KinesisDouble) -> Iterator[FaultProxy]:
    """The proxy that the source connects to."""
    proxy = FaultProxy(kinesis_double.port)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture
def producer(kinesis_double: KinesisDouble) -> Any:
    """A client that is connected to the double directly."""
    from botocore.session import Session

    session = Session()
    session.set_credentials(ACCESS_KEY, SECRET_KEY)
    return session.create_client(
        "kinesis", region_name=REGION, endpoint_url=f"http://127.0.0.1:{kinesis_double.port}"
    )


@pytest.fixture
def make_stream(producer: Any) -> Callable[..., Stream]:
    """Creates a stream with a unique name."""

    def make(shards: int = 1) -> Stream:
        return Stream(producer, f"orders-{next(_numbers)}", shards)

    return make
