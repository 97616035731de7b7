"""The plan of a batch with several commits, made durable before the first of them.

The rows of one batch can go to several tables, and a Delta commit covers one table. If the process
dies between two commits, Spark runs the batch again. By then its rules may give other results (a
joined table, a function or the rules themselves have changed): rows that are evaluated again could
end up in neither table, or in both. So the files for each table are recorded first, and a repeated
batch commits the recorded files. No record is needed for a batch with one commit, or for a batch
that replaces all rows of its tables.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult, result_from_commit
from penstock._tables.files import StorageFiles
from penstock._tables.write.schema import schema_json

_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class BatchDecision:
    """The files of one batch, by table, as `AddFile` contents."""

    kind: str  # `FlowWriter.kind` of the writer
    result: CommitResult
    schema: StructType
    target_version: int  # the version that was read
    files: Sequence[Mapping[str, Any]] = ()  # the files with the valid rows
    rows: str | None = None  # folder in `DecisionFile.rows` with valid rows (merging writers)
    quarantine_schema: StructType | None = None  # if the batch commits to the quarantine
    bad: Sequence[Mapping[str, Any]] = ()  # the files for the quarantine
    counts: Mapping[str, int] = field(default_factory=dict)  # further counts of the writer
    is_outdated: bool = False  # an earlier Penstock wrote its bad rows below the target

    def to_json(self) -> str:
        content: dict[str, Any] = {
            "format": _FORMAT,
            "kind": self.kind,
            "record": self.result.to_metadata(),
            "schema": schema_json(self.schema),
            "target_version": self.target_version,
            "files": list(self.files),
            "has_rows": self.rows is not None,
            "rows": self.rows,
            "counts": dict(self.counts),
        }
        if self.quarantine_schema is not None:
            schema = schema_json(self.quarantine_schema)
            content["quarantine"] = {"schema": schema, "files": list(self.bad)}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _parse(text: str) -> BatchDecision | None:
    try:
        content = json.loads(text)
    except ValueError:
        # Only on storage without atomic replacement; nothing is committed before the whole file.
        return None
    result = result_from_commit(-1, {"userMetadata": content["record"]})
    if content["format"] not in (1, _FORMAT) or result is None:
        return None
    quarantine = content.get("quarantine") or {}
    return BatchDecision(
        kind=content["kind"],
        result=replace(result, version=None),
        schema=_schema(content["schema"]),
        target_version=content["target_version"],
        files=content["files"],
        rows=content.get("rows", "") if content["has_rows"] else None,
        quarantine_schema=_schema(quarantine["schema"]) if quarantine else None,
        bad=quarantine["written" if content["format"] == 1 else "files"] if quarantine else (),
        counts=content["counts"],
        is_outdated=bool(quarantine.get("staged")),
    )


def _schema(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


class DecisionFile:
    """The newest decision of one flow, in a small file of its checkpoint."""

    def __init__(self, files: StorageFiles, path: str) -> None:
        self._files = files
        self._path = path

    @property
    def rows(self) -> str:
        return f"{self._path}.rows"

    def newest(self) -> BatchDecision | None:
        text = self._files.read(self._path)
        return None if text is None else _parse(text)

    def load(self, app_id: str, batch_id: int) -> BatchDecision | None:
        decision = self.newest()
        if decision is None:
            return None
        batch = (decision.result.app_id, decision.result.batch_id)
        return decision if batch == (app_id, batch_id) else None

    def save(self, decision: BatchDecision) -> None:
        # No fsync, like the files of Spark and Delta themselves.
        self._files.write(self._path, decision.to_json(), sync=False)

    def is_complete(self, decision: BatchDecision, table: str, quarantine: str) -> bool:
        """Whether every file of a decision still exists, below `table` or `quarantine`."""
        paths = [f"{table}/{unquote(file['path'])}" for file in decision.files]
        if decision.rows is not None:
            paths.append(f"{self.rows}/{decision.rows}/_SUCCESS")
        paths += [f"{quarantine}/{unquote(file['path'])}" for file in decision.bad]
        return all(map(self._files.exists, paths))

    def delete_rows(self) -> None:
        self._files.delete_tree(self.rows)
