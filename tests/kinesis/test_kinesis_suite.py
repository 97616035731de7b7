"""The Kinesis source passes the suite of all sources."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kinesis_double import ACCESS_KEY, REGION, SECRET_KEY, FaultProxy, Stream
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.sources.kinesis.source import KinesisSource
from penstock.testing import SourceSuite

pytestmark = [pytest.mark.spark]


class TestKinesisSource(SourceSuite):
    source = KinesisSource
    has_latest = True
    has_ranges = True
    secrets = ("awsSecretKey", "awsAccessKey")
    # The backlog is reported with each batch, as a time.
    test_what_waits_is_measured = None

    @pytest.fixture(autouse=True)
    def _connect(self, proxy: FaultProxy, make_stream: Callable[..., Stream]) -> None:
        self.url, self.stream = proxy.url, make_stream(2)

    def options(self, folder: Path) -> Mapping[str, str]:
        return {
            "streamName": self.stream.name,
            "region": REGION,
            "endpoint": self.url,
            "awsAccessKey": ACCESS_KEY,
            "awsSecretKey": SECRET_KEY,
            "initialPosition": "trim_horizon",
            "minFetchPeriod": "10ms",
        }

    def add_rows(self, spark: Any, folder: Path, rows: Sequence[tuple[Any, ...]]) -> None:
        self.stream.put(*(json.dumps({"id": at, "name": name}).encode() for at, name in rows))

    def query(self, rows: DataFrame) -> DataFrame:
        value = F.from_json(F.col("data").cast("string"), "id BIGINT, name STRING")
        return rows.select(value.alias("v")).select("v.id", "v.name")
