"""Files that a queue announces: the log of Spark's source, and processes that end at each step.

The queue is a list here, because a server cannot end the process between two requests; tests/s3 use
the real client and a server.
"""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from file_stream import FileStream

from penstock._formats.options import QueueOptions
from penstock._tables.kill_points import step_callback
from penstock.errors import ConnectorError, FlowError
from penstock.sources.base import Read
from penstock.sources.files.announced import AnnouncedFiles
from penstock.sources.files.batch_log import SourceLogs
from penstock.sources.files.discovery import Discovery
from penstock.sources.files.listing import file_uri
from penstock.sources.files.opening import OpenedFiles, open_source
from penstock.sources.files.queue import FileQueue, Message, QueueUnreachable
from penstock.sources.files.queue_inbox import QueueInbox

pytestmark = pytest.mark.spark

TEXT = {"cloudFiles.format": "text", "cloudFiles.maxFilesPerTrigger": "2"}


class AnnouncedStream(FileStream):
    """Reads announced files if `announces`, and lists its folder if not."""

    announces = True

    def _open(self, *, streaming: bool = True) -> OpenedFiles:
        discovery = Discovery.QUEUE if self.announces else Discovery.SPARK
        return replace(super()._open(streaming=streaming), discovery=discovery)

    def _announce(self, source: OpenedFiles) -> None:
        """The test announces the files."""

    @property
    def announced(self) -> str:
        return f"{self._memory}/announced"

    def entry(self, path: Path) -> dict[str, tuple[int, int]]:
        # Spark lists local files as `file:///`.
        status = path.stat()
        uri = file_uri(self.spark, f"file://{path}").replace("file:/", "file:///", 1)
        return {uri.replace("file://///", "file:///"): (status.st_size, int(status.st_mtime * 1e3))}


def test_announced_files_are_read_once_when_switching_to_listing_and_back(spark, tmp_path: Path):
    files = AnnouncedStream(spark, tmp_path, TEXT, "value STRING")
    log = AnnouncedFiles(spark, files.announced)
    log.create()
    log.create()
    files.put("0.txt", "never announced")
    assert files.run() == []
    first = [files.put(name, name) for name in ("a b+ü%41#.txt", "k=1/b", "c.txt")]
    gone = files.put("gone.txt", "gone")
    known = {}
    for path in (*first, gone):
        known |= files.entry(path)
    gone.unlink()
    assert log.update(known) == 4
    assert log.update(known) == 4
    assert sorted(row["value"] for row in files.run()) == sorted(
        str(path.relative_to(files.folder)) for path in first
    )
    assert files.run() == []
    # Spark's log also contains the missing file.
    paths = {path for path, _, _ in SourceLogs(spark, files._checkpoint).entries(0)}
    assert paths == set(known)
    assert log.update({}, paths.__contains__) == 0
    # A late event of an earlier version of a file.
    log.update({"s3a://b/x": (1, 20)})
    log.update({"s3a://b/x": (2, 10)})
    newest = max(
        (tmp_path / "state" / "announced" / "_spark_metadata").glob("*.compact"), key=_number
    )
    assert '"size":1,' in newest.read_text()
    log.update({}, "s3a://b/x".__eq__)

    files.announces = False
    assert [row["value"] for row in files.run()] == ["never announced"]
    files.announces = True
    late = files.put("late.txt", "late")
    assert log.update({**known, **files.entry(late)}) == 5
    assert [row["value"] for row in files.run()] == ["late"]


def _number(path: Path) -> int:
    return int(path.stem)


def test_concurrent_writers_of_the_log_lose_no_entry(spark, tmp_path: Path):
    folder = str(tmp_path / "announced")
    AnnouncedFiles(spark, folder).create()

    def add(writer: str) -> None:
        log = AnnouncedFiles(spark, folder)
        for number in range(15):
            log.update({f"s3a://b/{writer}/{number}": (1, number)})

    writers = [threading.Thread(target=add, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert AnnouncedFiles(spark, folder).update({}) == 30
    compacted = list((tmp_path / "announced" / "_spark_metadata").glob("*.compact"))
    assert len(compacted) <= 3


class ListQueue(FileQueue):
    """Messages in a list; each is received until it is deleted."""

    def __init__(self, bodies: list[str]) -> None:
        self.messages = [Message(body=b, receipt=str(n), sent_ms=0) for n, b in enumerate(bodies)]
        self.fails = ""
        self.hides = True
        self.received: set[str] = set()

    def receive(self, wait_seconds: int) -> list[Message]:
        if self.fails == "receive":
            raise QueueUnreachable("closed")
        batch = [message for message in self.messages if message.receipt not in self.received][:3]
        if self.hides:
            self.received |= {message.receipt for message in batch}  # until the next start
        return batch

    def delete(self, messages) -> None:
        if self.fails == "delete":
            raise QueueUnreachable("closed")
        self.messages = [message for message in self.messages if message not in messages]


def event(key: str, name: str = "ObjectCreated:Put") -> str:
    body = {"bucket": {"name": "b"}, "object": {"key": key, "size": 1}}
    at = "2026-11-26T10:00:00Z"
    return json.dumps({"Records": [{"eventName": name, "eventTime": at, "s3": body}]})


def test_messages_are_deleted_only_after_their_files_are_in_the_log(
    spark, tmp_path: Path, monkeypatch, caplog
):
    stream = FileStream(spark, tmp_path, TEXT, "value STRING")
    opened = stream._open()
    roots = replace_paths(opened, "s3a://b/in")
    queue_options = QueueOptions(url="http://localhost/1/q", receivers=1)
    options = replace(opened.options, queue=queue_options, backfill_seconds=60.0)
    source = replace(opened, options=options, discovery=Discovery.QUEUE, roots=roots)
    log = AnnouncedFiles(spark, str(tmp_path / "state" / "announced"))
    log.create()
    listings: list[float] = []
    monkeypatch.setattr(roots, "list", lambda: listings.append(clock[0]) or [])
    bodies = [event(f"in/{number}") for number in range(5)]
    bodies += [event("in/0"), event("out/x"), event("in/d/"), event("in//d"), event("in/_x"), "{"]
    queue, clock = ListQueue(bodies), [1000.0]

    def inbox() -> QueueInbox:
        queue.received.clear()
        monkeypatch.setattr("penstock.sources.files.queue_inbox.FileQueue", lambda _: queue)
        return QueueInbox(source, stream._checkpoint, [roots], "f", lambda: clock[0])

    queue.fails = "receive"
    with pytest.raises(FlowError) as unreachable:
        inbox().prepare()
    assert unreachable.value.condition == "FILE_QUEUE_UNREACHABLE"
    assert unreachable.value.retryable
    queue.fails = "delete"
    with pytest.raises(FlowError):
        inbox().prepare()
    assert len(queue.messages) == 11
    queue.fails = ""

    def end(step: str, flow: str, batch: int | None) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with step_callback(end), pytest.raises(KeyboardInterrupt):
            inbox().prepare()
        assert len(queue.messages) == 11
        assert log.update({}) == 5
    inbox().prepare()
    inbox().prepare()
    # Only the message that is no event of S3 remains.
    assert [message.body for message in queue.messages] == ["{"]
    assert "no event of S3" in caplog.text
    assert log.update({}) == 5
    assert listings == [1000.0]
    # Not even if the queue returns the message again immediately.
    queue.hides = False
    with monkeypatch.context() as patch:
        patch.setattr("penstock.sources.files.queue_inbox._ROUND_MESSAGES", 3)
        inbox().prepare()
    queue.hides = True
    clock[0] = 1061.0
    inbox().prepare()
    assert listings == [1000.0, 1061.0]

    queue.fails = "receive"
    assert problem_of(inbox()) == "closed"
    clock[0] = 1122.0
    monkeypatch.setattr(roots, "list", lambda: spark.read.text(str(tmp_path / "gone")))
    assert "PATH_NOT_FOUND" in problem_of(inbox())


def problem_of(running: QueueInbox) -> str:
    stop, waiting = threading.Event(), threading.Event()
    thread = threading.Thread(target=running.run, args=(stop,))
    thread.start()
    for _ in range(200):
        if running.problem is not None:
            break
        waiting.wait(0.05)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    return running.problem or ""


def test_missing_queue_url_fails_before_the_first_start(spark):
    with pytest.raises(ConnectorError, match="queueUrl is not set"):
        open_source(
            Read(
                spark=spark,
                format="cloudfiles",
                options={**TEXT, "cloudFiles.useNotifications": "true"},
                load=lambda options: spark.emptyDataFrame,
                schema="value STRING",
                paths=("s3a://b/in",),
                is_analysis=True,
            )
        )


def replace_paths(opened: OpenedFiles, path: str):
    from penstock.sources.files.listing import FileRoots

    return FileRoots(opened.spark, [path], opened.options)
