"""Generate the table of functions and parameters in `docs/compatibility.md` from the code.

Run this after a change of the declarative API:

    python tests/docs/surface_table.py
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock._api import surface
from penstock._api.registry import Registry, registration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin: surface -->\n", "<!-- end: surface -->\n"
# Functions that DLT does not have.
OURS = {
    *("expect_or_quarantine", "expect_all_or_quarantine", "expect_unique", "expect_row_count"),
}


def _query() -> None: ...


def _stand_in(parameter: inspect.Parameter) -> Any:
    """A valid argument for a required parameter."""
    return {
        "keys": ["id"],
        "expectations": {"rule": "a > 0"},
        "columns": ["id"],
        "sequence_by": "ts",
        "minimum": 1,
    }.get(parameter.name, "something")


def _refused(function: Any, parameter: inspect.Parameter) -> bool:
    """Whether the function refuses the parameter as not available."""
    arguments = {
        name: _stand_in(other)
        for name, other in inspect.signature(function).parameters.items()
        if other.default is inspect.Parameter.empty
    }
    arguments[parameter.name] = "x"
    registry = Registry()
    with registration(registry):
        function(**arguments)
    return any(
        error.condition == "FEATURE_NOT_AVAILABLE" and f"`{parameter.name}`" in error.message
        for error in registry.errors
    )


def _aliases() -> dict[Any, list[str]]:
    names: dict[Any, list[str]] = {}
    for name in surface.__all__:
        function = inspect.unwrap(getattr(surface, name))
        names.setdefault(getattr(surface, function.__name__), []).append(name)
    return names


def rows() -> Iterator[str]:
    """The lines of the generated table."""
    yield "| Function | Parameters | Not available |"
    yield "|---|---|---|"
    for function, names in sorted(_aliases().items(), key=lambda item: item[1][0]):
        shown = [name for name in names if name == function.__name__]
        shown += [name for name in names if name != function.__name__]
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in ("query_function", "function")
        ]
        reads = function.__name__ in ("read", "read_stream")
        refused = [p.name for p in parameters if not reads and _refused(function, p)]
        accepted = [p.name for p in parameters if p.name not in refused]
        title = ", ".join(f"`{name}`" for name in shown)
        if function.__name__ in OURS:
            title += " (Penstock's own)"
        yield (
            f"| {title} | {', '.join(f'`{name}`' for name in accepted) or '-'} "
            f"| {', '.join(f'`{name}`' for name in refused) or '-'} |"
        )


def table() -> str:
    """The generated table."""
    return "\n".join(rows()) + "\n"


def written(text: str) -> str:
    """The table in the page."""
    match = re.search(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", text, re.DOTALL)
    assert match is not None
    return match.group(1)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
