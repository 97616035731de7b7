import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._local.demo.delta_log import read_rows, read_snapshot


def add(path: str, **partition: str | None) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": partition}}


def metadata(**configuration: str) -> dict[str, Any]:
    fields = json.dumps({"fields": [{"name": "n"}, {"name": "day"}]})
    return {"metaData": {"id": "t", "schemaString": fields, "configuration": configuration}}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def data(table: Path, name: str, numbers: list[int]) -> None:
    file = table / name
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": numbers}), file)


def test_the_newest_version_is_read_when_files_were_added_and_removed(tmp_path: Path) -> None:
    data(tmp_path, "a.parquet", [1])
    data(tmp_path, "day=x y/b.parquet", [2, 3])
    commit(tmp_path, 0, metadata(), add("a.parquet", day=None))
    commit(tmp_path, 1, {"commitInfo": {}}, add("day=x%20y/b.parquet", day="x y"))
    commit(tmp_path, 2, {"remove": {"path": "a.parquet"}})
    snapshot = read_snapshot(tmp_path)
    assert snapshot is not None
    assert (snapshot.version, snapshot.table_id, snapshot.columns) == (2, "t", ("n", "day"))
    assert [file.version for file in snapshot.files] == [1]
    rows = read_rows(snapshot.files, ["day", "n", "missing"]).to_pylist()
    assert rows == [
        {"day": "x y", "n": 2, "missing": None},
        {"day": "x y", "n": 3, "missing": None},
    ]


def test_a_checkpoint_is_the_base_when_the_first_commits_are_gone(tmp_path: Path) -> None:
    data(tmp_path, "a.parquet", [1])
    data(tmp_path, "b.parquet", [2])
    partition = pa.map_(pa.string(), pa.string())
    checkpoint = pa.Table.from_pylist(
        [
            {"metaData": metadata()["metaData"] | {"configuration": []}, "add": None},
            {"metaData": None, "add": {"path": "a.parquet", "partitionValues": [("day", "m")]}},
        ],
        schema=pa.schema(
            [
                ("add", pa.struct([("path", pa.string()), ("partitionValues", partition)])),
                (
                    "metaData",
                    pa.struct(
                        [
                            ("id", pa.string()),
                            ("schemaString", pa.string()),
                            ("configuration", partition),
                        ]
                    ),
                ),
            ]
        ),
    )
    commit(tmp_path, 11, add("b.parquet", day="n"))
    log = tmp_path / "_delta_log"
    pq.write_table(checkpoint, log / f"{10:020d}.checkpoint.parquet")
    # A checkpoint in two parts of which one is missing does not count.
    pq.write_table(checkpoint, log / f"{12:020d}.checkpoint.{1:010d}.{2:010d}.parquet")
    snapshot = read_snapshot(tmp_path)
    assert snapshot is not None and snapshot.version == 11
    rows = read_rows(snapshot.files, ["n", "day"]).to_pylist()
    assert rows == [{"n": 1, "day": "m"}, {"n": 2, "day": "n"}]


def test_there_is_no_snapshot_when_there_is_no_table(tmp_path: Path) -> None:
    assert read_snapshot(tmp_path / "nowhere") is None
    assert read_rows((), ["n"]).num_rows == 0


def test_a_gap_in_the_log_is_refused_when_later_commits_exist(tmp_path: Path) -> None:
    commit(tmp_path, 0, metadata())
    commit(tmp_path, 2, add("b.parquet"))
    with pytest.raises(ValueError, match="gap after version 0"):
        read_snapshot(tmp_path)


def test_a_table_is_refused_when_it_uses_what_cannot_be_read(tmp_path: Path) -> None:
    commit(tmp_path / "m", 0, metadata(**{"delta.columnMapping.mode": "name"}))
    with pytest.raises(ValueError, match="column mapping"):
        read_snapshot(tmp_path / "m")
    deleted = {"add": {"path": "a", "partitionValues": {}, "deletionVector": {"x": 1}}}
    commit(tmp_path / "d", 0, metadata(), deleted)
    with pytest.raises(ValueError, match="deletion vectors"):
        read_snapshot(tmp_path / "d")


def test_times_come_as_utc_when_they_are_stored_as_int96(tmp_path: Path) -> None:
    moment = pa.array([1_790_000_000_000_000], pa.timestamp("us"))
    pq.write_table(
        pa.table({"n": moment}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True
    )
    commit(tmp_path, 0, metadata(), add("a.parquet"))
    snapshot = read_snapshot(tmp_path)
    assert snapshot is not None
    assert read_rows(snapshot.files, ["n"]).column("n").type == pa.timestamp("us", "UTC")
