"""`cleanSource`: which files are removed or moved, when, and which are kept."""

import os
import threading
from pathlib import Path

import pytest
from file_stream import FileStream

from penstock.errors import ConnectorError
from penstock.sources.files.cleaning import Cleaner, refuse_shared
from penstock.sources.files.opening import OpenedFiles

pytestmark = pytest.mark.spark

DAY = 86_400.0
TEXT = {"cloudFiles.format": "text", "cloudFiles.cleanSource": "DELETE"}


class CleanedStream(FileStream):
    """A stream whose source is cleaned up at a time that the test chooses, in days."""

    def clean(self, day: float, stop: threading.Event | None = None) -> set[str]:
        cleaner = Cleaner(self._open(), self._checkpoint, lambda: day * DAY)
        cleaner.clean(stop or threading.Event())
        return self.remaining_files

    @property
    def remaining_files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self._files()}


def test_only_committed_versions_are_removed_after_the_retention(spark, tmp_path: Path):
    files = CleanedStream(spark, tmp_path, {**TEXT, "cloudFiles.pathGlobFilter": "*.txt"})
    assert files.clean(0) == set()
    names = {"a b+ü%41#.txt", "k=1/b.txt", "changed.txt"}
    for name in names:
        files.put(name, "x")
    others = {"_hidden.txt", "other.csv"}
    for name in others:
        files.put(name, "x")
    assert len(files.run()) == 3
    files.put("failed.txt", "x")
    with pytest.raises(Exception, match="assert"):
        files.run("assert_true(value = 'y', 'assert')")
    all_files = names | others | {"failed.txt"}
    # The retention starts when the commit is detected.
    assert files.clean(10) == all_files
    assert files.clean(39) == all_files
    os.utime(files.put("changed.txt", "y"), (4_000_000_000, 4_000_000_000))
    assert files.clean(40.1) == others | {"changed.txt", "failed.txt"}
    assert [row["value"] for row in files.run()] == ["x"]
    assert files.clean(50) == files.clean(79) == others | {"changed.txt", "failed.txt"}
    assert files.clean(80.1) == others | {"changed.txt"}
    # A new file with the same name was not read.
    files.put("failed.txt", "new")
    assert files.run() == []
    assert files.clean(200) == others | {"changed.txt", "failed.txt"}


def test_skipped_files_stay_and_an_interrupted_cleanup_is_completed(spark, tmp_path: Path):
    options = {
        "cloudFiles.format": "json",
        "cloudFiles.includeExistingFiles": "false",
        "cloudFiles.modifiedBefore": "2099-01-01",
        "cloudFiles.cleanSource": "MOVE",
        "cloudFiles.cleanSource.moveDestination": str(tmp_path / "done"),
        "cloudFiles.cleanSource.retentionDuration": "0 days",
    }
    files = CleanedStream(spark, tmp_path, options, "id INT")
    files.put("existing.json", '{"id": 1}')
    files.run()
    files.put("damaged.json.gz", b"no gzip")
    os.utime(files.put("later.json", '{"id": 0}'), (4_200_000_000, 4_200_000_000))
    for number in range(3):
        files.put(f"{number}.json", '{"id": 2}')
    archived = tmp_path / "done" / files.folder.relative_to("/")
    archived.mkdir(parents=True)
    (archived / "1.json").write_text("an earlier version")
    assert len(files.run()) == 3
    assert list(files.quarantined) == ["damaged.json.gz"]

    class Interrupted(threading.Event):
        """Set as soon as a file is removed."""

        def is_set(self) -> bool:
            return len(files.remaining_files) < 6

    remaining = {"existing.json", "damaged.json.gz", "later.json"}
    assert files.clean(1, Interrupted()) > remaining
    assert files.clean(2) == remaining
    moved = sorted(path.name for path in archived.iterdir() if not path.name.startswith("."))
    assert [name.split(".json")[0] for name in moved] == ["0", "1", "1", "2"]
    assert (archived / "1.json").read_text() == "an earlier version"


def test_a_destination_or_a_second_stream_in_the_same_folder_is_refused(spark, tmp_path: Path):
    def opened(destination: str) -> OpenedFiles:
        moving = {"cleanSource": "MOVE", "cleanSource.moveDestination": destination}
        return FileStream(spark, tmp_path, {**TEXT, **moving})._open()

    source = opened(f"{tmp_path}/inside-no")
    for wrong in (f"{tmp_path}/in", f"file://{tmp_path}/in/done/", "hdfs://elsewhere:9000/done"):
        with pytest.raises(ConnectorError, match=r"inside the source|another file system"):
            opened(wrong)
    refuse_shared(source, [f"{tmp_path}/in2", "s3a://bucket/in"])
    for path in (f"{tmp_path}/in", f"file:{tmp_path}/in/below", str(tmp_path)):
        with pytest.raises(ConnectorError, match="another stream"):
            refuse_shared(source, [path])
