"""Projects in three processes of `penstock run` each, with new data each time.

For `make test-long`; PENSTOCK_REPEATED_ORDERS is the number of orders of statements to test. The
shapes that can differ between processes are in test_repeated_updates.py, in one process.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from test_repeated_updates import ADDED, HEADER, R12, R13, SHAPES, SHAPES_OF_PYTHON, SPEC, TYPED
from test_repeated_updates import statements as statements_of

ORDERS = int(os.environ.get("PENSTOCK_REPEATED_ORDERS", "10"))
SECONDS = 600.0
SOURCE = Path(sys.modules["penstock"].__file__ or "").parents[1]
EXAMPLES = SOURCE.parent / "examples"
# Examples that need no server; the others are run by the tests of their systems.
WITH_FILES = (
    *("batches", "console", "data_quality", "deduplication", "delta", "files", "joins"),
    *("payloads", "state", "triggers", "windows"),
)
TEXTS = ("*.json", "*.csv", "*.txt")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(7200),
    pytest.mark.long,
]


def penstock(root: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def three_times(root: Path, prepare: Callable[[int], None], **environment: str) -> None:
    for number in (1, 2, 3):
        prepare(number)
        penstock(root, "run", PYTHONHASHSEED=str(number), **environment)


def rows(root: Path, table: str) -> list[tuple[object, ...]]:
    folder = root / ".penstock" / "tables" / "spark_catalog" / "default" / table
    data = DeltaTable(folder).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in data.to_pylist())


def write_rows(root: Path, number: int) -> None:
    folder = root / "csv"
    folder.mkdir(exist_ok=True)
    lines = [f"{i},{v},2026-01-01 00:{number * 10}:00" for i, v in ((1, 10), (2, number))]
    (folder / f"{number}.csv").write_text("\n".join(["id,v,ts", *lines]) + "\n")


@pytest.mark.parametrize("seed", range(ORDERS))
def test_aggregates_run_again_in_any_order_with_added_flows(tmp_path: Path, seed: int):
    order, sql = random.Random(seed), statements_of(R12, R13)
    (tmp_path / "penstock.yaml").write_text(SPEC)
    (tmp_path / "shapes.py").write_text("")

    def prepare(number: int) -> None:
        write_rows(tmp_path, number)
        order.shuffle(sql)
        added = [ADDED.replace("added", f"a{n}_added") for n in range(1, number)]
        (tmp_path / "shapes.sql").write_text("".join(added) + ";\n".join(sql) + ";\n")

    three_times(tmp_path, prepare)
    assert rows(tmp_path, "agg3") == [(1, 30), (2, 6)]
    assert rows(tmp_path, "agg5") == [("1", 30.0), ("2", 6.0)]
    assert rows(tmp_path, "agg") == [("1", 30.0, None), ("2", 6.0, None)]


def test_every_shape_of_query_runs_again(tmp_path: Path):
    order, sql = random.Random(0), statements_of(R12, R13, SHAPES)
    (tmp_path / "penstock.yaml").write_text(SPEC)
    (tmp_path / "shapes.py").write_text(HEADER + TYPED + SHAPES_OF_PYTHON)

    def prepare(number: int) -> None:
        write_rows(tmp_path, number)
        order.shuffle(sql)
        before = ADDED if number > 1 else ""
        (tmp_path / "shapes.sql").write_text(before + ";\n".join(sql) + ";\n")

    three_times(tmp_path, prepare)
    assert rows(tmp_path, "formatted") == [(1, 30), (2, 6)]
    assert rows(tmp_path, "updated") == [(1, 30.0), (2, 6.0)]
    # A process that has not started a query has no state store coordinator yet.
    assert "2 of 2 entries" in penstock(tmp_path, "state", "show", "agg3")


def add_copies(root: Path, number: int) -> None:
    """Add the files described on the page of the example, then copies of all files."""
    later = root / "later"
    if number == 2 and later.exists():
        flat = (root / "data").exists()
        shutil.copytree(later, root / "data" if flat else root, dirs_exist_ok=True)
        return
    for pattern in TEXTS:
        for file in sorted(root.glob(f"*/**/{pattern}")):
            if later not in file.parents and ".penstock" not in file.parts:
                shutil.copy(file, file.with_stem(f"{file.stem}-{number}"))


@pytest.mark.parametrize("name", WITH_FILES)
def test_example_runs_again_with_new_files(tmp_path: Path, name: str):
    root = tmp_path / name
    shutil.copytree(EXAMPLES / name, root)

    def prepare(number: int) -> None:
        if number > 1:
            add_copies(root, number)

    three_times(root, prepare)


def test_template_runs_again_with_new_files(tmp_path: Path):
    penstock(tmp_path, "init", "shop")

    def prepare(number: int) -> None:
        if number > 1:
            add_copies(tmp_path / "shop", number)

    three_times(tmp_path / "shop", prepare)


def test_foreign_bundle_runs_again_with_new_files(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "e2e"))
    from test_foreign import BUNDLE, OVERLAY, lines, write

    write(tmp_path, {**BUNDLE, "penstock.yaml": OVERLAY})

    def prepare(number: int) -> None:
        orders = [{"order_id": number, "customer_id": 1, "amount": "5.5"}]
        lines(tmp_path, f"data/landing/orders/{number}.json", orders)
        change = {"id": 1, "name": f"ann{number}", "op": "I", "ts": number}
        lines(tmp_path, f"data/feed/{number}.json", [change])
        write(tmp_path, {f"data/events/{number}.csv": f"a,b\n{number},x\n"})

    three_times(tmp_path, prepare, PENSTOCK_SECRET_CRM_TOKEN="t")


def test_foreign_project_of_spark_runs_again_with_new_files(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "e2e"))
    from test_foreign import SDP, lines, write

    write(tmp_path, SDP)
    three_times(
        tmp_path,
        lambda number: lines(
            tmp_path, f"in/{number}.json", [{"id": number, "amount": 2.0, "city": "rome"}]
        ),
    )
