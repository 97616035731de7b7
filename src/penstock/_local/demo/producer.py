"""Sends the messages of an `OrderStream` to Kafka when they are due."""

import threading
import time
from dataclasses import replace
from typing import Any

from penstock._local.demo.kafka_log import import_client
from penstock._local.demo.orders import OrderStream
from penstock.errors import SetupError

_TICK_SECONDS = 0.01
# A broker may be away for so long; when nothing more is to be sent, less.
_PATIENCE_SECONDS = 120.0
_LAST_PATIENCE_SECONDS = 30.0
# Never more than this much of the schedule, and so many messages, are unacknowledged. When a broker
# that was away comes back, one partition is served before the others; this bounds by how much, and
# with it how late an order can look to the watermark.
_UNACKNOWLEDGED_MS = 5_000
_UNACKNOWLEDGED = 5_000


class OrderProducer:
    """Sends orders on a thread of its own, open loop: a delay does not lower the rate.

    `total` is the number of messages; `None` means until `request_stop`. The schedule of `stream`
    starts with `start`.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, stream: OrderStream, *, total: int | None
    ) -> None:
        self._topic = topic
        self._stream = stream
        self._total = total
        self._stop = threading.Event()
        self._failure: str | None = None
        self.acknowledged = 0
        self._client = import_client().Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 4 * _UNACKNOWLEDGED,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="penstock-demo-orders", daemon=True)

    @property
    def finished(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        self._stream = replace(self._stream, start_ms=int(time.time() * 1000))
        self._thread.start()

    def request_stop(self) -> None:
        """Stop sending without waiting; messages in flight are still acknowledged."""
        self._stop.set()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end; whether it came in time."""
        self._thread.join(timeout_seconds)
        if self._failure is not None:
            raise SetupError(
                "DEMO_PRODUCER_FAILED",
                f"orders could not be sent to Kafka: {self._failure}",
                hint="run `penstock broker status`, then start the demo again: it resumes",
            )
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # raised by `join`
            self._failure = self._failure or f"{type(error).__name__}: {error}"

    def _send_all(self) -> None:
        stream, index, flushed = self._stream, 0, 0
        while not self._stop.is_set() and self._failure is None:
            if self._total is not None and index >= self._total:
                break
            due = stream.due_ms(index)
            behind_flush = due - stream.due_ms(flushed) > _UNACKNOWLEDGED_MS
            if index - flushed >= _UNACKNOWLEDGED or (behind_flush and index > flushed):
                self._flush()
                flushed = index
            wait = due / 1000 - time.time()
            if wait > 0:
                self._client.poll(0)
                self._stop.wait(min(wait, _TICK_SECONDS) if wait < 1 else 1.0)
                continue
            self._send(index)
            index += 1
        self._flush()

    def _send(self, index: int) -> None:
        message = self._stream.message(index)
        self._client.produce(
            self._topic,
            key=message.key,
            value=message.value,
            timestamp=message.timestamp_ms,
            on_delivery=self._delivered,
        )
        self._client.poll(0)

    def _flush(self) -> None:
        waited = waited_for_stop = 0.0
        while left := self._client.flush(1.0):
            waited += 1.0
            # The seconds before the stop do not count: the broker may have just come back.
            waited_for_stop += self._stop.is_set()
            if waited >= _PATIENCE_SECONDS or waited_for_stop >= _LAST_PATIENCE_SECONDS:
                raise TimeoutError(f"{left} messages were not acknowledged in {waited:g} s")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failure = str(error)
