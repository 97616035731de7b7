"""Figures of the benchmarks: printed, kept in `results.json`, and shown in docs/performance.md.

`compare` prints one comparison. If `run.py` started the benchmark, it also adds the figures to a
file, which `run.py` reads.

    python bench/results.py    # writes the table of docs/performance.md again
"""

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "performance.md"
VARIABLE = "PENSTOCK_BENCH_RESULTS"
BEGIN, END = "<!-- begin of bench/results.json -->", "<!-- end of bench/results.json -->"


@dataclass(frozen=True)
class Figure:
    """One comparison.

    Attributes:
        group: What the comparisons beside it have in common.
        name: What is measured.
        ours: Median of Penstock in seconds.
        rival: What it is compared with.
        theirs: Median of the rival in seconds.
        ratio: Median, lowest and highest ratio of the rounds.
        rounds: Number of rounds.
        day: Of the run, as in 2026-11-26.
    """

    group: str
    name: str
    ours: float
    rival: str
    theirs: float
    ratio: tuple[float, float, float]
    rounds: int
    day: str


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, and the lowest and the highest value."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def compare(
    group: str, name: str, ours: Sequence[float], rival: str, theirs: Sequence[float]
) -> None:
    """Print one comparison; `ours` and `theirs` are seconds, round by round."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{name}: {spread(ours, 3)} s, {rival} {spread(theirs, 3)} s, ratio {spread(ratios, 2)}",
        flush=True,
    )
    if path := os.environ.get(VARIABLE):
        figure = Figure(
            group,
            name,
            round(statistics.median(ours), 3),
            rival,
            round(statistics.median(theirs), 3),
            (
                round(statistics.median(ratios), 3),
                round(min(ratios), 3),
                round(max(ratios), 3),
            ),
            len(ratios),
            datetime.now(UTC).date().isoformat(),
        )
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(figure)) + "\n")


def load(path: Path = RESULTS) -> list[Figure]:
    """The figures that are kept."""
    return [_figure(item) for item in json.loads(path.read_text(encoding="utf-8"))]


def read_lines(path: Path) -> list[Figure]:
    """The figures that a benchmark has written; none if it has no ratios."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_figure(json.loads(line)) for line in lines]


def _figure(item: dict[str, Any]) -> Figure:
    return Figure(**{**item, "ratio": tuple(item["ratio"])})


def merge(new: Iterable[Figure], path: Path = RESULTS) -> None:
    """Replace the kept figures of the same comparisons, and add the others to their groups."""
    kept = {(figure.group, figure.name, figure.rival): figure for figure in load(path)}
    kept |= {(figure.group, figure.name, figure.rival): figure for figure in new}
    groups = list(dict.fromkeys(figure.group for figure in kept.values()))
    figures = sorted(kept.values(), key=lambda figure: groups.index(figure.group))
    lines = ",\n".join(json.dumps(asdict(figure)) for figure in figures)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def table(figures: Iterable[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| Measurement | Penstock | Compared with | Ratio (range) | Rounds | Day |",
        "|---|---|---|---|---|---|",
    ]
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            lines.append(f"| **{group}** | | | | | |")
        ratio, low, high = figure.ratio
        lines.append(
            f"| {figure.name} | {_seconds(figure.ours)} | {figure.rival}: "
            f"{_seconds(figure.theirs)} | {ratio:.2f} ({low:.2f} to {high:.2f}) | "
            f"{figure.rounds} | {figure.day} |"
        )
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def page(text: str, figures: Iterable[Figure]) -> str:
    """The page with the table of some figures."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}"


def write_page() -> None:
    """Write the table of docs/performance.md."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


if __name__ == "__main__":
    write_page()
