"""Which files are the source of a pipeline."""

import ast
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from penstock._model.pipeline import PipelineSettings
from penstock._project.databricks.magics import Cell, CellKind
from penstock._project.databricks.notebook import (
    SUFFIXES,
    cells_or_none,
    find_notebook,
    find_notebook_of_workspace,
)
from penstock._project.findings import without_sql_comments
from penstock._project.locations import nearest_file
from penstock._project.query_starts import starts_queries
from penstock._project.workspace_files import NO_FOLDERS, is_searched
from penstock.errors import SpecError

# Sources on Databricks that are not run here.
_OTHER_LANGUAGES = {".scala": "Scala", ".r": "R"}
_API_IMPORT = re.compile(
    r"^\s*(?:import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*(?:penstock|dlt|pyspark\.pipelines)\b(?!\.)"
    r"|from\s+(?:penstock|dlt|pyspark\.pipelines)\s+import\b"
    r"|from\s+pyspark\s+import\s+(?:\([^)]*|[^\n]*)\bpipelines\b)",
    re.MULTILINE,
)
# A mistyped import in a file that is not valid Python must not hide its datasets.
_API_USE = re.compile(r"^(?:@(?:dlt|dp)\.\w|(?:dlt|dp)\.create_)", re.MULTILINE)
# An import of the API under a misspelt name, in a file that uses its decorators.
_MISSPELT_IMPORT = re.compile(
    r"^(?:import\s+(?!dlt\b)[dlt]{2,4}\b|from\s+pyspark\s+import\s+pipe\w+)"
    r"[\s\S]*^@\w+\.(?:table|view|materialized_view|temporary_view|append_flow|expect\w*)\b",
    re.MULTILINE,
)
_DLT_IMPORT = re.compile(r"^\s*(?:import|from)\s+dlt\b", re.MULTILINE)
_OWN_IMPORT = re.compile(r"^\s*(?:import|from)\s+penstock\b", re.MULTILINE)
_MAIN = re.compile(r"""^if\s+__name__\s*==\s*['"]__main__['"]""", re.MULTILINE)
_SQL_DECLARATION = re.compile(
    r"\bCREATE\s+(?:OR\s+(?:REFRESH|REPLACE)\s+)?(?:(?:PRIVATE|TEMP|TEMPORARY)\s+)*"
    r"(?:STREAMING|INCREMENTAL|LIVE|MATERIALIZED|FLOW)\b"
    r"|\bCREATE\s+(?:OR\s+(?:REFRESH|REPLACE)\s+)?(?:(?:PRIVATE|TEMP|TEMPORARY)\s+)*TABLE\b"
    r"[^;]*\bFLOW\s+(?:AUTO|INSERT|REPLACE)\b"
    r"|\b(?:APPLY\s+CHANGES|AUTO\s+CDC)\s+(?:ONCE\s+)?INTO\b",
    re.IGNORECASE,
)
_SQL_VIEW = re.compile(r"\bCREATE\s+(?:TEMPORARY\s+)?VIEW\b", re.IGNORECASE)
# Many notebooks and ad-hoc files create temporary views for their own queries. `CREATE OR REPLACE
# VIEW` is a statement of warehouses, too.
_SQL_QUERY = re.compile(r"\s*(?:SELECT|WITH|INSERT|SHOW|DESCRIBE)\b", re.IGNORECASE)
_SQL_VIEW_OF_FILE = re.compile(
    r"\bCREATE\s+(?:(?:OR\s+(?:REFRESH|REPLACE)\s+)?TEMP(?:ORARY)?|OR\s+REFRESH)\s+VIEW\b",
    re.IGNORECASE,
)
# Where projects keep their sources, if neither a spec file nor the root has any.
_CONVENTIONAL = ("transformations", "src", "pipelines", "notebooks", "dlt", "sql")
_NO_SOURCE = re.compile(r"(?:test_.*|.*_test|conftest|setup)\.py$")
_MOST_FOLDERS = 2000


def find_sources(settings: PipelineSettings) -> tuple[Path, ...]:
    """Return the pipeline's source files: in the order of the patterns, each file once.

    A pattern is a file, a notebook without its extension, a folder that ends in `/**`, or has
    wildcards. Folders and wildcards match only files that can be sources: no other files, no
    tests, no hidden files.

    Without patterns these are the files that declare something: in the project's folder, then in
    sub-folders with the usual names, then anywhere below; if there are none, those of the project's
    folder that start streaming queries themselves.

    Raises:
        SpecError: A pattern is not allowed or matches nothing, or a file is of another language.
    """
    root = Path(settings.root)
    if not settings.source_patterns:
        return _pipeline_files(root)
    files = (path for pattern in settings.source_patterns for path in _matches(root, pattern))
    return tuple(dict.fromkeys(files))


def declaring_files(folder: Path) -> tuple[Path, ...]:
    """Return the files below a folder that declare something."""
    files = _files_below(folder, most_folders=_MOST_FOLDERS)
    return tuple(path for path in files if _declares(path))


def imports_api(text: str) -> bool:
    """Whether a Python file imports the declarative API under any of its names."""
    return _API_IMPORT.search(text) is not None


def has_main_code(path: Path) -> bool:
    """Whether a source has code for `__main__`, the name under which Databricks runs all sources.

    Spark imports its sources, so that code counts only if the file imports `dlt`, and not
    `penstock`, which Databricks does not have: such code may call `penstock.run`.
    """
    cells = cells_or_none(path) or ()
    text = "\n".join(cell.text for cell in cells if cell.kind is CellKind.PYTHON)
    is_of_databricks = _DLT_IMPORT.search(text) is not None and _OWN_IMPORT.search(text) is None
    return is_of_databricks and _MAIN.search(text) is not None


def _files_below(folder: Path, *, most_folders: int | None = None) -> Iterator[Path]:
    """Yield the files of a folder that may be sources: its own files before those of sub-folders.

    The search ends after `most_folders`.
    """
    for number, (current, folders, files) in enumerate(os.walk(folder)):
        if most_folders is not None and number >= most_folders:
            return
        folders[:] = sorted(name for name in folders if is_searched(Path(current, name)))
        for name in sorted(files):
            if _is_searched_file(name) and name.lower().endswith(SUFFIXES):
                yield Path(current, name)


# -- without patterns ---------------------------------------------------------------------------


def _pipeline_files(root: Path) -> tuple[Path, ...]:
    """The declaring files of the first location that has any."""
    here = [path for path in sorted(root.iterdir()) if _is_candidate(path)]
    usual = (path for name in _CONVENTIONAL for path in _files_below(root / name))
    anywhere = _files_below(root, most_folders=_MOST_FOLDERS)
    for place in (here, usual, anywhere):
        if files := tuple(path for path in place if _declares(path)):
            return files
    if jobs := tuple(path for path in here if starts_queries(cells_or_none(path) or ())):
        return jobs
    raise SpecError(
        "SOURCE_NOT_FOUND",
        f"{root} has no pipeline: no spec file or bundle here or above declares one, no Python "
        "file or notebook imports penstock, dlt or pyspark.pipelines, no SQL creates a dataset, "
        "and no file of the folder itself starts streaming queries",
        hint="name a file (`penstock run my_pipeline.py`), or create a project with "
        "`penstock init NAME`",
    )


def _is_candidate(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES and _is_searched_file(path.name)


def _declares(path: Path) -> bool:
    cells = cells_or_none(path)
    if cells is None:  # loading it reports the error
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return isinstance(error, PermissionError)
        suffix = path.suffix.lower()
        if suffix == ".ipynb":  # its lines are strings of JSON
            text = text.replace('"', "\n")
        kind = CellKind.SQL if suffix == ".sql" else CellKind.PYTHON
        cells = [Cell(kind=kind, text=text, file=str(path))]
    return declares(cells)


def declares(cells: Sequence[Cell]) -> bool:
    """Whether cells of a file import the declarative API, or have SQL that creates a dataset.

    A file that uses the API and is not valid Python, or that misspells its import, counts, too:
    loading it reports the error.

    A view is a dataset unless the file starts streaming queries: it is then the job's own.
    """
    python = [cell.text for cell in cells if cell.kind is CellKind.PYTHON]
    if any(imports_api(text) or _is_broken_use(text) for text in python):
        return True
    sql = [without_sql_comments(cell.text) for cell in cells if cell.kind is CellKind.SQL]
    if any(_SQL_DECLARATION.search(text) for text in sql):
        return True
    is_queried = any(_SQL_QUERY.match(part) for text in sql for part in text.split(";"))
    if not python and not is_queried and any(_SQL_VIEW_OF_FILE.search(text) for text in sql):
        return True
    return any(_SQL_VIEW.search(text) for text in sql) and not starts_queries(cells)


def _is_broken_use(text: str) -> bool:
    if _MISSPELT_IMPORT.search(text) is not None:
        return True
    if _API_USE.search(text) is None:
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return True
    return False


# -- patterns -----------------------------------------------------------------------------------


def _matches(root: Path, pattern: str) -> Iterable[Path]:
    text = pattern.strip()
    if not text:
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source pattern {pattern!r} is blank",
            hint="write the path of a file, or a folder that ends in `/**`",
        )
    is_folder = text == "**" or text.endswith("/**")
    place = text.removesuffix("**") if is_folder else text
    path = Path(os.path.normpath(root / place))
    if glob.has_magic(place) and not path.exists():
        return _wildcard_matches(root, text)
    if is_folder:
        return _folder_matches(path, pattern)
    return [_named(root, path, pattern)]


def _folder_matches(folder: Path, pattern: str) -> list[Path]:
    if not folder.exists():
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"there is no folder {folder}, which the pattern `{pattern}` names",
            hint=nearest_file(folder),
        )
    if not folder.is_dir():
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source pattern `{pattern}` ends in `/**`, but {folder} is a file",
            hint="remove `/**`",
        )
    files = list(_files_below(folder))
    if not files:
        raise _nothing_matches(pattern, f"{folder} has none")
    return files


def _wildcard_matches(root: Path, pattern: str) -> list[Path]:
    # Not Path.glob: patterns may be absolute, or lead outside with `..`.
    full = os.path.join(glob.escape(str(root)), pattern)  # noqa: PTH118
    names = glob.glob(full, recursive=True)  # noqa: PTH207
    matched = [Path(os.path.normpath(name)) for name in names]
    files = {
        path
        for path in matched
        if _is_candidate(path) and not NO_FOLDERS.intersection(path.parts[len(root.parts) :])
    }
    if not files:
        if others := [path for path in matched if path.suffix.lower() in _OTHER_LANGUAGES]:
            raise _not_supported(min(others))
        raise _nothing_matches(pattern, f"searched from {root}")
    # As for a folder: its own files first.
    return sorted(files, key=lambda path: (path.parent, path.name))


def _named(root: Path, path: Path, pattern: str) -> Path:
    if path.is_file() and path.suffix.lower() not in SUFFIXES:
        raise _not_supported(path)
    notebook = find_notebook(path)
    if notebook is None and pattern.strip().startswith("/"):
        notebook = find_notebook_of_workspace(pattern.strip(), root)
    if notebook is not None:
        return notebook
    if path.is_dir():
        raise SpecError(
            "SOURCE_PATTERN_INVALID",
            f"the source `{pattern}` is a folder",
            hint=f"write `{pattern.strip().rstrip('/')}/**`",
        )
    raise SpecError(
        "SOURCE_NOT_FOUND",
        f"there is no file {path}, which the pattern `{pattern}` names",
        hint=nearest_file(path),
    )


def _is_searched_file(name: str) -> bool:
    return not name.startswith(".") and _NO_SOURCE.match(name) is None


def _nothing_matches(pattern: str, why: str) -> SpecError:
    return SpecError(
        "SOURCE_NOT_FOUND",
        f"the source pattern `{pattern}` matches no source file: {why}",
        hint=f"source files end in {', '.join(SUFFIXES)}; tests and hidden files are ignored",
    )


def _not_supported(path: Path) -> SpecError:
    language = _OTHER_LANGUAGES.get(path.suffix.lower())
    subject = f"{language} as a source" if language else f"a source that ends in `{path.suffix}`"
    return SpecError(
        "SOURCE_NOT_SUPPORTED",
        f"{path}: {subject} is not supported",
        hint=f"sources end in {', '.join(SUFFIXES)}; export a notebook as source file or as .ipynb",
    )
