"""The source in pipelines: the example, its plans and errors, and kills between its steps."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashes import crashing
from example_project import Example
from kinesis_double import ACCESS_KEY, REGION, SECRET_KEY, FaultProxy, Stream, wait_until
from made_events import details

from penstock._observe.events import Event, Level, UpdateState
from penstock._runtime.update import UpdateResult
from penstock.sources.base import Read
from penstock.sources.registry import source_of

pytestmark = [pytest.mark.spark]

MakeStream = Callable[..., Stream]


class Orders:
    """The example with a stream of the double as its source."""

    def __init__(self, root: Path, spark: Any, proxy: FaultProxy, stream: Stream) -> None:
        self.root = root
        self.example = Example("kinesis", root, spark)
        secrets = root / ".secrets" / "aws"
        secrets.mkdir(parents=True)
        (secrets / "access-key").write_text(ACCESS_KEY)
        (secrets / "secret-key").write_text(SECRET_KEY)
        self.conf = {
            "shop.stream": stream.name,
            "shop.region": REGION,
            "shop.endpoint": proxy.url,
            "shop.fail.on.data.loss": "true",
        }

    def run(self, **conf: str) -> UpdateResult:
        configuration = {key.replace("_", "."): value for key, value in conf.items()}
        return self.example.run({**self.conf, **configuration})

    def killed_run(self, point: str, batch: str) -> None:
        """Run `penstock run` in a process that is killed at this point."""
        pairs = [part for key, value in self.conf.items() for part in ("--conf", f"{key}={value}")]
        with (self.root / "killed.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", *pairs],
                cwd=self.root,
                env={**os.environ, "PENSTOCK_KILL_AT": f"{point}:orders:{batch}"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            assert process.wait(180) == -signal.SIGKILL, (self.root / "killed.log").read_text()
        finally:
            # Spark's Java process is in the same group and must be gone before the next start.
            wait_until(lambda: not _kill_group(process.pid), "the process group does not end")

    @property
    def numbers(self) -> Counter[str]:
        """The number of occurrences of each record in the table and in quarantine."""
        rows = self.example.table("orders").select("sequenceNumber").collect()
        bad = [row["sequenceNumber"] for _, row in self.example.quarantined("orders")]
        return Counter([*(row.sequenceNumber for row in rows), *bad])

    def losses(self) -> list[Event]:
        return [event for event in self.example.events if event.event_type == "source_rows_lost"]


def _kill_group(group: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False


def files_with_keys(root: Path) -> list[Path]:
    """Files that contain a key, except those in which the user stored the keys."""
    return [
        file
        for file in root.rglob("*")
        if file.is_file()
        and ".secrets" not in file.parts
        and any(key.encode() in file.read_bytes() for key in (SECRET_KEY, ACCESS_KEY))
    ]


def order(number: int) -> bytes:
    return json.dumps({"id": number, "amount": number + 0.5}).encode()


@pytest.mark.long
def test_orders_arrive_once_with_bad_ones_in_quarantine_when_shards_are_split(
    proxy: FaultProxy, make_stream: MakeStream, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    stream = make_stream(2)
    orders = Orders(tmp_path, spark, proxy, stream)
    written = stream.put(*map(order, range(8)), b"no order")
    assert orders.run().state is UpdateState.COMPLETED
    ((rules, row),) = orders.example.quarantined("orders")
    assert rules == ["parsed"]
    assert (row["shardId"], row["sequenceNumber"]) == written[8]
    place = json.loads(orders.example.table("orders_quarantine").first()["_source"])
    assert place == {
        "stream": stream.name,
        "shardId": written[8][0],
        "sequenceNumber": written[8][1],
    }
    table = orders.example.table("orders")
    assert {field.name: field.dataType.simpleString() for field in table.schema}.items() >= {
        "partitionKey": "string",
        "stream": "string",
        "shardId": "string",
        "sequenceNumber": "string",
        "approximateArrivalTimestamp": "timestamp",
        "id": "bigint",
    }.items()
    assert {row.stream for row in table.collect()} == {stream.name}

    stream.split("shardId-000000000000")
    written += stream.put(*map(order, range(10, 18)))
    assert orders.run().state is UpdateState.COMPLETED
    assert orders.numbers == Counter(number for _, number in written)
    assert orders.losses() == []

    # Retention removes records before they are read.
    late = stream.put(*map(order, range(20, 28)))
    last = {shard: number for shard, number in written if shard == late[0][0]}
    proxy.removed = {number for shard, number in [*written, *late[:-4]] if shard in last}
    proxy.ahead_seconds = 3 * 24 * 3600
    (error,) = orders.run().failures
    assert error.condition == "SOURCE_ROWS_LOST"
    assert "--full-refresh orders" in (error.hint or "")
    assert orders.run(shop_fail_on_data_loss="false").state is UpdateState.COMPLETED
    (incident,) = orders.losses()
    assert incident.level is Level.WARN
    assert details(incident)["ranges"] == [
        {"stream": stream.name, "shard": shard, "after": number, "rows": None}
        for shard, number in last.items()
    ]
    assert set(orders.numbers.values()) == {1}
    assert files_with_keys(tmp_path) == []


def test_error_names_the_stream_and_no_keys(
    proxy: FaultProxy, make_stream: MakeStream, spark, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    orders = Orders(tmp_path, spark, proxy, make_stream())
    proxy.throttled = 10_000
    (error,) = orders.run(shop_stream="no-such-stream").failures
    assert (error.condition, "no-such-stream" in str(error)) == ("KINESIS_REFUSED", True)
    assert files_with_keys(tmp_path) == []


def test_a_batch_reads_everything_and_plans_show_no_keys(
    proxy: FaultProxy, make_stream: MakeStream, spark, capsys
):
    stream = make_stream(2)
    stream.put(*map(order, range(12)))
    options = {
        "streamName": stream.name,
        "region": REGION,
        "endpoint": proxy.url,
        "awsAccessKey": ACCESS_KEY,
        "awsSecretKey": SECRET_KEY,
    }

    def opened(*, is_stream: bool) -> Any:
        load: Any = None
        read = Read(spark=spark, format="kinesis", options=options, load=load, is_stream=is_stream)
        return source_of("kinesis").open(read).df

    batch = opened(is_stream=False)
    assert sorted(json.loads(row.data)["id"] for row in batch.collect()) == list(range(12))
    query = opened(is_stream=True)
    for df in (batch, query):
        df.explain(extended=True)
    shown = capsys.readouterr().out
    assert "kinesis" in shown.lower()
    assert ACCESS_KEY not in shown
    assert SECRET_KEY not in shown


@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_record_is_stored_once_when_the_pipeline_crashes_around_a_commit(
    proxy: FaultProxy, make_stream: MakeStream, spark, tmp_path: Path, monkeypatch, kills: bool
):
    monkeypatch.chdir(tmp_path)
    stream = make_stream(2)
    orders = Orders(tmp_path, spark, proxy, stream)

    def crash(point: str, batch: str) -> None:
        if kills:
            orders.killed_run(point, batch)
            return
        with crashing(point, "orders") as crashed:
            assert orders.run().state is UpdateState.FAILED
        assert crashed == {"orders"}

    written = stream.put(*map(order, range(8)), b"no order")
    crash("before_write", "0")
    # The batch was planned: it must not include later records.
    written += stream.put(*map(order, range(10, 18)), b"no order either")
    stream.split("shardId-000000000001")
    crash("after_target_commit", "1")
    written += stream.put(*map(order, range(20, 28)))
    assert orders.run().state is UpdateState.COMPLETED
    assert orders.numbers == Counter(number for _, number in written)
    assert len(orders.example.quarantined("orders")) == 2
