"""`adopt`: proposes the declarative equivalent of a job."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli import exit_codes, options
from penstock.errors import SpecError, UserCodeError

if TYPE_CHECKING:
    from penstock._adopt.report import Proposal

app = typer.Typer()


@app.command(
    "adopt",
    epilog="Examples: penstock adopt job.py | penstock adopt job.py --output-dir pipelines --force",
)
def adopt(
    job: Annotated[
        Path, typer.Argument(help="A job: a Python file that starts its queries.", metavar="JOB")
    ],
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", help="Folder of the proposal; default: that of the job.", metavar="DIR"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier proposal.")] = False,
    output: options.Output = "text",
) -> int:
    """Write the declared equivalent of a job beside it, and report what has none.

    Reads the text of the job; nothing is executed, and the job is not changed.
    Exit code 1 if no query has an equivalent: nothing is written then.
    """
    from penstock._adopt.proposal import propose
    from penstock._cli.reports import write_text
    from penstock._project.locations import nearest_file

    if not job.is_file():
        raise SpecError("SOURCE_NOT_FOUND", f"there is no file {job}", hint=nearest_file(job))
    try:
        proposal = propose(job.read_text(encoding="utf-8-sig"), job.name)
    except (SyntaxError, ValueError) as error:
        raise UserCodeError("USER_CODE_SYNTAX", f"{job} is not Python: {error}") from error
    if not proposal.queries and not any(p.is_query for p in proposal.not_recognized):
        raise SpecError(
            "JOB_WITHOUT_QUERIES",
            f"{job} starts no streaming query",
            hint="give a Python file with `spark.readStream ... .writeStream ... .start()`",
        )
    place = (output_dir or job.parent) / f"{job.stem}_pipeline.py"
    if proposal.queries:
        if place.exists() and not force:
            raise SpecError(
                "PROPOSAL_EXISTS", f"{place} exists already", hint="--force replaces it"
            )
        write_text(place, proposal.text, "--output-dir")
    commands = _commands(proposal, job, place)
    body = _as_json(proposal, job, place, commands)
    options.show(output, body, _as_text(proposal, job, place, commands))
    return exit_codes.OK if proposal.queries else exit_codes.UPDATE_FAILED


def _commands(proposal: "Proposal", job: Path, place: Path) -> list[str]:
    """Commands to run before the first update, so that flows resume where the queries stopped."""
    commands = [f"penstock dry-run {shlex.quote(str(place))}"] if proposal.queries else []
    for query in proposal.queries:
        if query.checkpoint is None or query.keeps_state:
            continue
        is_relative = re.match(r"[A-Za-z][\w+.-]+:", query.checkpoint) is None
        checkpoint = str(job.parent / query.checkpoint) if is_relative else query.checkpoint
        words = ["penstock", "checkpoint", "reset", query.flow, "--from-checkpoint", checkpoint]
        commands.append(shlex.join([*words, "--project", str(place), "--yes"]))
    return commands


def _as_text(proposal: "Proposal", job: Path, place: Path, commands: list[str]) -> list[str]:
    count = len(proposal.queries)
    total = count + sum(problem.is_query for problem in proposal.not_recognized)
    lines = [f"{count} of {total} queries of {job}" + (f" are in {place}" if count else "")]
    for query in proposal.queries:
        lines.append(f"  line {query.line}: flow {query.flow} into {query.kind} {query.target}")
        lines += [f"      {note}" for note in query.notes]
    if proposal.not_recognized:
        lines.append("not in the proposal:")
        lines += [f"  line {p.line}: {p.text}: {p.reason}" for p in proposal.not_recognized]
    if commands:
        lines.append("stop the job; before the first update, these continue at its checkpoints:")
        lines += [f"  {command}" for command in commands]
    return lines


def _as_json(proposal: "Proposal", job: Path, place: Path, commands: list[str]) -> dict[str, Any]:
    return {
        "job": str(job),
        "proposal": str(place) if proposal.queries else None,
        "queries": [asdict(query) for query in proposal.queries],
        "not_recognized": [asdict(problem) for problem in proposal.not_recognized],
        "commands": commands,
    }
