"""Options that several commands share."""

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, get_type_hints

import typer

from penstock._cli.masked_output import print_as_is

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings


OutputFormat = Literal["text", "json"]
ProjectPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        help="Project folder or a single pipeline file; default: the current folder.",
        show_default=False,
    ),
]
Project = Annotated[
    Path | None,
    typer.Option("--project", help="Project folder; default: the current folder.", metavar="PATH"),
]
Spec = Annotated[
    Path | None, typer.Option("--spec", help="Spec file; default: the one in the project folder.")
]
Storage = Annotated[
    str | None, typer.Option("--storage", help="Root of tables and checkpoints: a folder or URI.")
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="Spark or pipeline setting; may be repeated.", metavar="KEY=VALUE"),
]
Refresh = Annotated[
    list[str] | None,
    typer.Option("--refresh", "--select", help="Update only these tables.", metavar="A,B"),
]
Pipeline = Annotated[
    str | None, typer.Option("--pipeline", help="Key of the pipeline if the bundle has several.")
]
Target = Annotated[
    str | None, typer.Option("--target", help="Target of the bundle or of the spec file.")
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="Local location for paths with this prefix; may be repeated.",
        metavar="PREFIX=LOCATION",
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]
FlowName = Annotated[str, typer.Argument(help="Name of the flow.", metavar="FLOW")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted operation.")]
Abandon = Annotated[bool, typer.Option("--abandon", help="Discard an interrupted operation.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Apply the plan; without it, the plan is only printed.")
]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="Maximum number of rows.")]
RecordedUpdate = Annotated[
    str, typer.Option("--update", help="Update to show: `latest`, or the prefix of an id.")
]
RecordedUpdates = Annotated[
    str, typer.Option("--update", help="Updates to show: `latest`, `all`, or the prefix of an id.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Start position: `earliest` (the default), a timestamp, `version=4`, `key=500`, or "
        "offsets as JSON.",
        metavar="POSITION",
    ),
]


@dataclass(frozen=True, kw_only=True)
class _ProjectOptions:
    """Options that choose a pipeline and its settings."""

    def settings(self) -> "PipelineSettings":
        from penstock._project.packed import packed_project
        from penstock._project.spec import load_settings

        chosen = dict(vars(self))
        path, trigger = chosen.pop("path"), chosen.pop("trigger", None)
        configuration = assignments(chosen.pop("conf", None))
        if trigger is not None:
            configuration["pipelines.trigger"] = trigger
            chosen["continuous"] = _is_continuous(trigger, chosen["continuous"])
        return load_settings(
            Path.cwd(),
            source=packed_project() if path is None else path,
            configuration=configuration,
            paths=assignments(chosen.pop("maps", None), "--map"),
            parameters=assignments(chosen.pop("parameters", None), "--param"),
            defer_to=chosen.pop("defer", None),
            **chosen,  # with the names of the parameters
        )


@dataclass(frozen=True, kw_only=True)
class ReadOptions(_ProjectOptions):
    path: Project = None
    spec: Spec = None
    storage: Storage = None
    pipeline: Pipeline = None
    target: Target = None


@dataclass(frozen=True, kw_only=True)
class StatusOptions(ReadOptions):
    path: ProjectPath = None


@dataclass(frozen=True, kw_only=True)
class RepairOptions(ReadOptions):
    conf: Conf = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions(_ProjectOptions):
    path: ProjectPath = None
    spec: Spec = None
    conf: Conf = None
    pipeline: Pipeline = None
    target: Target = None
    maps: Maps = None
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", help="Pipeline parameter; may be repeated.", metavar="KEY=VALUE"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GraphOptions(CheckOptions):
    storage: Storage = None
    defer: Annotated[
        str | None,
        typer.Option(
            "--defer",
            help="Read unchanged datasets from this target or storage instead of building them.",
            metavar="TARGET_OR_STORAGE",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(GraphOptions):
    path: Project = None


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(GraphOptions):
    continuous: Annotated[
        bool | None,
        typer.Option(
            "--continuous/--triggered",
            help="Run until stopped, or until all available input is processed; default: settings.",
            show_default=False,
        ),
    ] = None
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="TRIGGER",
            help="availableNow, once, default, processingTime=10s, continuous=1s or realTime=5m; "
            "tables with their own trigger keep it.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    refresh: Refresh = None
    full_refresh: Annotated[
        list[str] | None,
        typer.Option(
            "--full-refresh",
            help="Truncate these tables and process all input again.",
            metavar="A,B",
        ),
    ] = None
    full_refresh_all: Annotated[
        bool,
        typer.Option("--full-refresh-all", help="Truncate all tables and process all input again."),
    ] = False
    replace_where: Annotated[
        list[str] | None,
        typer.Option(
            "--replace-where",
            help="Override the rows that a flow replaces, for this update only; may be repeated.",
            metavar="FLOW=CONDITION",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The options as arguments of `UpdateOptions` and of `penstock.plan`."""
        return {
            "refresh": names(self.refresh, "--refresh"),
            "full_refresh": names(self.full_refresh, "--full-refresh"),
            "full_refresh_all": self.full_refresh_all,
            "replace_where": assignments(self.replace_where, "--replace-where"),
        }


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Expand option groups in the signature of a command.

    A parameter of the command whose type is a dataclass of this module is replaced, in the
    signature that Typer reads, by one option per field of the dataclass.
    """
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    signature = inspect.signature(command)
    parameters = []
    for parameter in signature.parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                option.name, parameter.kind, default=option.default, annotation=types[option.name]
            )
            for option in fields(group)
        ]

    @wraps(command)
    def expanded(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(
                **{option.name: values.pop(option.name) for option in fields(group)}
            )
        return command(**values)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def stdout_to_stderr() -> redirect_stdout[TextIO]:
    """Redirect output of the pipeline's code to stderr."""
    return redirect_stdout(sys.stderr)


def check_conflicts(actions: dict[str, bool], others: dict[str, object]) -> None:
    """Reject several `actions` at once, and `others` with an action, which ignores them."""
    chosen = [name for name, is_set in actions.items() if is_set]
    if len(chosen) > 1:
        raise typer.BadParameter(
            "these options cannot be used together", param_hint=", ".join(chosen)
        )
    ignored = [name for name, value in others.items() if value]
    if chosen and ignored:
        raise typer.BadParameter(
            f"cannot be combined with {chosen[0]}: the options of the original operation apply",
            param_hint=", ".join(ignored),
        )


def attributes(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def print_json(body: Any, *, indent: int | None = 2) -> None:
    """Print the result of a command with `--output json`, with secrets masked."""
    print_as_is(json.dumps(masked_json(body), indent=indent, ensure_ascii=False))


def show(output: OutputFormat, body: Any, lines: Iterable[str]) -> None:
    """Print the result of a command: `body` as JSON, or the lines as text."""
    if output == "json":
        print_json(body)
        return
    for line in lines:
        print(line)


def masked_json(body: Any) -> Any:
    from penstock._observe.masking import masked_values

    return masked_values({"body": body})["body"]


def names(values: list[str] | None, option: str) -> tuple[str, ...]:
    """The distinct names of a repeatable, comma-separated option, in order.

    An option without names, as from an empty shell variable, is an error: it does not mean all.
    """
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    if values is not None and not any(parts):
        raise typer.BadParameter("expected at least one name", param_hint=option)
    return tuple(dict.fromkeys(part for part in parts if part))


def assignments(values: list[str] | None, option: str = "--conf") -> dict[str, str]:
    """Parse `KEY=VALUE` options; the last value of a key takes precedence."""
    pairs = {}
    for value in values or []:
        key, sign, text = value.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        pairs[key.strip()] = text
    return pairs


def one_update(directory: Path, prefix: str) -> str:
    """The id of the only update that starts with `prefix`; `latest` is returned unchanged."""
    from penstock._observe import segments
    from penstock.errors import SpecError

    if prefix == segments.LATEST:
        return prefix
    matches = segments.select_updates(directory, prefix)
    if len(matches) == 1:
        return matches[0].update_id
    recorded = [each.update_id for each in segments.updates(directory)[-5:]]
    raise SpecError(
        "UNKNOWN_UPDATE",
        f"{len(matches)} updates in {directory} begin with {prefix!r}",
        hint=f"the newest ones are {', '.join(recorded)}" if recorded else "none is recorded yet",
    )


def _is_continuous(text: str, continuous: bool | None) -> bool:
    """Whether an update with this trigger runs until stopped; checks `continuous` against it."""
    from penstock._model.trigger import TRIGGER_FORMS, parse_trigger

    trigger = parse_trigger(text)
    if trigger is None:
        raise typer.BadParameter(f"{text!r} is not one of {TRIGGER_FORMS}", param_hint="--trigger")
    if continuous is not None and continuous is trigger.ends:
        mode = "--continuous" if continuous else "--triggered"
        raise typer.BadParameter(f"{text!r} contradicts {mode}", param_hint="--trigger")
    return not trigger.ends
