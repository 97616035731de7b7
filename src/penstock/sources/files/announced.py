"""Files that were announced to a source, as a log of files that Spark's file source reads.

Spark does not list a folder with `_spark_metadata`: its files are those in that log, wherever they
are. Each entry of the log here has all files that are still to be read. An entry is created only if
no entry has its number, so that concurrent writers add files to each other's entries. Spark stores
what it has read in its own log, by path, as if the files had been listed.
"""

import json
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from penstock._tables.commits import lines_of
from penstock.sources.files.log_files import LogFiles

FOLDER = "announced"
_SUFFIX = ".compact"
_VERSION = "v1"


class AnnouncedFiles:
    """The log below a folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._log = LogFiles(spark, f"{folder}/_spark_metadata")

    def create(self) -> None:
        """Add an empty first entry, without which Spark would list the folder."""
        if not self._numbers():
            self._log.create_folder()
            self._log.write(f"0{_SUFFIX}", _VERSION, replace=False)

    def update(
        self,
        new: Mapping[str, tuple[int, int]],
        is_read: Callable[[str], bool] = lambda path: False,
    ) -> int:
        """Add files, by their URIs, with size and time; returns the number of files in the log.

        Files for which `is_read` is true are in Spark's own logs and are removed.
        """
        while True:
            numbers = self._numbers()
            last = numbers[-1] if numbers else -1
            text = self._log.read(f"{last}{_SUFFIX}") if numbers else ""
            if text is None:
                continue  # removed by another writer, which wrote a newer one
            entries = [json.loads(line) for line in lines_of(text)[1:]]
            known = {e["path"]: (e["size"], e["modificationTime"]) for e in entries}
            # An event may arrive after that of a later version.
            newer = {p: e for p, e in new.items() if p not in known or e[1] > known[p][1]}
            wanted = {p: e for p, e in (known | newer).items() if not is_read(p)}
            if wanted == known and numbers:
                return len(known)
            content = "\n".join([_VERSION, *(_line(p, *e) for p, e in wanted.items())])
            # Another writer may have created and removed an entry with this number before: only
            # reading the newest entry again shows that it has the files.
            if self._log.write(f"{last + 1}{_SUFFIX}", content, replace=False):
                # Spark derives the compact interval from the last two entries.
                for number in numbers[:-2]:
                    self._log.delete(f"{number}{_SUFFIX}")

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(_SUFFIX) for name in self._log.names() if name.endswith(_SUFFIX))
        return sorted(int(name) for name in names if name.isdecimal())


def _line(path: str, size: int, modified: int) -> str:
    body = {
        "path": path,
        "size": size,
        "isDir": False,
        "modificationTime": modified,
        "blockReplication": 1,
        "blockSize": max(size, 1),
        "action": "add",
    }
    return json.dumps(body, separators=(",", ":"))
