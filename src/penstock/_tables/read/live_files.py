"""The files of a table, kept between the batches of a writer."""

from typing import Any

from penstock._tables.delta_log import DeltaJvm

# The contents of more files take too much memory of this process.
_MOST_LISTED = 10_000


class LiveFiles:
    """Files of versions of a table, given Delta's snapshots of them.

    `LiveFiles` in the JVM keeps them. In a borrowed session without Penstock's Java classes, Delta
    computes the files of each version.
    """

    def __init__(self, delta: DeltaJvm, path: str) -> None:
        self._delta = delta
        self._path = path
        self._jvm: Any = None

    @property
    def jvm(self) -> Any:
        if self._jvm is None:
            self._jvm = self._delta.own.LiveFiles(self._delta.log(self._path))
        return self._jvm

    def all(self, snapshot: Any) -> Any:
        """All files, as a Scala `Seq` of `AddFile`."""
        if self._delta.has_own_classes:
            return self.jvm.all(snapshot)
        return self._delta.seq(list(snapshot.allFiles().collect()))

    def listed(self, snapshot: Any) -> list[dict[str, Any]] | None:
        """Contents of all files; `None` if there are too many, or only Delta can list them."""
        if not self._delta.has_own_classes:
            return None
        files = self.jvm.withoutQuery(snapshot)
        if not files.isPresent() or files.get().size() > _MOST_LISTED:
            return None
        return self._delta.file_contents(files.get())

    def removals(self, snapshot: Any) -> Any:
        """Removals of all files, as a Scala `Seq` of `RemoveFile`."""
        if self._delta.has_own_classes:
            return self.jvm.removals(snapshot)
        return self._delta.seq([file.remove() for file in snapshot.allFiles().collect()])

    def size(self, snapshot: Any) -> int:
        """The size of all files in bytes."""
        if self._delta.has_own_classes:
            return int(self.jvm.bytes(snapshot))
        return sum(int(file.size()) for file in snapshot.allFiles().collect())
