"""Every command has JSON output, examples that parse and completion."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock._cli import exit_codes
from penstock._cli.main import app, main

LOGS = Path(__file__).parents[1] / "_ui" / "logs"
ROOT = typer.main.get_command(app)
SERVERS = {"ui"}
OTHER_PROGRAMS = {"test"}  # run by pytest


def _commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands())


def test_all_commands_are_listed():
    assert {"run", "graph", "explain", "quarantine replay", "jars list", "metrics"} < set(COMMANDS)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SERVERS - OTHER_PROGRAMS))
def test_every_command_has_json_output(name):
    command = COMMANDS[name]
    for spelling in ("--output", "-o"):
        for form in ("text", "json"):
            context = command.make_context(name, [spelling, form], resilient_parsing=True)
            assert context.params["output"] == form


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_examples_that_parse(name):
    epilog = COMMANDS[name].epilog or ""
    head, _, examples = epilog.partition(":")
    assert head in ("Example", "Examples"), name
    for example in re.split(r" \| (?=penstock |jq |\.\.\. )", examples):
        words = shlex.split(example.partition(">")[0])
        assert words
        if words[0] != "penstock":  # another program of a pipe, or an abbreviated command
            assert words[0] in ("jq", "..."), example
            continue
        command: Any = ROOT
        words = words[1:]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        assert command is COMMANDS[name], example
        command.make_context(name, words)


def _complete(shell: str, line: str) -> str:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    code = "import sys; from penstock._cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "line", "completion"),
    [
        ("bash", "penstock me", "metrics"),
        ("bash", "penstock graph --format m", "mermaid"),
        ("zsh", "penstock quarantine re", "replay"),
        ("fish", "penstock run --metr", "--metrics-port"),
    ],
)
def test_a_shell_completes_commands_options_and_values(shell, line, completion):
    assert completion in _complete(shell, line)


def test_completion_script_is_shown(capsys, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion", "bash"])
    assert ended.value.code == exit_codes.OK
    assert "_PENSTOCK_COMPLETE" in capsys.readouterr().out


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text("import penstock as dp\n")
    events = tmp_path / ".penstock" / "events"
    events.mkdir(parents=True)
    for path in (LOGS / "demo").glob("*.jsonl"):
        (events / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_graph_of_a_recorded_update_has_every_format(project: Path, capsys):
    command = ["graph", str(project), "--update", "latest"]
    assert main(command) == exit_codes.OK
    text = capsys.readouterr().out
    assert "orders_bronze [streaming table" in text
    assert "`- " in text
    assert main([*command, "--format", "mermaid"]) == exit_codes.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "flowchart LR"
    assert any("classDef completed" in line for line in lines)
    assert sum(" --> " in line for line in lines) >= 3
    assert main([*command, "--format", "dot"]) == exit_codes.OK
    dot = capsys.readouterr().out
    assert dot.startswith("digraph pipeline {")
    assert '"spark_catalog.default.orders_bronze" -> "spark_catalog.default.orders"' in dot
    assert main([*command, "--output", "json"]) == exit_codes.OK
    body = json.loads(capsys.readouterr().out)
    assert set(body) == {"version", "nodes", "edges"}
    nodes = {node["name"]: node for node in body["nodes"]}
    assert nodes["orders"]["state"] == "COMPLETED"
    assert set(nodes["orders"]) == {*("id", "name", "kind", "expectations", "state", "declared_at")}
    ids = {node["id"] for node in body["nodes"]}
    assert all({edge["from"], edge["to"]} <= ids for edge in body["edges"])
    assert main(["graph", str(project), "--update", "nothing"]) == exit_codes.USAGE


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("migrate f --resume --undo", "cannot be used together"),
        ("migrate f --resume --from version=4", "cannot be combined with --resume"),
        ("migrate f --undo --accept-less", "cannot be combined with --undo"),
        ("backfill f --resume --abandon", "cannot be used together"),
        ("backfill f --resume --by id", "cannot be combined with --resume"),
        ("backfill f --abandon --from earliest --to latest", "cannot be combined with --abandon"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(command, message, capsys):
    assert main(command.split()) == exit_codes.USAGE
    assert message in re.sub(r"[\s│]+", " ", capsys.readouterr().err)
