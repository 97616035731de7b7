"""What the reads of a pipeline's code need to know of the world around it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame

from penstock._engine.assumptions import Assumptions
from penstock._engine.outside import OutsideTables


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
    """

    outside: OutsideTables
    map_path: Callable[[str], str] = str
    resolve_secrets: Callable[[str], str] = str
    files: FilesReader
    events: Path | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    assumptions: Assumptions | None = None
