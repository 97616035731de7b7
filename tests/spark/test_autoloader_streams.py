"""JSON files as a stream: starts, restarts, the order of files, and the state of a source."""

import gzip
import os
from pathlib import Path

import pytest
from file_stream import FileStream, rescued

from penstock.errors import DefinitionError

pytestmark = pytest.mark.spark

TYPED = {"cloudFiles.format": "json", "cloudFiles.inferColumnTypes": "true"}
FIRST = '{"id":1,"name":"a","price":12.5,"o":{"p":1,"q":"x"},"l":[1,2]}\n{"id":2}\n'


@pytest.fixture
def stream(spark, tmp_path: Path):
    def make(options=TYPED, schema=None, name="s") -> FileStream:
        return FileStream(spark, tmp_path / name, options, schema)

    return make


def test_columns_are_added_at_the_end_and_nested_when_files_have_new_fields(stream):
    files = stream()
    files.put("a.json", FIRST)
    files.run()
    before = files.columns
    files.put(
        "b.json",
        '{"id":3,"zip":"53111","ID":4}\n{"id":"x","o":{"r":1.5,"p":2},"al":[{"k":1}]}\n',
    )
    rows = files.run()
    assert set(files.restarts) == {"SCHEMA_EVOLVED"}
    assert files.columns[: len(before) - 1] == before[:-1]
    assert set(files.columns) - set(before) == {"zip", "al"}
    assert files.types["o"] == "struct<p:bigint,q:string,r:double>"
    assert [(row["id"], row["zip"], row["al"], rescued(row)) for row in rows] == [
        (3, "53111", None, {"ID": 4}),
        (None, None, [(1,)], {"id": "x"}),
    ]
    assert rows[1]["o"]["r"] == 1.5
    assert len(files.state.load()) >= 2
    files.put("c.json", '{"al":[{"k":1},{"k":2,"new":"y"}]}\n')
    (row,) = files.run()
    assert files.restarts == ["SCHEMA_EVOLVED"]
    assert row["al"] == [(1, None), (2, "y")]
    files.put("d.json", '{"id":20}\n')
    assert [row["id"] for row in files.run()] == [20]
    assert files.restarts == []


def test_a_truncated_gzip_file_is_quarantined_and_others_are_read(stream):
    files = stream({**TYPED, "cloudFiles.maxFilesPerTrigger": "1"})
    files.put("a.json", FIRST)
    files.run()
    whole = gzip.compress(b'{"id":7}\n' * 50_000)
    for number, name in enumerate(["b", "c+ü %41", "d"]):
        path = files.put(f"{name}.json.gz", whole[: len(whole) // 2])
        os.utime(path, (2_000_000_000 + number, 2_000_000_000 + number))
    last = files.put("e.json", '{"id":3}\n')
    os.utime(last, (2_000_000_009, 2_000_000_009))
    assert [row["id"] for row in files.run()] == [3]
    assert files.restarts == ["FILES_QUARANTINED"]
    assert set(files.quarantined) == {"b.json.gz", "c+ü %41.json.gz", "d.json.gz"}
    assert all("Unexpected end of input" in reason for reason in files.quarantined.values())
    assert files.run() == []
    strict = stream({**TYPED, "ignoreCorruptFiles": "false"}, name="strict")
    strict.put("a.json", FIRST)
    strict.put("b.json.gz", whole[: len(whole) // 2])
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        strict.run()


def test_files_before_the_first_start_are_skipped_when_existing_files_are_excluded(stream):
    files = stream(TYPED)
    files.put("old.json", '{"id":1}\n')
    files._open()  # a start without a batch has no effect
    files.options = {**TYPED, "cloudFiles.includeExistingFiles": "false"}
    files._open()  # this value is kept; later values have no effect
    files.options = TYPED
    assert files.run() == []
    late = files.put("copied with its old time.json", '{"id":2}\n')
    os.utime(late, (1_000_000_000, 1_000_000_000))
    assert [row["id"] for row in files.run()] == [2]
    files.put("new.json", '{"id":3}\n')
    assert [row["id"] for row in files.run()] == [3]


def test_file_metadata_columns_can_be_selected(stream):
    files = stream()
    files.put("sub folder/a.json", FIRST)
    row, _ = files.run(
        "id",
        "_metadata.file_name",
        "_metadata.file_size",
        "_metadata.file_path",
        "_metadata.file_modification_time",
        "input_file_name() AS input",
    )
    assert row["file_name"] == "a.json"
    assert row["file_size"] == len(FIRST)
    assert row["file_path"].endswith("/sub%20folder/a.json")
    assert row["input"].endswith("/sub%20folder/a.json")
    assert row["file_modification_time"] is not None
    assert "_metadata" not in files.columns


def test_folder_may_be_created_later_when_the_schema_is_set(stream):
    files = stream({"cloudFiles.format": "json"}, "id INT")
    files.folder.rmdir()
    assert files.run() == []
    assert not files.folder.exists()
    files.put("a.json", '{"id":1}\n')
    assert [row["id"] for row in files.run()] == [1]
    without = stream(name="without")
    with pytest.raises(DefinitionError, match="SCHEMA_NOT_INFERRED"):
        without.run()
    without.put("empty.json", "")
    with pytest.raises(DefinitionError, match="there are no files with rows"):
        without.run()


def test_batch_and_streaming_reads_return_the_same_rows(stream):
    files = stream()
    files.put("a.json", FIRST)
    files.put("b.json", '{"id":"x","late":1}\n{"id":\n')
    streamed = stream(name="streamed")
    streamed.folder.rmdir()
    streamed.folder = files.folder
    assert sorted(map(str, files.batch())) == sorted(map(str, streamed.run()))
