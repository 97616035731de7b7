"""`init`: an example project, with a rule that some rows violate; `test`: runs its tests."""

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from penstock._cli import options
from penstock.errors import SetupError, SpecError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_TEMPLATE_SUFFIX = ".tmpl"

app = typer.Typer()


@app.command("init", epilog="Examples: penstock init shop | penstock init shop --output json")
def init(
    name: Annotated[
        str, typer.Argument(help="Name of the project and its folder.", metavar="NAME")
    ],
    output: options.Output = "text",
) -> None:
    """Write a small example project into the new folder NAME."""
    written = write_project(Path.cwd(), name)
    if output == "json":
        files_written = [str(path.relative_to(Path.cwd())) for path in written]
        options.print_json({"project": name, "files": files_written})
        return
    for path in written:
        print(f"  {path.relative_to(Path.cwd())}")
    print(f"{name} is ready. Next:\n")
    for command in (f"cd {name}", "penstock run", "penstock quarantine show silver"):
        print(f"  {command}")


def write_project(parent: Path, name: str) -> list[Path]:
    """Write the example project into a new folder; returns its files, sorted."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            "INVALID_PROJECT_NAME",
            f"{name!r} is not a valid project name",
            hint="start with a letter; use letters, digits, '-' and '_', at most 63 characters",
        )
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(
            "PROJECT_EXISTS",
            f"{folder} already exists and is not an empty folder",
            hint="choose another name, or remove it first",
        )
    template = files("penstock._cli").joinpath("templates", "init")
    try:
        return sorted(_copy(template, folder, name))
    except OSError as error:
        raise SetupError(
            "PROJECT_NOT_WRITABLE",
            f"the project cannot be written to {folder}: {error.strerror or error}",
            hint="make the folder writable, or free some disk space",
        ) from error


def _copy(source: Traversable, target: Path, name: str) -> list[Path]:
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for item in source.iterdir():
        if item.is_dir():
            written += _copy(item, target / item.name, name)
            continue
        path = target / item.name.removesuffix(_TEMPLATE_SUFFIX)
        text = item.read_text(encoding="utf-8")
        if item.name.endswith(_TEMPLATE_SUFFIX):
            text = Template(text).substitute(name=name)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


@app.command(
    "test",
    epilog="Examples: penstock test | penstock test shop | penstock test shop -- -k orders -x",
)
def test(
    project: Annotated[
        Path, typer.Argument(help="Folder of the project.", metavar="PROJECT")
    ] = Path(),
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed to pytest, after `--`.", metavar="ARGS")
    ] = None,
) -> int:
    """Run the tests in PROJECT/tests with pytest; see docs/testing.md for their fixtures."""
    if find_spec("pytest") is None:
        raise SetupError(
            "PYTEST_NOT_FOUND", "pytest is not installed", hint="run `pip install pytest`"
        )
    if str(project).startswith("-"):  # `penstock test -- -x`: without a project
        arguments = [str(project), *(arguments or [])]
        project = Path()
    tests = project / "tests"
    if not tests.is_dir():
        raise SpecError(
            "TESTS_NOT_FOUND",
            f"the project {project.resolve()} has no `tests` folder",
            hint="create one; `penstock init` writes an example",
        )
    import pytest

    # pytest rewrites the assertions of its plugins, but penstock is already imported.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main(["--rootdir", str(project), *quiet, str(tests), *(arguments or [])]))
