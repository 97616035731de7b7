"""Figures of the benchmarks: printed, kept in `results.json`, and shown in docs/performance.md.

`compare` and `record` print one measurement. If `run.py` started the benchmark, they also add it to
a file, which `run.py` reads.

    python bench/results.py    # regenerates the table of docs/performance.md
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
        group: Title of the group of comparisons.
        name: The measurement.
        ours: Median of Penstock in seconds.
        rival: What Penstock is compared with.
        theirs: Median of the rival in seconds.
        ratio: Median, lowest and highest ratio of the rounds.
        rounds: Number of rounds.
        day: Date of the run, as in 2026-11-26.
    """

    group: str
    name: str
    ours: float
    rival: str
    theirs: float
    ratio: tuple[float, float, float]
    rounds: int
    day: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a later run replaces."""
        return self.group, self.name, self.rival


@dataclass(frozen=True)
class Value:
    """A measurement without a comparison; `text` contains its figures and their units."""

    group: str
    name: str
    text: str
    day: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a later run replaces."""
        return self.group, self.name


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, lowest and highest value, as text."""
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
    medians = [round(statistics.median(values), 3) for values in (ours, theirs, ratios)]
    ratio = (medians[2], round(min(ratios), 3), round(max(ratios), 3))
    _write(Figure(group, name, medians[0], rival, medians[1], ratio, len(ratios), _today()))


def record(group: str, name: str, text: str) -> None:
    """Print a measurement without a comparison; `text` contains its figures and their units."""
    print(f"{name}: {text}", flush=True)
    _write(Value(group, name, text, _today()))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _write(figure: Figure | Value) -> None:
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(figure)) + "\n")


def load(path: Path = RESULTS) -> list[Figure | Value]:
    """The stored figures."""
    return [_figure(item) for item in json.loads(path.read_text(encoding="utf-8"))]


def read_lines(path: Path) -> list[Figure | Value]:
    """The figures that a benchmark has written; empty if it only prints them."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_figure(json.loads(line)) for line in lines]


def _figure(item: dict[str, Any]) -> Figure | Value:
    if "ratio" not in item:
        return Value(**item)
    return Figure(**{**item, "ratio": tuple(item["ratio"])})


def merge(new: Iterable[Figure | Value], path: Path = RESULTS) -> None:
    """Replace the stored figures of the same measurements, and add the others to their groups."""
    kept = {figure.key: figure for figure in load(path)}
    kept |= {figure.key: figure for figure in new}
    groups = list(dict.fromkeys(figure.group for figure in kept.values()))
    figures = sorted(kept.values(), key=lambda figure: groups.index(figure.group))
    lines = ",\n".join(json.dumps(asdict(figure)) for figure in figures)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def table(figures: Iterable[Figure | Value]) -> str:
    """The figures as one Markdown table of comparisons and one of single values."""
    figures = list(figures)
    compared = [figure for figure in figures if isinstance(figure, Figure)]
    single = [figure for figure in figures if isinstance(figure, Value)]
    titles = ["Measurement", "Penstock", "Compared with", "Ratio (range)", "Rounds", "Day"]
    tables = []
    if compared:
        tables.append(_table(titles, [(figure.group, _cells(figure)) for figure in compared]))
    if single:
        rows = [(value.group, [value.name, value.text, value.day]) for value in single]
        tables.append(_table(["Measurement", "Penstock", "Day"], rows))
    return "\n\n".join(tables)


def _cells(figure: Figure) -> list[str]:
    ratio, low, high = figure.ratio
    return [
        figure.name,
        _seconds(figure.ours),
        f"{figure.rival}: {_seconds(figure.theirs)}",
        f"{ratio:.2f} ({low:.2f} to {high:.2f})",
        str(figure.rounds),
        figure.day,
    ]


def _table(titles: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Rows below the title of their group."""
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    group = ""
    for name, cells in rows:
        if name != group:
            group = name
            lines.append(f"| **{group}** {'| ' * len(titles)}".rstrip())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def page(text: str, figures: Iterable[Figure | Value]) -> str:
    """The page with the table of some figures."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}"


def write_page() -> None:
    """Write the table of docs/performance.md."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


if __name__ == "__main__":
    write_page()
