"""Results of the benchmarks: how they are stored, and that the docs show the stored results."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_results", BENCH / "results.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # `dataclass` looks up the module here
    spec.loader.exec_module(module)
    return module


def test_page_shows_the_stored_results(results):
    text = results.PAGE.read_text(encoding="utf-8")
    assert text == results.page(text, results.load())


def test_new_result_replaces_that_of_the_same_comparison(results, tmp_path, monkeypatch, capsys):
    lines, kept = tmp_path / "lines.jsonl", tmp_path / "kept.json"
    kept.write_text("[]\n", encoding="utf-8")
    assert results.read_lines(lines) == []
    monkeypatch.setenv(results.VARIABLE, str(lines))
    results.compare("batches", "append", [1.0, 2.0, 6.0], "sink", [2.0, 2.0, 3.0])
    results.compare("files", "csv", [1.0], "reader", [1.0])
    results.merge(results.read_lines(lines), kept)
    lines.unlink()
    results.compare("batches", "append", [1.0], "other sink", [4.0])
    results.merge(results.read_lines(lines), kept)
    lines.unlink()
    results.compare("batches", "append", [0.25], "other sink", [4.0])
    results.merge(results.read_lines(lines), kept)

    first, second, third = results.load(kept)
    assert third.group == "files"
    assert (first.ours, first.theirs, first.ratio, first.rounds) == (2.0, 2.0, (1.0, 0.5, 2.0), 3)
    assert (second.rival, second.ours, second.ratio) == ("other sink", 0.25, (0.062, 0.062, 0.062))
    assert "ratio 1.00 (0.50 to 2.00)" in capsys.readouterr().out
    rows = results.table([first, second]).splitlines()[2:]
    assert rows[0] == "| **batches** | | | | | |"
    assert rows[1].startswith("| append | 2.0 s | sink: 2.0 s | 1.00 (0.50 to 2.00) | 3 | ")
    assert rows[2].startswith("| append | 0.25 s | other sink: 4.0 s | 0.06 (0.06 to 0.06) | 1 | ")


def test_result_without_a_comparison_is_in_a_separate_table(results, tmp_path, monkeypatch):
    lines, kept = tmp_path / "lines.jsonl", tmp_path / "kept.json"
    kept.write_text("[]\n", encoding="utf-8")
    monkeypatch.setenv(results.VARIABLE, str(lines))
    results.record("messages", "age of rows", "mean 0.30 s")
    results.compare("batches", "append", [1.0], "sink", [2.0])
    results.record("messages", "age of rows", "mean 0.25 s")
    results.merge(results.read_lines(lines), kept)

    value, figure = results.load(kept)
    compared, single = results.table([value, figure]).split("\n\n")
    assert compared.splitlines()[3].startswith("| append | 1.0 s | sink: 2.0 s | 0.50 ")
    assert single.splitlines() == [
        "| Measurement | Penstock | Day |",
        "|---|---|---|",
        "| **messages** | | |",
        f"| age of rows | mean 0.25 s | {value.day} |",
    ]
