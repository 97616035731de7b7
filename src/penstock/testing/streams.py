"""Runs of streams for the contract tests of connectors: to the end of the available input."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock.errors import ConnectorError

Row = tuple[Any, ...]


def flow_named(name: str) -> Flow:
    """A flow with this name, for errors."""
    origin = SourceLocation(file="suite.py", line=1)
    return Flow(name=name, target="target", function=lambda: None, origin=origin)


@dataclass(frozen=True)
class Finished:
    """A query that has read all available input.

    Attributes:
        reports: Spark's progress reports, one per micro-batch, oldest first.
        java_sources: Spark's objects of the sources, in the JVM.
    """

    reports: list[Mapping[str, Any]]
    java_sources: list[Any]


def run_to_end(writer: Any, checkpoint: Path) -> Finished:
    """Run a stream until it has read all available input.

    Args:
        writer: A `DataStreamWriter`.
        checkpoint: Folder of the checkpoint from which the stream resumes.
    """
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
        sources = query._jsq.streamingQuery().sources()
        return Finished(
            reports=[json.loads(report.json) for report in query.recentProgress],
            java_sources=[sources.apply(number) for number in range(int(sources.size()))],
        )
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """Remove the last commit of a checkpoint, so that the next start writes the batch again.

    This is the state after a crash between the commits of a target and of the checkpoint.
    """
    commits = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    newest = max(commits, key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def hidden_values(options: Mapping[str, str], names: tuple[str, ...], text: str) -> list[str]:
    """Names of the given options whose values appear in a text."""
    return [name for name in names if options.get(name) and options[name] in text]


def check_refusals(
    check: Callable[[dict[str, str]], object],
    options: Mapping[str, str],
    wrong_options: Sequence[Mapping[str, str | None]],
    secrets: tuple[str, ...],
) -> None:
    """Check that options are refused after each change, without a secret in the error."""
    for wrong in wrong_options:
        merged = {**options, **wrong}
        refused = {name: value for name, value in merged.items() if value is not None}
        try:
            check(refused)
        except ConnectorError as error:
            assert hidden_values(refused, secrets, str(error)) == [], wrong
        else:
            raise AssertionError(f"{wrong} is not refused")
