"""What was decided about a batch, made durable before the first of its commits.

The rows of one batch can go to more than one table, and Delta commits one table at a time. If a
process dies between two commits, Spark hands the batch out again. What its rules look at - a joined
table, a function, the rules themselves - can have changed by then: rows that are judged again would
end in neither table, or in both. So the files of each table are recorded first, and a repeated
batch commits the recorded files.

A batch with one commit needs no record: the commit is the decision.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import StructType

from penstock._tables.commits import CommitResult, result_from_commit
from penstock._tables.files import StorageFiles
from penstock._tables.schema import schema_json

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class QuarantineFiles:
    """The part of a decision that is about the quarantine table.

    Attributes:
        schema: Columns of the rows.
        staged: `AddFile` contents that lie below the target until they are moved.
        written: `AddFile` contents that lie below the quarantine table.
    """

    schema: StructType
    staged: Sequence[Mapping[str, Any]] = ()
    written: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class BatchDecision:
    """Where the rows of one batch go.

    Attributes:
        kind: Of the writer: how it brings the rows into the target.
        result: Record of the batch, as its commit will have it.
        schema: Columns of the rows that go to the target.
        target_version: Version of the target that was read.
        files: `AddFile` contents with the rows that passed.
        has_rows: Whether the rows that passed are in `DecisionFile.rows`, for writers that merge.
        quarantine: `None` if nothing goes there.
        counts: Further counts of the writer, by name.
    """

    kind: str
    result: CommitResult
    schema: StructType
    target_version: int
    files: Sequence[Mapping[str, Any]] = ()
    has_rows: bool = False
    quarantine: QuarantineFiles | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text that is stored."""
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
                "staged": list(self.quarantine.staged),
                "written": list(self.quarantine.written),
            }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _decision_of(text: str) -> BatchDecision | None:
    """Read a decision back; `None` for a file that was not written to its end."""
    try:
        content = json.loads(text)
    except ValueError:
        # Only where files are not replaced atomically. The first commit comes after the whole file.
        return None
    result = result_from_commit(-1, {"userMetadata": content["record"]})
    if content["format"] != _FORMAT or result is None:
        return None
    quarantine = content.get("quarantine")
    return BatchDecision(
        kind=content["kind"],
        result=replace(result, version=None),
        schema=_schema(content["schema"]),
        target_version=content["target_version"],
        files=content["files"],
        has_rows=content["has_rows"],
        quarantine=None
        if quarantine is None
        else QuarantineFiles(
            schema=_schema(quarantine["schema"]),
            staged=quarantine["staged"],
            written=quarantine["written"],
        ),
        counts=content["counts"],
    )


def _schema(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


class DecisionFile:
    """Holds the newest decision of one flow; a small file in its checkpoint.

    Args:
        files: Of the storage.
        path: Of the file.
    """

    def __init__(self, files: StorageFiles, path: str) -> None:
        self._files = files
        self._path = path

    @property
    def rows(self) -> str:
        """Folder for the rows of a decision."""
        return f"{self._path}.rows"

    def load(self, app_id: str, batch_id: int) -> BatchDecision | None:
        """The decision about a batch; `None` if there is none."""
        text = self._files.read(self._path)
        decision = None if text is None else _decision_of(text)
        if decision is None:
            return None
        is_same = (decision.result.app_id, decision.result.batch_id) == (app_id, batch_id)
        return decision if is_same else None

    def save(self, decision: BatchDecision) -> None:
        """Replace the decision; it survives the death of the process from here on."""
        # As durable as what Spark and Delta write, which do not wait for the disk either.
        self._files.write(self._path, decision.to_json(), sync=False)

    def is_complete(self, decision: BatchDecision, table: str, quarantine: str) -> bool:
        """Whether every file of a decision is still there.

        Args:
            decision: From `load`.
            table: Path of the table that `files` and staged files lie below.
            quarantine: Path of the quarantine table.
        """
        places: list[tuple[str, ...]] = [
            (f"{table}/{unquote(file['path'])}",) for file in decision.files
        ]
        if decision.has_rows:
            places.append((f"{self.rows}/_SUCCESS",))
        if decision.quarantine is not None:
            for file in decision.quarantine.staged:
                name = unquote(file["path"])
                places.append((f"{table}/{name}", f"{quarantine}/{name}"))
            for file in decision.quarantine.written:
                places.append((f"{quarantine}/{unquote(file['path'])}",))
        return all(any(self._files.exists(place) for place in each) for each in places)

    def forget_rows(self) -> None:
        """Delete the rows of a decision that was carried out."""
        self._files.delete_tree(self.rows)
