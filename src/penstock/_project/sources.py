"""Which files are the source of a pipeline."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from penstock._model.pipeline import PipelineSettings
from penstock._project.spec import nearest_file
from penstock.errors import SpecError

_LATER = {".sql": "SQL", ".ipynb": "notebooks", ".scala": "Scala", ".r": "R"}
_API_IMPORT = re.compile(
    r"^\s*(?:import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*(?:penstock|dlt|pyspark\.pipelines)\b(?!\.)"
    r"|from\s+(?:penstock|dlt|pyspark\.pipelines)\s+import\b"
    r"|from\s+pyspark\s+import\s+(?:\([^)]*|[^\n]*)\bpipelines\b)",
    re.MULTILINE,
)


def find_sources(settings: PipelineSettings) -> tuple[Path, ...]:
    """Return the pipeline's source files: in the order of the patterns, each file once.

    Without patterns these are the `*.py` of the project's folder that import the API.

    Raises:
        SpecError: A pattern is not allowed or matches nothing, or a file is of another language.
    """
    root = Path(settings.root)
    if not settings.source_patterns:
        return _pipeline_files(root)
    found: dict[Path, None] = {}
    for pattern in settings.source_patterns:
        found.update(dict.fromkeys(_matches(root, pattern)))
    return tuple(found)


def imports_api(text: str) -> bool:
    """Whether the text of a Python file imports the declarative API, under any of its names."""
    return _API_IMPORT.search(text) is not None


def _pipeline_files(root: Path) -> tuple[Path, ...]:
    files = [
        path
        for path in sorted(root.glob("*.py"))
        if path.is_file()
        and not path.name.startswith(("test_", "conftest."))
        and imports_api(path.read_text(encoding="utf-8", errors="replace"))
    ]
    if not files:
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"{root} has no pipeline: no spec file here or above, and no Python file that imports "
            "penstock, dlt or pyspark.pipelines",
            hint="name a file (`penstock run my_pipeline.py`), or make a project with "
            "`penstock init NAME`",
        )
    return tuple(files)


def _matches(root: Path, pattern: str) -> Iterator[Path]:
    text = pattern.strip()
    is_folder = text == "**" or text.endswith("/**")
    place = text.removesuffix("**") if is_folder else text
    if not text or any(letter in "*?[" for letter in place):
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source pattern `{pattern}` is not allowed",
            hint="write the path of a file, or a folder that ends in `/**`",
        )
    path = Path(os.path.normpath(root / place))
    if not path.exists():
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"there is no {'folder' if is_folder else 'file'} {path}, which the pattern "
            f"`{pattern}` names",
            hint=nearest_file(path),
        )
    if is_folder:
        yield from _files_below(path, pattern)
    elif path.is_dir():
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source `{pattern}` is a folder",
            hint=f"write `{text.rstrip('/')}/**`",
        )
    elif path.suffix == ".py":
        yield path
    else:
        raise _not_supported(path)


def _files_below(folder: Path, pattern: str) -> Iterator[Path]:
    if not folder.is_dir():
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source pattern `{pattern}` ends in `/**`, but {folder} is a file",
            hint="leave the `/**` out",
        )
    empty = True
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in sorted(files):
            path = Path(current, name)
            if name.startswith("."):
                continue
            if path.suffix.lower() in _LATER:
                raise _not_supported(path)
            if path.suffix == ".py":
                empty = False
                yield path
    if empty:
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"the source pattern `{pattern}` matches no Python file: {folder} has none",
        )


def _not_supported(path: Path) -> SpecError:
    language = _LATER.get(path.suffix.lower())
    subject = f"{language} as a source" if language else f"a source that ends in `{path.suffix}`"
    return SpecError(
        "SOURCE_NOT_SUPPORTED",
        f"{path}: {subject} is not supported" + (" yet" if language else ""),
        hint="sources are Python files (`.py`); move others out of the folder",
    )
