"""Announces the files of a source from its queue, and from occasional listings.

A message is deleted after its files are in the log of announced files; if the process ends in
between, it is received again. A listing adds files that were never announced: before the first
start, at each `backfillInterval`, and at each start if files may be overwritten.
"""

import logging
import threading
import time
from collections.abc import Sequence
from functools import cached_property

from penstock._model.exception_text import first_line
from penstock._tables.kill_points import kill_point
from penstock.errors import FlowError
from penstock.sources.files.inbox import FileInbox
from penstock.sources.files.listing import file_uri
from penstock.sources.files.queue import FileQueue, Message, QueueUnreachable
from penstock.sources.files.s3_events import CreatedFile, created_files

_logger = logging.getLogger(__name__)
# Messages of a round are deleted well within the 30 seconds for which SQS hides them.
_ROUND_SECONDS = 5.0
_ROUND_MESSAGES = 10_000
_FIRST_WAIT, _WAIT = 1, 3


class QueueInbox(FileInbox):
    """Announces the files that the messages of a queue name."""

    @cached_property
    def _queue(self) -> FileQueue:
        assert self._source.options.queue is not None
        return FileQueue(self._source.options.queue)

    def prepare(self) -> None:
        super().prepare()
        try:
            self._drain(_FIRST_WAIT, threading.Event())
        except QueueUnreachable as error:
            raise FlowError(
                "FILE_QUEUE_UNREACHABLE",
                f"the messages about new files could not be received: {error}",
                flow=self._flow,
                retryable=True,
                hint="check `cloudFiles.queueUrl` and the network; nothing is lost",
            ) from None

    def _look(self, stop: threading.Event) -> float:
        return self._drain(_WAIT, stop)

    def _drain(self, wait: int, stop: threading.Event) -> float:
        """Announce files until the queue is empty or has only messages that were sent since."""
        began, pause = self._now() * 1000, 0.0
        while messages := self._receive(wait, stop):
            pause, deleted = self._take(messages)
            # Messages that stay in the queue may be visible again immediately.
            if stop.is_set() or all(message.sent_ms >= began for message in deleted):
                break
        return pause

    def _receive(self, wait: int, stop: threading.Event) -> list[Message]:
        messages = more = self._queue.receive(wait)
        until = time.monotonic() + _ROUND_SECONDS
        while more and len(messages) < _ROUND_MESSAGES and time.monotonic() < until:
            if stop.is_set():
                break
            more = self._queue.receive(0)
            messages = messages + more
        return messages

    def _take(self, messages: Sequence[Message]) -> tuple[float, list[Message]]:
        files: dict[str, tuple[int, int]] = {}
        done: list[Message] = []
        others = 0
        for message in messages:
            try:
                created = created_files(message.body)
            except ValueError as error:
                _logger.warning(
                    "flow %s left a message in its queue that is no event of S3 (%s): %.200s",
                    self._flow,
                    first_line(error),
                    message.body,
                )
                continue
            done.append(message)
            for file in created:
                uri = self._uri(file)
                others += uri is None
                if uri is not None and file.modified >= files.get(uri, (0, 0))[1]:
                    files[uri] = (file.size, file.modified)
        if others:
            _logger.info("flow %s: %d events were about files elsewhere", self._flow, others)
        pause = self._announce(files)
        kill_point("after_announcement", self._flow, None)
        self._queue.delete(done)
        return pause, done

    def _uri(self, file: CreatedFile) -> str | None:
        """The URI under which the source reads a file; `None` if it does not read it."""
        if "//" in f"/{file.key}/":
            return None  # Hadoop has no path for it, and a listing would not have it
        for root in self._source.roots.paths:
            scheme, _, rest = root.partition("://")
            path = f"{scheme}://{file.bucket}/{file.key}"
            if rest.partition("/")[0] == file.bucket and self._source.roots.includes(path):
                return file_uri(self._source.spark, path)
        return None
