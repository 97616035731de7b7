"""What evaluations of query functions need to know, and what they find out."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame

from penstock._engine.assumptions import Assumptions
from penstock._engine.outside import OutsideTables
from penstock._model.redaction import remember_named
from penstock.sources.files.opening import OpenedFiles
from penstock.sources.jdbc.stream import JdbcStream
from penstock.sources.kafka.options import at_mapped_servers
from penstock.sources.kafka.reader import KafkaRead


@dataclass
class Evaluation:
    """What one call of a query function read.

    Attributes:
        inputs: Keys of the pipeline's datasets.
        external: Sources from outside, in words.
        files: Sources that Auto Loader opened for the flow and the views that it reads.
        kafka: Streams from Kafka, likewise.
        databases: Streams from databases, likewise.
        assumed: Names of the sources that are not here and were stood in for.
        taken_for: Incomplete names, and the datasets that they were taken for.
        is_lenient: Whether the query makes sense without ANSI mode only.
    """

    inputs: set[str] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    files: list[OpenedFiles] = field(default_factory=list)
    kafka: list[KafkaRead] = field(default_factory=list)
    databases: list[JdbcStream] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    taken_for: dict[str, str] = field(default_factory=dict)
    is_lenient: bool = False

    @contextlib.contextmanager
    def without_failed_reads(self) -> Iterator[None]:
        """Forget the sources that a view opened which then failed: it may be called again."""
        opened: list[list[Any]] = [self.files, self.kafka, self.databases]
        counts = [len(sources) for sources in opened]
        try:
            yield
        except BaseException:
            for sources, count in zip(opened, counts, strict=True):
                del sources[count:]
            raise


class FilesReader(Protocol):
    """Reads files as Auto Loader does."""

    def __call__(
        self,
        *,
        paths: Sequence[str],
        options: Mapping[str, str],
        schema: Any,
        streaming: bool,
        flow: str,
        analysis: bool,
    ) -> DataFrame:
        """The rows of files.

        Args:
            paths: Mapped and absolute.
            options: As the user gave them.
            schema: StructType, DDL or `None`.
            streaming: Whether to read a stream.
            flow: Whose state remembers what was inferred; empty outside of flows.
            analysis: Whether nothing may be remembered beyond this process.
        """


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What reads need to know of the world around the pipeline.

    Attributes:
        outside: Tables that the pipeline does not declare.
        map_path: The place that a path of the user's stands for.
        resolve_secrets: Fills `${secret:...}` in reader options.
        files: Auto Loader.
        events: Folder of the event log.
        configuration: Of the pipeline.
        assumptions: Stands in for what is not here; `None` = that is an error.
        notes: What was decided about paths, one sentence each, in the order of the reads.
    """

    outside: OutsideTables
    map_path: Callable[[str], str] = str
    resolve_secrets: Callable[[str], str] = str
    files: FilesReader
    events: Path | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    assumptions: Assumptions | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def resolved(self, options: Mapping[str, str]) -> dict[str, str]:
        """Options of a reader or sink with secrets filled in; what is secret is remembered."""
        return resolved_options(options, self.resolve_secrets)

    def with_mapped_brokers(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options of a reader, with the Kafka brokers that `paths` of the settings names."""
        mapped = at_mapped_servers(options, self.map_path)
        if self.assumptions is not None:
            self.assumptions.note_servers(mapped)
        return mapped


def resolved_options(
    options: Mapping[str, str], resolve_secrets: Callable[[str], str]
) -> dict[str, str]:
    """The one place that fills in secrets of options, and remembers what they are."""
    resolved = {name: resolve_secrets(value) for name, value in options.items()}
    remember_named(resolved)
    return resolved
