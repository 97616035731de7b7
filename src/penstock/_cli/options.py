"""Options that several commands share."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock._cli.masked_output import print_as_is

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings


class OutputFormat(StrEnum):
    """What a command that answers a question writes to stdout."""

    TEXT = "text"
    JSON = "json"


ProjectPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        help="Project folder, or a single pipeline file; the current folder by default.",
        show_default=False,
    ),
]
Project = Annotated[
    Path | None,
    typer.Option("--project", help="Project folder instead of the current one.", metavar="PATH"),
]
Spec = Annotated[
    Path | None, typer.Option("--spec", help="Spec file instead of the one in the folder.")
]
Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Root of tables and checkpoints: a folder or a URI."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="Spark or pipeline setting; may be repeated.", metavar="KEY=VALUE"),
]
Refresh = Annotated[
    list[str] | None,
    typer.Option("--refresh", "--select", help="Only these tables.", metavar="A,B"),
]
FullRefresh = Annotated[
    list[str] | None,
    typer.Option("--full-refresh", help="Empty these tables and start them over.", metavar="A,B"),
]
FullRefreshAll = Annotated[
    bool, typer.Option("--full-refresh-all", help="Empty all tables and start over.")
]
ReplaceWhere = Annotated[
    list[str] | None,
    typer.Option(
        "--replace-where",
        help="Other rows for a flow to replace, this time only; may be repeated.",
        metavar="FLOW=CONDITION",
    ),
]
Continuous = Annotated[
    bool | None,
    typer.Option(
        "--continuous/--triggered",
        help="Keep running until stopped, or end when everything is read; as the settings say.",
        show_default=False,
    ),
]
TriggerText = Annotated[
    str | None,
    typer.Option(
        "--trigger",
        metavar="TRIGGER",
        help="availableNow, once, default, processingTime=10s, continuous=1s or realTime=5m; "
        "tables with a trigger of their own keep it.",
    ),
]
Pipeline = Annotated[
    str | None,
    typer.Option("--pipeline", help="Key of the pipeline, where a bundle has several."),
]
Target = Annotated[str | None, typer.Option("--target", help="Target of a bundle.")]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="Where paths with this beginning are on this machine; may be repeated.",
        metavar="PREFIX=PLACE",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param", help="Parameter of the pipeline; may be repeated.", metavar="KEY=VALUE"
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Form of the answer.")]
FlowName = Annotated[str, typer.Argument(help="Name of the flow.", metavar="FLOW")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with one that was interrupted.")]
Abandon = Annotated[bool, typer.Option("--abandon", help="Forget one that was interrupted.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, only the plan is printed.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="How many rows.")]


def check_ways(ways: dict[str, bool], others: dict[str, object]) -> None:
    """Refuse two ways of a command at once, and what a way would pass over without a word.

    Args:
        ways: Switches such as `--resume`, of which at most one is given.
        others: Options that only count without them.

    Raises:
        typer.BadParameter: One of both was given.
    """
    chosen = [name for name, is_given in ways.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter("only one of them", param_hint=", ".join(chosen))
    ignored = [name for name, value in others.items() if value]
    if chosen and ignored:
        raise typer.BadParameter(
            f"means nothing with {chosen[0]}: what is done was decided when it was begun",
            param_hint=", ".join(ignored),
        )


def print_json(body: Any, *, indent: int | None = 2) -> None:
    """The answer of a command with `--output json`: texts are masked, and it stays JSON."""
    print_as_is(json.dumps(masked_json(body), indent=indent, ensure_ascii=False))


def masked_json(body: Any) -> Any:
    """A body of JSON whose texts are masked."""
    from penstock._observe.masking import masked_values

    return masked_values({"body": body})["body"]


def names(values: list[str] | None) -> tuple[str, ...]:
    """The names of a repeatable, comma-separated option, each once, in order."""
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def assignments(values: list[str] | None, option: str = "--conf") -> dict[str, str]:
    """`KEY=VALUE` options; the last one of a key wins.

    Raises:
        typer.BadParameter: There is no `=` or no key.
    """
    pairs = {}
    for value in values or []:
        key, sign, text = value.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        pairs[key.strip()] = text
    return pairs


def settings_of(
    path: Path | None,
    spec: Path | None = None,
    storage: str | None = None,
    conf: list[str] | None = None,
    *,
    pipeline: str | None = None,
    target: str | None = None,
    maps: list[str] | None = None,
    parameters: list[str] | None = None,
    continuous: bool | None = None,
    trigger: str | None = None,
) -> "PipelineSettings":
    """The settings of the project at `path`, or around the current folder.

    Raises:
        SpecError: The project or its spec file is wrong.
    """
    from penstock._project.spec import load_settings

    configuration = assignments(conf)
    if trigger is not None:
        configuration["pipelines.trigger"] = trigger
        continuous = _runs_on(trigger, continuous)
    return load_settings(
        Path.cwd(),
        source=path,
        spec=spec,
        storage=storage,
        configuration=configuration,
        pipeline=pipeline,
        target=target,
        paths=assignments(maps, "--map"),
        parameters=assignments(parameters, "--param"),
        continuous=continuous,
    )


def _runs_on(text: str, continuous: bool | None) -> bool:
    """Whether an update with this trigger runs until it is stopped.

    Raises:
        typer.BadParameter: There is no such trigger, or it contradicts `--continuous`.
    """
    from penstock._model.trigger import TRIGGER_FORMS, parse_trigger

    trigger = parse_trigger(text)
    if trigger is None:
        raise typer.BadParameter(f"{text!r} is none of {TRIGGER_FORMS}", param_hint="--trigger")
    if continuous is not None and continuous is trigger.ends:
        mode = "--continuous" if continuous else "--triggered"
        raise typer.BadParameter(f"{text!r} contradicts {mode}", param_hint="--trigger")
    return not trigger.ends
