"""Source files as cells: plain Python and SQL, notebook sources of Databricks, and `.ipynb`.

The suffix of a file and, in a `.py` or `.sql`, the header of a notebook source decide what it is.
Reading executes nothing.
"""

import codecs
import json
import re
from importlib.util import decode_source
from itertools import groupby
from pathlib import Path
from typing import Any

from penstock._model.origin import source_location
from penstock._project.databricks.magics import Cell, CellKind, cells_of, code_cells
from penstock.errors import DefinitionError, PenstockError

SUFFIXES = (".py", ".sql", ".ipynb")
"""The suffixes of sources, in the order in which they are tried for a name without a suffix."""

_CELL_NAME = re.compile(r"\[cell \d+\]$")
_RUN_ARGUMENT = re.compile(
    r"""\s\$([\w.\-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S*))"""
)
_LANGUAGES = {"python": CellKind.PYTHON, "ipython": CellKind.PYTHON, "sql": CellKind.SQL}
# Where the metadata of a notebook names its language.
_OF_NOTEBOOK = (
    ("application/vnd.databricks.v1+notebook", "language"),
    ("language_info", "name"),
    ("kernelspec", "language"),
)


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a source file to run, in order. Cells of prose are left out."""
    match path.suffix.lower():
        case ".ipynb":
            return _jupyter_cells(path)
        case ".sql":
            text, language, marker = _sql_text(path), CellKind.SQL, "--"
        case _:
            text, language, marker = _python_text(path), CellKind.PYTHON, "#"
    if is_notebook_source(text):
        return _script_cells(text, str(path), language, re.escape(marker))
    return [Cell(kind=language, text=text, file=str(path))] if text.strip() else []


def cells_or_none(path: Path) -> list[Cell] | None:
    """As `read_cells`, but `None` if it fails: executing the file reports the error."""
    try:
        return read_cells(path)
    except (PenstockError, SyntaxError, ValueError, OSError):
        return None


def is_notebook_source(text: str) -> bool:
    """Whether text is a notebook that was exported as a script.

    Databricks requires the header on the first line; here it may follow other comments, such as a
    licence.
    """
    for line in text.splitlines():
        words = line.strip().lstrip("\ufeff")
        if re.fullmatch(r"(#|--)\s*Databricks notebook source", words):
            return True
        if words and not words.startswith(("#", "--")):
            return False
    return False


def file_of_cell(filename: str) -> str:
    return _CELL_NAME.sub("", filename)


def find_notebook(place: Path) -> Path | None:
    """Return the source file of a path with or without its suffix; `None` if it does not exist."""
    if place.suffix.lower() in SUFFIXES and place.is_file():
        return place
    named = (place.with_name(place.name + suffix) for suffix in SUFFIXES)
    return next((path for path in named if path.is_file()), None)


def find_notebook_of_workspace(place: str, root: Path) -> Path | None:
    """Return the file of the project that an absolute path in a Databricks workspace means.

    For `/Repos/someone/shop/notebooks/bronze`, it is the longest suffix that exists in the project.
    """
    parts = [part for part in place.split("/") if part]
    notebooks = (find_notebook(root.joinpath(*parts[start:])) for start in range(len(parts)))
    return next(filter(None, notebooks), None)


def find_run_target(target: str, caller: Path, root: Path) -> Path | None:
    """Return the notebook that a `%run` names, or `None`.

    The path is relative to the folder of the caller, or a path of a workspace.
    """
    if not target:
        return None
    if target.startswith("/"):
        return find_notebook(Path(target)) or find_notebook_of_workspace(target, root)
    # Resolved: it must be equal to the path under which the same file is a source.
    return find_notebook((caller.parent / target).resolve())


def run_arguments(text: str) -> tuple[str, dict[str, str]]:
    """Return the path of `%run path $name="value"`, and the values of its widgets."""
    values = {name: "".join(forms) for name, *forms in _RUN_ARGUMENT.findall(text)}
    return _RUN_ARGUMENT.sub("", text).strip().strip("\"'"), values


# -- text ---------------------------------------------------------------------------------------


def _python_text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return decode_source(data)
    except (SyntaxError, UnicodeDecodeError):
        _decoded(path, data, "utf-8")
        compile(data, str(path), "exec", dont_inherit=True)  # raises with the reason and line
        raise


def _sql_text(path: Path) -> str:
    data = path.read_bytes()
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = _decoded(path, data, "utf-16" if is_utf16 else "utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(path: Path, data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DefinitionError(
            "SOURCE_INVALID",
            f"{path.name} is not UTF-8 text",
            origin=source_location(str(path), line),
            hint="save it as UTF-8",
        ) from None


# -- notebook sources ---------------------------------------------------------------------------


def _script_cells(text: str, file: str, language: CellKind, marker: str) -> list[Cell]:
    separator = re.compile(rf"{marker}\s*COMMAND\s*-{{5,}}\s*")
    magic = re.compile(rf"{marker}\s?MAGIC(?:[ \t](.*)|\s*)")
    cells: list[Cell] = []
    code: list[str] = []
    begin = 1  # the line of the first of `code`

    def line_kind(line: str) -> str:
        return "end" if separator.fullmatch(line) else "magic" if magic.fullmatch(line) else "code"

    for kind, group in groupby(text.split("\n"), line_kind):
        lines = list(group)
        parsed: list[Cell] = []
        if kind == "magic":
            magics = [magic.sub(r"\1", line) for line in lines]
            parsed = cells_of(magics, file=file, line=begin + len(code), language=language)
        if kind == "code":
            code += lines
        elif kind == "magic" and all(cell.kind is CellKind.PACKAGES for cell in parsed):
            code += [""] * len(lines)  # `%pip` does not end the code around it
        else:
            cells += code_cells(code, file, begin, language)
            begin += len(code) + len(lines)
            code = []
        cells += parsed
    return cells + code_cells(code, file, begin, language)


# -- .ipynb -------------------------------------------------------------------------------------


def _jupyter_cells(path: Path) -> list[Cell]:
    content = _read_json(path)
    default = _language(content.get("metadata"), *_OF_NOTEBOOK) or CellKind.PYTHON
    cells: list[Cell] = []
    for number, cell in enumerate(content["cells"], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source") or ""
        text = source if isinstance(source, str) else "".join(map(str, source))
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        own = _language(cell.get("metadata"), ("vscode", "languageId"))
        name = f"{path}[cell {number}]"
        cells += cells_of(lines, file=name, line=1, language=own or default)
    return cells


def _read_json(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if not data.strip():
        return {"cells": []}  # a new notebook that was never opened
    line, problem = 1, "is not a notebook"
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except RecursionError:
        problem = "is nested too deeply"
    except json.JSONDecodeError as error:
        line, problem = error.lineno, f"is not JSON: {error.msg}"
    else:
        if isinstance(content, dict):
            if isinstance(content.get("cells"), list):
                return content
            if "worksheets" in content:
                problem = "is a notebook of an old format"
    raise DefinitionError(
        "SOURCE_INVALID",
        f"{path.name} {problem}",
        origin=source_location(str(path), line),
        hint="save it as a notebook of format 4 (`jupyter nbconvert --to notebook FILE`)",
    )


def _language(metadata: object, *places: tuple[str, str]) -> CellKind | None:
    """The language of a notebook or cell, from the first of these keys that has one."""
    for holder, key in places:
        part = metadata.get(holder) if isinstance(metadata, dict) else None
        name = part.get(key) if isinstance(part, dict) else None
        if isinstance(name, str) and name and name.lower() != "plaintext":  # the editor's default
            return _LANGUAGES.get(name.lower(), CellKind.LOST)
    return None
