"""Magic commands of notebooks, such as `%sql`, and the cells that they apply to."""

import ast
import re
from dataclasses import dataclass
from enum import StrEnum


class CellKind(StrEnum):
    PYTHON = "python"
    SQL = "sql"
    RUN = "run"
    PACKAGES = "packages"
    LOST = "lost"
    """A language that is not executed, even if it defines something."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A part of a notebook that is run, reported, or recorded as an error; others are left out.

    `text` is code, the argument of `%run`, or a command that installs packages. `file` is the name
    under which it is compiled and shown; a cell of an `.ipynb` has its number in it. `line` is
    counted from 1.
    """

    kind: CellKind
    text: str
    file: str
    line: int = 1
    magic: str = ""


_MAGIC = re.compile(r"\s*(%%?)([A-Za-z][\w\-]*)(?:\s+(.*)|\s*)$")
_BARE_MAGIC = re.compile(r"(\s*)(?:[%!?].*|[A-Za-z_][\w.]*\?{1,2}\s*)$")
_TIMED = re.compile(r"(\s*)%time\s+(\S.*)$")

_INSTALLERS = {"pip", "conda", "mamba", "uv"}
_SHELL = {"sh", "bash", "system", "sx", "cmd", "!"}
_WITHOUT_EFFECT = {
    *("md", "md-sandbox", "markdown", "html", "javascript", "js", "latex", "svg", "skip"),
    *("fs", "writefile", "file", "script", "perl", "ruby"),
    *("environment", "configure"),  # of the notebook's compute
}
_TIMERS = {"time", "timeit", "capture", "prun"}
_PYTHON = {"python", "python3", "py", "pyspark"} | _TIMERS
# With one `%`, those of Databricks apply to the whole cell, those of IPython to their line.
_OF_WHOLE_CELLS = {
    *("python", "sql", "scala", "r", "sh", "fs", "md", "md-sandbox", "skip", "html"),
    *("environment", "configure"),
}


def cells_of(lines: list[str], *, file: str, line: int, language: CellKind) -> list[Cell]:
    """Return the parts of one cell: magic commands on lines of their own, then its code.

    `line` is the number of the first line, `language` the language of text without a magic command.
    """
    cells: list[Cell] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        match = _MAGIC.match(lines[at])
        if match is None:
            break
        is_double, name = match.group(1) == "%%", match.group(2).lower()
        if not is_double and name in {"run", *_INSTALLERS}:
            argument, count = _continued(lines, at, match.group(3) or "")
            cells.append(_line_magic(name, argument, file, line + at))
            at += count
        elif (
            is_double
            or name in _OF_WHOLE_CELLS
            # Text below an unknown magic that is in another language belongs to the magic.
            or (name not in _TIMERS and not _is_language(lines[at + 1 :], language))
        ):
            body = [match.group(3) or "", *lines[at + 1 :]]
            return cells + _cell_magic(match.group(2), body, file, line + at)
        elif language is CellKind.PYTHON:
            break  # `%time`, `%matplotlib inline`: handled below, with those in the code
        else:
            at += 1
    return cells + code_cells(lines[at:], file, line + at, language)


def code_cells(lines: list[str], file: str, line: int, language: CellKind) -> list[Cell]:
    """Return the cells of code without magic commands at its beginning."""
    if not any(text.strip() for text in lines):
        return []
    if language is CellKind.PYTHON:
        return _python_cells(lines, file, line)
    return [Cell(kind=language, text="\n".join(lines), file=file, line=line)]


def _is_language(lines: list[str], language: CellKind) -> bool:
    """Whether the text below an unknown magic may be of the notebook's language."""
    if language is not CellKind.PYTHON:
        return not any(text.strip() for text in lines)
    try:
        ast.parse("\n".join(_without_magics(lines)[0]))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _continued(lines: list[str], at: int, first: str) -> tuple[str, int]:
    """The argument of a line magic with its continuation lines, and their number."""
    argument, count = first, 1
    while argument.endswith("\\") and at + count < len(lines):
        argument = f"{argument[:-1]} {lines[at + count].strip()}"
        count += 1
    return argument.strip(), count


def _line_magic(name: str, argument: str, file: str, line: int) -> Cell:
    if name == "run":
        return Cell(kind=CellKind.RUN, text=argument, file=file, line=line, magic=name)
    command = f"{name} {argument}"
    return Cell(kind=CellKind.PACKAGES, text=command, file=file, line=line, magic=name)


def _cell_magic(name: str, body: list[str], file: str, line: int) -> list[Cell]:
    key = name.lower()
    if key in _TIMERS or body[0].startswith("-"):
        body = ["", *body[1:]]  # options
    text = "\n".join(body)
    if key in _WITHOUT_EFFECT or not text.strip():
        return []
    if key in _PYTHON:
        return _python_cells(body, file, line)
    if key in _SHELL | _INSTALLERS:
        text = f"{name} {text}" if key in _INSTALLERS else text
        return [Cell(kind=CellKind.PACKAGES, text=text, file=file, line=line, magic=name)]
    kind = {"sql": CellKind.SQL, "run": CellKind.RUN}.get(key, CellKind.LOST)
    return [Cell(kind=kind, text=text, file=file, line=line, magic=name)]


def _python_cells(lines: list[str], file: str, line: int) -> list[Cell]:
    """Python code, split at `%run`; other magics in it have no effect."""
    lines, magics = _without_magics(lines)
    cells: list[Cell] = []
    begin = 0
    for number in sorted(magics):
        match = _MAGIC.match(magics[number])
        name, argument = (match.group(2).lower(), match.group(3) or "") if match else ("", "")
        if name == "run":
            cells.append(_code(lines[begin:number], file, line + begin))
            cells.append(_line_magic(name, argument.strip(), file, line + number))
            begin = number + 1
        elif name in _INSTALLERS:
            cells.append(_line_magic(name, argument, file, line + number))
        elif magics[number].lstrip().startswith("!"):
            command = magics[number].strip().lstrip("!")
            cells += _cell_magic("!", [command], file, line + number)
    cells.append(_code(lines[begin:], file, line + begin))
    return [cell for cell in cells if cell.text.strip()]


def _code(lines: list[str], file: str, line: int) -> Cell:
    return Cell(kind=CellKind.PYTHON, text="\n".join(lines), file=file, line=line)


def _without_magics(lines: list[str]) -> tuple[list[str], dict[int, str]]:
    """Replace magic lines; return the new lines and the magics by their index.

    Only a line with a syntax error can be a magic: a line that begins with `%` may also continue
    an expression, or be part of a string.
    """
    lines = list(lines)
    magics: dict[int, str] = {}
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            if not 0 <= number < len(lines) or number in magics:
                return lines, magics
            match = _BARE_MAGIC.match(lines[number])
            if match is None or (match.group(1) and _is_run(lines[number])):
                return lines, magics  # compiling it fails; `%run` must not be indented
            magics[number], count = _continued(lines, number, lines[number])
            timed = _TIMED.match(lines[number])
            lines[number] = match.group(1) + (timed.group(2) if timed else "pass")
            lines[number + 1 : number + count] = [""] * (count - 1)
        except (ValueError, RecursionError, MemoryError):
            return lines, magics  # compiling it fails
        else:
            return lines, magics


def _is_run(line: str) -> bool:
    match = _MAGIC.match(line)
    return match is not None and match.group(2).lower() == "run"
