"""Finds new objects of S3 by listing the keys that come after those of earlier listings."""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock._tables.files import hadoop_path
from penstock._tables.kill_points import kill_point
from penstock.sources.files.inbox import PAUSE_FACTOR, FileInbox
from penstock.sources.files.listing import FileRoots, FoundFile, file_uri
from penstock.sources.files.opening import LISTED_KEYS

_DAY = 86_400.0
_LATE_SECONDS = 600.0
# Requests cost money.
_SHORTEST_PAUSE = 1.0
_OBJECT = re.compile(
    r"S3Object\(Key=(.*?), LastModified=(\d{4}-[\dT:.-]+Z), .*?\bSize=(\d+)", re.DOTALL
)


class KeyInbox(FileInbox):
    """Announces the objects whose keys come after those of earlier listings.

    A listing starts after the last key among the objects that were at least 10 minutes old, so that
    objects may appear in another order within that time. Other objects are found by a complete
    listing, at each `backfillInterval`, by default once a day.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # For each folder, the path after which the next listing starts.
        self._after: dict[str, str] = {}
        self._recent: frozenset[str] = frozenset()
        self._listed_at: float | None = None

    def prepare(self) -> None:
        if self._is_due() or self._source.options.allow_overwrites:
            self._list()
            return
        note = self._source.state.note(LISTED_KEYS)
        self._after = dict(note["after"])
        try:
            files, after = self._search()
        except Py4JError as error:
            raise self._not_readable(error) from None
        self._count = self._log.update(files, self._read_before())
        kill_point("after_announcement", self._flow, None)
        self._confirm(files, after)
        self._source.state.save_note(LISTED_KEYS, {**note, "after": after})

    def _is_due(self) -> bool:
        if self._listed_at is None:
            note = self._source.state.note(LISTED_KEYS)
            self._listed_at = float("-inf") if note is None else note["at"]
        every = self._source.options.backfill_seconds or _DAY
        return self._now() - self._listed_at >= every

    def _list(self) -> None:
        started = self._now()
        files = self._list_all()
        self._after = dict.fromkeys(self._source.roots.first_folders(), "")
        after = self._next(files, started)
        self._source.state.save_note(LISTED_KEYS, {"at": started, "after": after})
        self._listed_at = started
        self._confirm((file_uri(self._source.spark, file.path) for file in files), after)

    def _look(self, stop: threading.Event) -> float:
        if not self._after:
            self.prepare()
        started = time.monotonic()
        files, after = self._search()
        new = {uri: entry for uri, entry in files.items() if uri not in self._recent}
        pause = max(_SHORTEST_PAUSE, self._announce(new))
        self._confirm(files, after)
        return max(pause, PAUSE_FACTOR * (time.monotonic() - started))

    def _search(self) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """The files after those of earlier listings, and where the next listing starts."""
        started, source = self._now(), self._source
        files = [
            file
            for folder, last in self._after.items()
            for file in files_after(source.spark, source.roots, folder, last)
            if file.path not in self._left_out
        ]
        entries = {file_uri(source.spark, f.path): (f.size, f.modified) for f in files}
        return entries, self._next(files, started)

    def _next(self, files: Sequence[FoundFile], started: float) -> dict[str, str]:
        old = (started - _LATE_SECONDS) * 1000
        after = dict(self._after)
        for file in files:
            for folder in after:
                if file.path.startswith(f"{folder}/") and file.modified <= old:
                    after[folder] = max(after[folder], file.path)
        return after

    def _confirm(self, files: Iterable[str], after: Mapping[str, str]) -> None:
        self._after, self._recent = dict(after), frozenset(files)


def files_after(
    spark: SparkSession, roots: FileRoots, folder: str, last: str
) -> Iterator[FoundFile]:
    """The files of roots on S3, in a folder and those below, whose paths come after `last`."""
    s3: Any = spark._jvm.software.amazon.awssdk.services.s3.model  # type: ignore[union-attr]
    system, path = hadoop_path(spark, f"{folder}/")
    prefix = f"{str(path.toUri().getPath()).strip('/')}/".lstrip("/")
    start = folder.removesuffix(prefix.rstrip("/")).rstrip("/")
    request = s3.ListObjectsV2Request.builder().bucket(system.getBucket()).prefix(prefix)
    if last:
        request = request.startAfter(last.removeprefix(f"{start}/"))
    client = system.getS3AInternals().getAmazonS3Client("listing of new files")
    pages = client.listObjectsV2Paginator(request.build()).iterator()
    while pages.hasNext():
        # One call for a page: a call for each object and value would take a thousand times longer.
        for key, changed, size in _OBJECT.findall(str(pages.next().contents().toString())):
            if not key.endswith("/") and roots.includes(f"{start}/{key}"):
                modified = datetime.fromisoformat(changed).timestamp() * 1000
                yield FoundFile(f"{start}/{key}", int(size), int(modified))
