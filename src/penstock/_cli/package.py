"""`package`: a file with the project, Penstock and their packages, for spark-submit."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import penstock
from penstock._cli import options
from penstock._cli.masked_output import print_as_is
from penstock._display.text import size
from penstock._model.extras import import_extra
from penstock._model.quantity import plural
from penstock.errors import SetupError, SpecError

if TYPE_CHECKING:
    from penstock._model.pipeline import PipelineSettings

# Provided by the cluster: spark-submit and the executors have them, with the jars.
_NOT_PACKED = ("pyspark", "py4j")
_NO_EXTRAS = {"dev", "bench"}
_EXTRA = re.compile(r"extra == ['\"](?P<name>[^'\"]+)['\"]")
_NAME_END = re.compile(r"[^\w.-]")
_SHOWN_LINES = 15

app = typer.Typer()


@app.command(
    "package",
    epilog="Examples: penstock package | penstock package shop --file dist/shop.py | "
    "penstock package --target prod -r requirements.txt --output json",
)
def package(
    path: options.ProjectPath = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="File to write; must end in .py, as spark-submit requires. "
            "Default: .penstock/<name of the project>.py",
        ),
    ] = None,
    requirements: Annotated[
        list[Path] | None,
        typer.Option(
            "-r",
            "--requirement",
            metavar="FILE",
            help="Requirements of the project; may be repeated. Default: its requirements.txt.",
        ),
    ] = None,
    pipeline: options.Pipeline = None,
    target: options.Target = None,
    compress: Annotated[
        bool, typer.Option("--compress/--no-compress", help="Compress the file.")
    ] = True,
    output: options.Output = "text",
) -> None:
    """Write the project, Penstock and their packages into one file for spark-submit.

    Packages are those of the current virtual environment, in its versions.
    """
    import_extra("pex", extra="package", feature="penstock package")
    from penstock._project.packed import PROJECT_FOLDER

    load = partial(_settings, pipeline=pipeline, target=target)
    settings = load(path)
    root = Path(settings.root)
    file = (file or root / ".penstock" / f"{_file_name(settings.name)}.py").absolute()
    if file.suffix != ".py":
        raise typer.BadParameter("must end in .py, as spark-submit requires", param_hint="--file")
    _check_writable(file.parent)
    with tempfile.TemporaryDirectory(prefix="penstock-package-") as scratch:
        sources = Path(scratch) / "sources"
        _copy(Path(penstock.__file__).parent, sources / "penstock", not_packed=())
        copy = sources / PROJECT_FOLDER
        packed = _copy_project(settings, copy, file, load)
        files = sorted(str(item.relative_to(copy)) for item in copy.rglob("*") if item.is_file())
        arguments = [*_requirements(settings, requirements), "--sources-directory", str(sources)]
        # Also the name, if it is derived from the project's folder, which the copy changes.
        name = None if packed.name == settings.name else settings.name
        chosen = {"PENSTOCK_PIPELINE": pipeline, "PENSTOCK_TARGET": target, "PENSTOCK_NAME": name}
        for variable, value in chosen.items():
            arguments += ["--inject-env", f"{variable}={value}"] if value else []
        arguments += ["--compression-level", "1"] if compress else ["--no-compress"]
        draft = Path(scratch) / "packed.py"
        _pex(*arguments, "--output-file", str(draft), cwd=root)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        shutil.move(draft, beside)
        beside.replace(file)
    packages = _packages(file)
    if output == "json":
        body = {"file": str(file), "bytes": file.stat().st_size, "files": files}
        # Not masked: packages such as `tokenizers==1.0` look like secrets.
        print_as_is(json.dumps({**body, "packages": packages}, indent=2))
        return
    counts = f"{plural(len(files), 'file')} of the project, {plural(len(packages), 'package')}"
    print(f"{file}: {size(file.stat().st_size)}, {counts}")
    print(f"run it: spark-submit {file}")


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SetupError(
            "PACKAGE_FAILED",
            f"the folder {folder} is not writable: {error.strerror}",
            hint="write the file elsewhere with --file",
        ) from error


def _settings(path: Path | None, *, pipeline: str | None, target: str | None) -> "PipelineSettings":
    from penstock._project.spec import load_settings

    # Settings from the project's files only: the environment differs where the file will run.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return load_settings(Path.cwd(), source=path, pipeline=pipeline, target=target, environ=environ)


def _copy_project(
    settings: "PipelineSettings", copy: Path, file: Path, load: Callable[[Path], "PipelineSettings"]
) -> "PipelineSettings":
    """Copy the project; returns the settings of the copy.

    Raises:
        SpecError: PROJECT_NOT_PACKABLE: The copy is not complete.
    """
    from penstock._project.sources import find_sources
    from penstock._tables.files import local_path

    root, storage = Path(settings.root), local_path(settings.storage)
    _copy(root, copy, not_packed=(file, *([storage] if storage is not None else [])))
    wanted = [os.path.relpath(source, root) for source in find_sources(settings)]
    imported = [os.path.relpath(folder, root) for folder in settings.import_roots]
    outside = [name for name in (*wanted, *imported) if ".." in name]
    if not outside:
        packed = load(copy)
        in_copy = {os.path.relpath(source, copy.resolve()) for source in find_sources(packed)}
        outside = sorted(set(wanted) - in_copy)
        if not outside:
            return packed
    raise SpecError(
        "PROJECT_NOT_PACKABLE",
        f"{', '.join(outside)} would not be in the file",
        hint=f"move it below {root}; hidden files and folders are not packed",
    )


def _copy(folder: Path, target: Path, *, not_packed: Sequence[Path]) -> None:
    def is_ignored(item: Path) -> bool:
        if item.name.startswith(".") or item.name in ("__pycache__", "node_modules"):
            return True
        if item.is_dir():  # tables and virtual environments
            marks = ("_delta_log", "pyvenv.cfg")
            return item in not_packed or any((item / mark).exists() for mark in marks)
        # Sockets and pipes cannot be copied; an earlier package would double the size.
        is_package = item.suffix == ".py" and zipfile.is_zipfile(item)
        return item in not_packed or not item.is_file() or is_package

    def ignored(parent: str, names: list[str]) -> list[str]:
        return [name for name in names if is_ignored(Path(parent, name))]

    shutil.copytree(folder, target, ignore=ignored, ignore_dangling_symlinks=True)


def _requirements(settings: "PipelineSettings", files: Sequence[Path] | None) -> Iterator[str]:
    """Requirements for pex: those of Penstock, its installed extras, and the project."""
    from penstock._project.packages import is_installed

    for requirement in requires("penstock") or []:
        extra = _EXTRA.search(requirement)
        text = requirement.partition(";")[0].strip()
        name = _NAME_END.split(text)[0]
        if extra is None or (extra["name"] not in _NO_EXTRAS and is_installed(name)):
            yield text
    yield from settings.dependencies
    of_project = Path(settings.root) / "requirements.txt"
    for file in files or ([of_project] if of_project.is_file() else []):
        yield from ("-r", str(file.absolute()))
    for name in _NOT_PACKED:
        yield from ("--exclude", name)


def _pex(*arguments: str, cwd: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "pex", "--venv-repository", sys.executable]
    command += ["--pre", "--venv", "--inherit-path=fallback", "--non-hermetic-venv-scripts"]
    command += ["--entry-point", "penstock._cli.packed:main"]
    command += ["--python-shebang", f"#!/usr/bin/env {version}", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:]
        raise SetupError(
            "PACKAGE_FAILED",
            "pex could not write the file" + "".join(f"\n    {line}" for line in lines),
            hint="packages are taken from the current virtual environment: install what is missing",
        )


def _packages(file: Path) -> list[str]:
    with zipfile.ZipFile(file) as content:
        info = json.loads(content.read("PEX-INFO"))
    wheels = (name.split("-")[:2] for name in info["distributions"])
    return sorted(f"{name}=={version}" for name, version in wheels)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "pipeline"
