"""The installed wheel: `init` and `run` do not need the repository."""

import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]


def command(*arguments: str | Path, cwd: Path) -> str:
    """The output of a command; the repository is not on its path."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"NO_COLOR": "1", "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def install_wheel(folder: Path, *options: str) -> Path:
    """Make an empty environment with the wheel and return its folder of commands."""
    command(
        sys.executable,
        *("-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"),
        cwd=REPOSITORY,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    command(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    commands = folder / "env/bin"
    pip = (sys.executable, "-m", "pip", "--python", commands / "python")
    command(*pip, "install", "--quiet", *options, wheel, cwd=folder)
    return commands


def new_project_runs(commands: Path, folder: Path) -> None:
    where = command(
        commands / "python", "-c", "import penstock; print(penstock.__file__)", cwd=folder
    )
    assert where.startswith(str(commands.parent)), where
    command(commands / "penstock", "init", "fresh", cwd=folder)
    command(commands / "penstock", "run", cwd=folder / "fresh")
    quarantine = command(commands / "penstock", "quarantine", "list", cwd=folder / "fresh")
    assert re.search(r"silver.*positive_amount", quarantine, re.DOTALL), quarantine


def test_a_new_project_runs_from_the_wheel(tmp_path: Path) -> None:
    commands = install_wheel(tmp_path, "--no-deps")
    # Use the libraries of this environment without its link to the sources: Python does not read
    # .pth files in a folder that a .pth file adds.
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    new_project_runs(commands, tmp_path)


@pytest.mark.long
def test_new_project_runs_from_the_wheel_with_its_libraries(
    tmp_path: Path,
) -> None:
    new_project_runs(install_wheel(tmp_path), tmp_path)
