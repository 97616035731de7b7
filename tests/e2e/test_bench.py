"""Every benchmark runs with the smallest data size."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

RUN = Path(__file__).resolve().parents[2] / "bench" / "run.py"


def test_every_benchmark_runs_and_prints_its_ratios(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "--smoke"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    titles = "writer.py --s3", "upserts.py", "update.py --tables 5", "watching.py", "tables.py"
    more = "views.py", "files.py", "scaling.py", "latency.py"
    for title in (*titles, *more):
        assert f"== bench/{title}\n" in done.stdout
    assert "rows per second, watched / not" in done.stdout
    assert "age of rows in orders_quarantine: " in done.stdout
    assert "a batch of windows in update mode: " in done.stdout
    assert "longest time without a commit since data" in done.stdout
    assert done.stdout.count("; slope ") == 2 * 4  # in the output and in the table
    assert "| age of rows in orders | mean " in done.stdout
    assert "| auto CDC type 2, 2 more batches | first 1 " in done.stdout
    assert "| age of rows, after the warm-up | mean of all tables " in done.stdout
    assert done.stdout.count("| 20 rules and quarantine | ") == 2  # on disk and on S3
    assert "| auto CDC type 2 | " in done.stdout
    assert "| rows added: window | " in done.stdout
    assert "| dry run | " in done.stdout
