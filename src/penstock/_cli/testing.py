"""`test`: the tests of a project."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import SetupError, SpecError


def register(app: typer.Typer) -> None:
    app.command(
        "test",
        epilog="Examples: penstock test | penstock test shop | penstock test shop -- -k orders -x",
    )(test)


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
    if str(project).startswith("-"):  # `penstock test -- -x`: the project is left out
        arguments = [str(project), *(arguments or [])]
        project = Path()
    tests = project / "tests"
    if not tests.is_dir():
        raise SpecError(
            "TESTS_NOT_FOUND",
            f"the project {project.resolve()} has no folder `tests`",
            hint="write one, as `penstock init` does",
        )
    import pytest

    # This process has imported penstock, whose assertions pytest would rewrite, as it has a plugin.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main(["--rootdir", str(project), *quiet, str(tests), *(arguments or [])]))
