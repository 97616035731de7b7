"""Takes the files of a source from its queue, and from a listing now and then.

A message is deleted after its files are in the log of announced files; if the process ends in
between, it is received again, and Spark reads each path once. A listing adds what was never
announced: before the first start, at each `backfillInterval`, and where files may be overwritten.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError

from penstock._model.exception_text import first_line
from penstock._tables.kill_points import kill_point
from penstock.errors import ConnectorError, FlowError
from penstock.sources.files.announced import AnnouncedFiles
from penstock.sources.files.batch_log import SourceLogs
from penstock.sources.files.listing import FileRoots, file_name_of_uri, file_uri
from penstock.sources.files.opening import LISTED, OpenedFiles
from penstock.sources.files.queue import FileQueue, Message, QueueUnreachable
from penstock.sources.files.s3_events import CreatedFile, created_files

_logger = logging.getLogger(__name__)
# Messages of a round are deleted well within the 30 seconds for which SQS hides them.
_ROUND_SECONDS = 5.0
_ROUND_MESSAGES = 10_000
_FIRST_WAIT, _WAIT = 1, 3
_RETRY_SECONDS = 10.0
# A long log of announced files is rewritten and shortened less often.
_LONG_LOG = 10_000
_LONGEST_PAUSE = 600.0
_PRUNE_FACTOR = 20.0


class FileInbox:
    """Announces the files of one source; `roots` are those of each stream of files in the query.

    `problem` is why the queue cannot be read at present.
    """

    def __init__(
        self,
        source: OpenedFiles,
        checkpoint: str,
        roots: Sequence[FileRoots | None],
        flow: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        if source.announced is None or source.options.queue is None:
            raise ValueError("useNotifications is off")
        self._source = source
        self._roots = roots
        self._flow = flow
        self._now = now
        self._logs = SourceLogs(source.spark, checkpoint)
        self._log = AnnouncedFiles(source.spark, source.announced)
        self._queue = FileQueue(source.options.queue)
        self._prune_after = 0.0
        self.problem: str | None = None

    def prepare(self) -> None:
        """Announce all that is in the queue now; raises if the queue cannot be read."""
        if self._is_due() or self._source.options.allow_overwrites:
            self._list()
        else:
            self._prune()
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

    def run(self, stop: threading.Event) -> None:
        """Announce what comes, until `stop` is set."""
        while not stop.is_set():
            try:
                if self._is_due():
                    self._list()
                count = self._drain(_WAIT, stop)
                pause = min(count // _LONG_LOG, _LONGEST_PAUSE)
                self.problem = None
            except (ConnectorError, QueueUnreachable, Py4JError, RuntimeError) as error:
                if stop.is_set():
                    return
                pause, self.problem = _RETRY_SECONDS, first_line(error)
                _logger.warning("notifications of flow %s: %s", self._flow, self.problem)
            stop.wait(pause)

    def _is_due(self) -> bool:
        listed, every = self._source.state.note(LISTED), self._source.options.backfill_seconds
        return listed is None or (every is not None and self._now() - listed >= every)

    def _list(self) -> None:
        started, spark = self._now(), self._source.spark
        files = self._source.roots.list()
        self._prune({file_uri(spark, file.path): (file.size, file.modified) for file in files})
        self._source.state.save_note(LISTED, started)

    def _prune(self, new: dict[str, tuple[int, int]] | None = None) -> int:
        """Add files that Spark has not read, and forget those that it has."""
        started = time.monotonic()
        numbers = [int(name) for name in self._logs.names("sources") if name.isdecimal()]
        logs = [{path for path, _, _ in self._logs.entries(number)} for number in numbers]
        counts = Counter(path for log in logs for path in log)

        def is_read(path: str) -> bool:
            name = file_name_of_uri(path)
            readers = [r for r in self._roots if r is None or r.contains(name)]
            # Which log belongs to which stream is unknown.
            return counts[path] >= max(1, len(readers))

        count = self._log.update(new or {}, is_read)
        spent = time.monotonic() - started
        self._prune_after = time.monotonic() + max(count / 1000, _PRUNE_FACTOR * spent)
        return count

    def _drain(self, wait: int, stop: threading.Event) -> int:
        """Announce until the queue is empty or has only messages sent since; the log's length."""
        began, count = self._now() * 1000, 0
        while messages := self._receive(wait, stop):
            count = self._announce(messages)
            if count > _LONG_LOG and time.monotonic() > self._prune_after:
                count = self._prune()
            if stop.is_set() or all(message.sent_ms >= began for message in messages):
                break
        return count

    def _receive(self, wait: int, stop: threading.Event) -> list[Message]:
        messages = more = self._queue.receive(wait)
        until = time.monotonic() + _ROUND_SECONDS
        while more and len(messages) < _ROUND_MESSAGES and time.monotonic() < until:
            if stop.is_set():
                break
            more = self._queue.receive(0)
            messages = messages + more
        return messages

    def _announce(self, messages: Sequence[Message]) -> int:
        files: dict[str, tuple[int, int]] = {}
        done, others = [], 0
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
        count = self._log.update(files)
        kill_point("after_announcement", self._flow, None)
        self._queue.delete(done)
        return count

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
