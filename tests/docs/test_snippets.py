"""The code, commands, settings and links in the documentation are valid.

* The ```python blocks of a page that use the API are one pipeline. They are loaded as sources of
  the example project, and analyzed (mark `spark`). A line `<!-- new pipeline -->` starts another
  pipeline.
* Any other ```python block is executed in a session, in an example project that has run once.
* In ```console blocks, lines that begin with `$ ` are commands. Commands of `penstock` must be
  accepted by its command line, and targets of `make` must exist.
* ```yaml blocks are spec files, ```json blocks are JSON.
* `<!-- not run: reason -->` on the line before a block excludes it.
"""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock._api.modules import installed_modules
from penstock._cli.main import app, main
from penstock._cli.scaffold import write_project
from penstock._project.loader import load_definitions
from penstock._project.sources import imports_api
from penstock._project.spec import load_settings
from penstock._project.spec_file import spec_of
from penstock._project.yaml_text import read_document
from penstock._spark.session_defaults import session_defaults

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PRELUDE = "import penstock as dp\nfrom pyspark.sql import functions as F\n"
NEW_PIPELINE = "<!-- new pipeline -->"
OTHER_PROGRAMS = {"cd", "git", "jq", "kill", "echo", "cat", "pip", "python", ".", "export", "curl"}
OTHER_PROGRAMS |= {"aws", "moto_server", "tee"}
# Typer adds them to the root command.
COMPLETION = {"--install-completion", "--show-completion"}
# Options of other programs on the pages.
FOREIGN_OPTIONS = {"--strict", "--include", "--descriptor", "--record-seconds", *COMPLETION}
# Of spark-submit and curl.
FOREIGN_OPTIONS |= {"--master", "--deploy-mode", "--retry", "--retry-connrefused"}
# Of aws.
FOREIGN_OPTIONS |= {"--queue-name", "--attributes", "--queue-url", "--bucket"}
FOREIGN_OPTIONS |= {"--notification-configuration"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    pipeline: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def uses_api(self) -> bool:
        return imports_api(self.text) or re.search(r"\b(dp|dlt)\.\w", self.text) is not None


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        name = str(page.relative_to(ROOT))
        pipeline, number = 0, 0
        while number < len(lines):
            line = lines[number]
            pipeline += line.strip() == NEW_PIPELINE
            opening = re.fullmatch(r"```(\w+)", line.strip())
            if opening is None:
                number += 1
                continue
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
            before = next((x for x in reversed(lines[:number]) if x.strip()), "")
            if not re.fullmatch(r"<!-- not run: .+ -->", before.strip()):
                text = "\n".join(lines[number + 1 : end]) + "\n"
                yield Block(name, number + 1, opening.group(1), text, pipeline)
            number = end + 1


BLOCKS = list(_blocks())


def _of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


PIPELINES: dict[str, list[Block]] = {}
for _block in _of("python"):
    if _block.uses_api:
        PIPELINES.setdefault(f"{_block.page}#{_block.pipeline}", []).append(_block)
SCRIPTS = [block for block in _of("python") if not block.uses_api]


def test_code_blocks_have_known_languages():
    assert {b.language for b in BLOCKS} <= {"python", "console", "yaml", "json", "text", "sql"}


def test_every_kind_of_block_is_collected():
    assert len(PIPELINES) >= 4
    assert SCRIPTS
    assert _of("console")
    assert _of("yaml")


# -- python -------------------------------------------------------------------------------------


def _project(parent: Path, blocks: list[Block]) -> Path:
    """The example project with these blocks as its only sources."""
    write_project(parent, "shop")
    project = parent / "shop"
    (project / "transformations" / "orders.py").unlink()
    for position, block in enumerate(blocks):
        prelude = "" if imports_api(block.text) else PRELUDE
        extra = "" if "import functions as F" in block.text else PRELUDE.splitlines()[1] + "\n"
        file = project / "transformations" / f"part{position}.py"
        file.write_text((prelude or extra) + block.text, encoding="utf-8")
    return project


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_in_docs_are_loaded(name, tmp_path):
    # Not a unit test, because the blocks import pyspark; no JVM is started.
    settings = load_settings(_project(tmp_path, PIPELINES[name]), environ={})
    definition = load_definitions(settings, namespace={"spark": _SparkWithoutJvm()})
    assert definition.flows


class _SparkWithoutJvm:
    """A session that has only settings: module-level code of source files needs nothing else."""

    class conf:
        @staticmethod
        def get(_key: str, default: str = "") -> str:
            return default


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_in_docs_are_analysed(name, tmp_path, spark, monkeypatch):
    from penstock._analysis.analysis import analyse
    from penstock._graph.indexing import build_index
    from penstock._launch import read_context
    from penstock._plan.explain import explain_text
    from penstock._plan.planner import PlanOptions, make_plan

    for secret in ("KAFKA_PASSWORD", "DATABASE_PASSWORD"):
        monkeypatch.setenv(f"PENSTOCK_SECRET_{secret}", "only-a-test")
    monkeypatch.setenv("PENSTOCK_SECRET_ALERTS_SLACK", "https://hooks.example.org/only-a-test")
    hub = "Endpoint=sb://h.example/;SharedAccessKeyName=a;SharedAccessKey=only-a-test;EntityPath=e"
    monkeypatch.setenv("PENSTOCK_SECRET_EVENTHUBS_CONNECTION", hub)
    project = _project(tmp_path, PIPELINES[name])
    monkeypatch.chdir(project)
    settings = load_settings(project, environ={})
    with installed_modules():
        definition = load_definitions(settings, namespace={"spark": spark})
        index = build_index(definition, settings)
        graph = analyse(spark, index, read_context(settings, spark))
    assert explain_text(graph, make_plan(graph, PlanOptions()))


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory, spark) -> Path:
    """The example project after one update."""
    parent = tmp_path_factory.mktemp("docs")
    write_project(parent, "shop")
    with contextlib.chdir(parent):
        assert main(["run", "shop", "--quiet"]) == 0
    return parent / "shop"


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_scripts_in_docs_run(block, finished_project, spark, monkeypatch, capsys):
    monkeypatch.chdir(finished_project)
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(finished_project.as_uri()))
    try:
        exec(compile(block.text, str(block), "exec"), {"spark": spark})
    finally:
        files.setWorkingDirectory(before)
    # The blocks show the three invalid rows of the example.
    assert re.search(r"positive_amount\s*\|.*\b3\b", capsys.readouterr().out)


# -- commands -----------------------------------------------------------------------------------


def _commands() -> Iterator[tuple[str, list[str]]]:
    for block in _of("console"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            part: list[str] = []
            for word in [*words, "&&"]:
                if word in ("|", "&&", ";", ">"):
                    yield str(block), part
                    part = []
                else:
                    part.append(word)


COMMANDS = [(place, words) for place, words in _commands() if words]


@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=lambda value: str(value)[:60])
def test_commands_in_docs_are_parsed(place, words):
    program, *arguments = words
    if program == "penstock":
        _parse(typer.main.get_command(app), program, arguments)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in arguments if "=" not in word]
        assert [t for t in targets if not re.search(rf"(?m)^{t}:", makefile)] == []
    else:
        assert program in OTHER_PROGRAMS or program.startswith(".venv/bin/"), place


def _parse(command: Any, name: str, arguments: list[str]) -> None:
    """Parse a command like the command line, but do not run it. Raises the error that users see."""
    try:
        context = command.make_context(name, list(arguments))
    except typer.Exit:
        return  # --help and --version
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        command_name, sub, left = command.resolve_command(context, rest)
        _parse(sub, command_name, left)


def _all_commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
        return
    for name, sub in subcommands.items():
        yield from _all_commands(sub, f"{path} {name}")


def test_every_command_is_on_the_page_of_commands():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for path, _ in _all_commands(typer.main.get_command(app), "penstock"):
        *group, last = path.split()
        assert re.search(rf"{' '.join(group)}.*\b{last}\b", text), path


def test_options_in_docs_exist():
    known = {"--debug", "--version", "--help", *FOREIGN_OPTIONS}
    benchmarks = (ROOT / "bench" / "run.py").read_text(encoding="utf-8")
    known.update(re.findall(r'add_argument\("(--[a-z-]+)"', benchmarks))
    for _, command in _all_commands(typer.main.get_command(app), "penstock"):
        for parameter in command.params:
            known.update((*parameter.opts, *parameter.secondary_opts))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        assert named <= known, page


def test_every_option_of_run_is_on_the_page_of_commands():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = dict(_all_commands(typer.main.get_command(app), "penstock"))
    for name in ("penstock run", "penstock dry-run"):
        for parameter in commands[name].params:
            longest = max(parameter.opts, key=len)
            assert not longest.startswith("--") or longest in text, longest


# -- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", _of("yaml"), ids=str)
def test_spec_files_in_docs_are_valid(block, tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert spec_of(read_document(file)).model_fields_set


@pytest.mark.parametrize("block", _of("json"), ids=str)
def test_json_in_docs_is_valid(block):
    assert json.loads(block.text)


def test_every_session_default_is_on_the_page_of_settings():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    defaults = session_defaults("local[4]", {}, "file:///s")
    missing = []
    for key in defaults:
        short = "..." + key.removeprefix("spark.sql.streaming.")
        if not (f"`{key}`" in text or f"`{short}`" in text):
            missing.append(key)
    assert set(missing) <= {
        "spark.master",
        "spark.sql.redaction.options.regex",  # spark.redaction.regex and `url`
        "spark.ui.showConsoleProgress",
    }


def test_environment_variables_in_docs_are_read_by_the_source():
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "penstock").rglob("*.py")
    )
    for page in PAGES:
        for name in re.findall(r"\bPENSTOCK_[A-Z_]+", page.read_text(encoding="utf-8")):
            assert name in source, f"{page.name}: {name}"


# -- links --------------------------------------------------------------------------------------


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    anchors = set()
    for title in re.findall(r"(?m)^#+ (.+)$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_docs_have_a_target(page):
    dead = []
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = page if not file else (page.parent / file).resolve()
        if not place.exists() or (anchor and anchor not in _anchors(place)):
            dead.append(target)
    assert dead == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()
