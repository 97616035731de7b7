"""Context of an evaluation of a query function, and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock._analysis.assumptions import Assumptions
from penstock._analysis.external_tables import ExternalTables
from penstock._model.redaction import remember_named
from penstock.sources.base import OpenedSource, Position
from penstock.sources.files.opening import OpenedFiles
from penstock.sources.files.source import AutoLoaderStream
from penstock.sources.memory import SourceMemory


@dataclass
class Evaluation:
    """Reads of one call of a query function.

    `inputs` are keys of the pipeline's datasets, `external` are other sources as readable text.
    `sources` are opened for the flow and the views that it reads; if `position` is empty, their
    options set the start. `qualifies`: whether names of tables qualify their columns. `assumed` are
    missing sources that were replaced by assumptions, `taken_for` are incomplete names and the
    datasets that they were resolved to.
    """

    inputs: set[str] = field(default_factory=set)
    external: list[str] = field(default_factory=list)
    sources: list[OpenedSource] = field(default_factory=list)
    position: Position = field(default_factory=dict)
    is_triggered: bool = True
    qualifies: bool = False
    assumed: list[str] = field(default_factory=list)
    taken_for: dict[str, str] = field(default_factory=dict)
    needs_ansi_off: bool = False

    @property
    def files(self) -> list[OpenedFiles]:
        """Sources that are read by Auto Loader."""
        return [source.opened for source in self.sources if isinstance(source, AutoLoaderStream)]


class Memories(Protocol):
    """Returns the stored state of sources."""

    def __call__(self, flow: str, key: str, *, analysis: bool) -> SourceMemory:
        """The state of one source, by flow (empty outside of flows) and key.

        In an `analysis`, nothing may be stored beyond this process.
        """


@dataclass(frozen=True, kw_only=True)
class ReadContext:
    """Context of reads.

    `map_path` maps a path in user code, `resolve_secrets` resolves `${secret:...}` in reader
    options. `assumptions` replace missing sources; with `None`, these are errors. `notes` are
    decisions about paths, one sentence each, in the order of the reads.
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
        """Options of a reader or sink with resolved secrets, which are registered for masking."""
        resolved = {name: self.resolve_secrets(value) for name, value in options.items()}
        remember_named(resolved)
        return resolved
