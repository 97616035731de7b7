"""What evaluations of query functions need to know, and what they find out."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock._analysis.assumptions import Assumptions
from penstock._analysis.external_tables import ExternalTables
from penstock._model.redaction import remember_named
from penstock.sources.base import OpenedSource, Position
from penstock.sources.files.opening import OpenedFiles
from penstock.sources.files.source import FileStream
from penstock.sources.memory import SourceMemory


@dataclass
class Evaluation:
    """What one call of a query function read.

    Attributes:
        inputs: Keys of the pipeline's datasets.
        external: Sources from outside, in words.
        sources: Streams, and files, that were opened for the flow and the views that it reads.
        position: Where the streams begin, and end; empty = where their options say.
        assumed: Names of the sources that are not here and were stood in for.
        taken_for: Incomplete names, and the datasets that they were taken for.
        needs_ansi_off: Whether the query makes sense without ANSI mode only.
    """

    inputs: set[str] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    sources: list[OpenedSource] = field(default_factory=list)
    position: Position = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    taken_for: dict[str, str] = field(default_factory=dict)
    needs_ansi_off: bool = False

    @property
    def files(self) -> list[OpenedFiles]:
        """What Auto Loader knows of the sources that it reads."""
        streams = (source for source in self.sources if isinstance(source, FileStream))
        return [source.opened for source in streams if source.opened is not None]

    @contextlib.contextmanager
    def without_failed_reads(self) -> Iterator[None]:
        """Forget the sources that a view opened which then failed: it may be called again."""
        count = len(self.sources)
        try:
            yield
        except BaseException:
            del self.sources[count:]
            raise


class Memories(Protocol):
    """Gives what sources remember."""

    def __call__(self, flow: str, key: str, *, analysis: bool) -> SourceMemory:
        """The memory of one source.

        Args:
            flow: Name of the flow whose checkpoint the source belongs to; empty outside of flows.
            key: Of the source within the flow.
            analysis: Whether nothing may be remembered beyond this process.
        """


@dataclass(frozen=True, kw_only=True)
class ReadContext:
    """What reads need to know of the world around the pipeline.

    Attributes:
        external_tables: Tables that the pipeline does not declare.
        map_path: The place that a path of the user's stands for.
        resolve_secrets: Fills `${secret:...}` in reader options.
        memories: What sources remember.
        events: Folder of the event log.
        configuration: Of the pipeline.
        assumptions: Stands in for what is not here; `None` = that is an error.
        notes: What was decided about paths, one sentence each, in the order of the reads.
    """

    external_tables: ExternalTables
    map_path: Callable[[str], str] = str
    resolve_secrets: Callable[[str], str] = str
    memories: Memories
    events: Path | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    assumptions: Assumptions | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def resolved(self, options: Mapping[str, str]) -> dict[str, str]:
        """Options of a reader or sink with secrets filled in; what is secret is remembered."""
        return resolved_options(options, self.resolve_secrets)


def resolved_options(
    options: Mapping[str, str], resolve_secrets: Callable[[str], str]
) -> dict[str, str]:
    """The one place that fills in secrets of options, and remembers what they are."""
    resolved = {name: resolve_secrets(value) for name, value in options.items()}
    remember_named(resolved)
    return resolved
