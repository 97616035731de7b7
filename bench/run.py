"""Runs all benchmarks in sequence, and prints a table of all comparisons at the end.

The figures are written to `bench/last.json`. With `--keep`, they also replace the figures of the
same measurements in `bench/results.json` and docs/performance.md. With `--smoke`, two benchmarks
run at a time.

    python bench/run.py [--quick | --smoke] [--only views.py,files.py] [--keep]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import results

LAST = Path(__file__).with_name("last.json")
FULL: dict[str, list[str]] = {
    "writer.py": ["--warm-up", "10"],
    "writer.py --s3": [],
    "upserts.py": ["--rounds", "9", "--batches", "300"],
    "upserts.py --s3": ["--rounds", "5"],
    "upserts.py --cluster": ["--rounds", "5"],
    "views.py": [],
    "views.py --share 0.01 --policy auto": [],
    "views.py --cluster": [],
    "update.py": [],
    "update.py --tables 50": [],
    "update.py --tables 50 --cluster": [],
    "watching.py": [],
    "tables.py": [],
    "tables.py --cluster": [],
    "latency.py": [],
    "files.py": [],
    "scaling.py": [],
}
QUICK = {
    "writer.py": ["--blocks", "3", "--rounds", "3"],
    "writer.py --s3": ["--blocks", "3", "--rounds", "3"],
    "upserts.py": ["--rounds", "5"],
    "views.py": ["--rounds", "3", "--rows", "1000000"],
    "update.py": ["--rounds", "1"],
    "update.py --tables 50": ["--rounds", "1"],
    "watching.py": ["--seconds", "60"],
    "tables.py": ["--seconds", "60", "--warm-up", "40"],
    "latency.py": ["--seconds", "60", "--warm-up", "40"],
    "files.py": ["--rounds", "3"],
    "scaling.py": ["--rounds", "3", "--most", "1000000"],
}
SMOKE = {
    "writer.py --s3": ["--blocks", "1", "--rounds", "1", "--warm-up", "0", "--rows", "2000"],
    "upserts.py": ["--rounds", "1", "--warm-up", "0", "--rows", "20000", "--batches", "2"],
    "views.py": ["--rounds", "1", "--rows", "2000", "--only", "filter,10k groups,window"],
    "update.py --tables 5": ["--rounds", "1", "--rows", "200"],
    "watching.py": ["--seconds", "5", "--warm-up", "5", "--rows", "20"],
    "tables.py": ["--tables", "6", "--seconds", "20", "--warm-up", "20"],
    "latency.py": ["--rate", "50", "--seconds", "10", "--warm-up", "10"],
    "files.py": ["--rounds", "1", "--rows", "4000", "--known", "100"],
    "scaling.py": ["--rounds", "1", "--most", "10"],
}


def main() -> None:
    """Run each benchmark in a separate process, so that none warms up another."""
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer repetitions")
    size.add_argument("--smoke", action="store_true", help="only test whether they run")
    parser.add_argument("--only", help="scripts, separated by commas")
    parser.add_argument("--keep", action="store_true", help="show the figures in the docs")
    arguments = parser.parse_args()
    if arguments.smoke and arguments.keep:
        parser.error("--keep is not allowed with --smoke: its figures mean nothing")
    only = arguments.only.split(",") if arguments.only else None
    LAST.write_text("[]\n", encoding="utf-8")
    sizes = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    commands = [command for command in sizes if only is None or command in only]
    work = partial(run, captures=arguments.smoke)
    with ThreadPoolExecutor(2) as pool:
        each = pool.map if arguments.smoke else map
        for figures in each(work, commands, [sizes[command] for command in commands]):
            results.merge(figures, LAST)
    print(results.table(results.load(LAST)))
    if arguments.keep:
        results.merge(results.load(LAST))
        results.write_page()


def run(
    command: str, options: list[str], *, captures: bool
) -> list[results.Figure | results.Value]:
    """Run one script and return its figures; with `captures`, its output is printed at its end."""
    title = f"== bench/{command}"
    if not captures:
        print(title, flush=True)
    script, *mode = command.split()
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "figures.jsonl")
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script)), *mode, *options],
            env={**os.environ, results.VARIABLE: str(lines)},
            stdout=subprocess.PIPE if captures else None,
            stderr=subprocess.STDOUT if captures else None,
            text=True,
            check=False,
        )
        if captures:
            print(f"{title}\n{done.stdout}", end="", flush=True)
        done.check_returncode()
        return results.read_lines(lines)


if __name__ == "__main__":
    main()
