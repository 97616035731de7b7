"""The plan of a batch with several commits, made durable before the first of them.

The rows of one batch can go to several tables, and a Delta commit covers one table. If the process
dies between two commits, Spark runs the batch again. By then its rules may give other results (a
joined table, a function or the rules themselves have changed): rows that are evaluated again would
end in neither table, or in both. So the files for each table are recorded first, and a repeated
batch commits the recorded files. A batch with one commit needs no record.
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
class QuarantineFiles:
    """Files for the quarantine table, as `AddFile` contents."""

    schema: StructType
    files: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class BatchDecision:
    """The files of one batch, by table."""

    kind: str  # of the writer; see `FlowWriter.kind`
    result: CommitResult
    schema: StructType
    target_version: int  # that was read
    files: Sequence[Mapping[str, Any]] = ()  # `AddFile` contents with the valid rows
    has_rows: bool = False  # valid rows are in `DecisionFile.rows` (merging writers)
    quarantine: QuarantineFiles | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # further counts of the writer
    is_outdated: bool = False  # its bad rows are below the target, as of an earlier version

    def to_json(self) -> str:
        content: dict[str, Any] = {
            "format": _FORMAT,
            "kind": self.kind,
            "record": self.result.to_metadata(),
            "schema": schema_json(self.schema),
            "target_version": self.target_version,
            "files": list(self.files),
            "has_rows": self.has_rows,
            "counts": dict(self.counts),
        }
        if self.quarantine is not None:
            content["quarantine"] = {
                "schema": schema_json(self.quarantine.schema),
                "files": list(self.quarantine.files),
            }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _parse(text: str) -> BatchDecision | None:
    try:
        content = json.loads(text)
    except ValueError:
        # Only on storage without atomic replacement. The first commit comes after the whole file.
        return None
    result = result_from_commit(-1, {"userMetadata": content["record"]})
    if content["format"] not in (1, _FORMAT) or result is None:
        return None
    quarantine = content.get("quarantine")
    is_outdated = bool(quarantine and quarantine.get("staged"))
    return BatchDecision(
        kind=content["kind"],
        result=replace(result, version=None),
        schema=_schema(content["schema"]),
        target_version=content["target_version"],
        files=content["files"],
        has_rows=content["has_rows"],
        quarantine=quarantine
        and QuarantineFiles(
            schema=_schema(quarantine["schema"]),
            files=quarantine["written" if content["format"] == 1 else "files"],
        ),
        counts=content["counts"],
        is_outdated=is_outdated,
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
        is_same = (decision.result.app_id, decision.result.batch_id) == (app_id, batch_id)
        return decision if is_same else None

    def save(self, decision: BatchDecision) -> None:
        # No fsync, like the files of Spark and Delta themselves.
        self._files.write(self._path, decision.to_json(), sync=False)

    def is_complete(self, decision: BatchDecision, table: str, quarantine: str) -> bool:
        """Whether every file of a decision still exists, below `table` or `quarantine`."""
        paths = [f"{table}/{unquote(file['path'])}" for file in decision.files]
        if decision.has_rows:
            paths.append(f"{self.rows}/_SUCCESS")
        if decision.quarantine is not None:
            paths += [f"{quarantine}/{unquote(f['path'])}" for f in decision.quarantine.files]
        return all(map(self._files.exists, paths))

    def delete_rows(self) -> None:
        self._files.delete_tree(self.rows)
