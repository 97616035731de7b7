"""A stream of files that is started by tests, with restarts as in the runtime.

`run` starts the stream. `parse` does to the new files what a micro-batch does to them, with the
same schema, options and state, but reads them as a batch: for tests of parsing, which need no
checkpoint.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import Row

from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._spark.failures import full_text
from penstock._tables.files import StorageFiles
from penstock.errors import FlowError
from penstock.sources.base import Read
from penstock.sources.files.batch_log import batch_files
from penstock.sources.files.opening import OpenedFiles, open_source, read_source
from penstock.sources.files.recovery import check_files, recover
from penstock.sources.files.source import INBOXES
from penstock.sources.memory import FolderMemory

FLOW = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("pipeline.py", 1))


class FileStream:
    """Reads a folder with options; `run` processes new files and returns their rows."""

    def __init__(
        self, spark: Any, root: Path, options: Mapping[str, str], schema: str | None = None
    ) -> None:
        self.spark, self.options, self.schema = spark, options, schema
        self.folder = root / "in"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = str(root / "checkpoint")
        self._parsed = root / "parsed"
        self._memory = root / "state"
        self.state = FolderMemory(StorageFiles(spark), str(self._memory))
        self.restarts: list[str] = []
        self.columns: list[str] = []
        self.types: dict[str, str] = {}

    def put(self, name: str, content: str | bytes) -> Path:
        """Deliver a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(self, *select: str) -> list[Row]:
        """Process new files; restart when the schema grows or a file is quarantined.

        Raises:
            FlowError: The stream failed and cannot be restarted.
        """
        self.restarts = []
        while True:
            rows: dict[int, list[Row]] = {}
            source = self._open()
            self._announce(source)
            df = read_source(source)
            self.columns, self.types = df.columns, dict(df.dtypes)
            df = df.selectExpr(*select) if select else df

            def take(batch: Any, number: int, collected=rows, source=source) -> None:
                paths = batch_files(StorageFiles(self.spark), self._checkpoint, number)
                check_files(source, paths)
                collected[number] = batch.collect()

            writer = df.writeStream.foreachBatch(take).trigger(availableNow=True)
            query = writer.option("checkpointLocation", self._checkpoint).start()
            try:
                query.awaitTermination()
            except Exception as error:
                self._restart(error, source)
                continue
            return [row for number in sorted(rows) for row in rows[number]]

    def parse(self, *select: str) -> list[Row]:
        """The rows of the new files, like those of `run`.

        Raises:
            FlowError: The files need another schema or are refused.
        """
        self.restarts = []
        while True:
            files = self._files()
            source = self._open()
            df = read_source(replace(source, is_stream=False))
            self.columns, self.types = df.columns, dict(df.dtypes)
            try:
                check_files(source, [path.as_uri() for path in files])
                rows = (df.selectExpr(*select) if select else df).collect()
            except Exception as error:
                self._restart(error, source)
                continue
            self._put_away(files)
            return list(rows)

    def learn(self, name: str, content: str) -> "FileStream":
        """Infer the schema from a first file, as the first start does; its rows are not read."""
        self.put(name, content)
        self._open()
        self._put_away(self._files())
        return self

    def remember(self, other: "FileStream") -> "FileStream":
        """Copy the state of another source."""
        shutil.copytree(other._memory, self._memory)
        return self

    def _open(self, *, streaming: bool = True) -> OpenedFiles:
        read = Read(
            spark=self.spark,
            format="cloudfiles",
            options=self.options,
            load=lambda options: self.spark.emptyDataFrame,
            schema=self.schema,
            paths=(str(self.folder),),
            is_stream=streaming,
            memory=lambda key: self.state,
        )
        return open_source(read)

    def _announce(self, source: OpenedFiles) -> None:
        if source.announced is not None:
            INBOXES[source.discovery](source, self._checkpoint, [source.roots], "f").prepare()

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _restart(self, error: Exception, source: OpenedFiles) -> None:
        """Record the reason for a restart; fail if a restart does not help."""
        known = recover(full_text(error), source, FLOW)
        if known is None:
            raise error
        if not isinstance(known, FlowError) or not known.retryable:
            raise known from error
        self.restarts.append(known.condition)

    def _put_away(self, files: Sequence[Path]) -> None:
        """Move files that were read; a stream would record them."""
        for path in files:
            target = self._parsed / path.relative_to(self.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

    def batch(self) -> list[Row]:
        """All rows of all files, without a stream."""
        df = read_source(self._open(streaming=False))
        self.columns, self.types = df.columns, dict(df.dtypes)
        return df.collect()

    @property
    def quarantined(self) -> dict[str, str]:
        """Quarantined files and their reasons."""
        entries = self.state.note("quarantined_files") or []
        return {Path(entry["file"]).name: entry["reason"] for entry in entries}


def rescued(row: Row, column: str = "_rescued_data") -> dict[str, Any] | None:
    """The rescued data of a row without the path of the file, which must always be included."""
    if row[column] is None:
        return None
    data = json.loads(row[column])
    assert data.pop("_file_path").startswith("file:///")
    return dict(data)
