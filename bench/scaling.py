"""Time of the same work against the size of the existing data, and its slope.

- `rows`: incremental refresh of a filter after 1,000 new rows, by rows of the source,
- `keys`: batch of 1,000 random keys in update mode, by keys of the table,
- `age`: append of 1,000 rows, by commits of the table,
- `tables`: update without new data, by streaming tables of the pipeline.

The slope is that of a line through the logarithms of size and time: 0 if the size does not matter,
1 if the time is proportional to it.

    python bench/scaling.py [--rounds 5] [--only rows,keys,age,tables] [--most 10000000]
"""

import argparse
import contextlib
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import results
import upserts
import views
from deltalake import DeltaTable, write_deltalake
from writer import make_session

WARM_UP = 3
TABLES = """
import dlt


def table(number):
    @dlt.table(name=f"t{number}")
    def rows():
        return spark.readStream.schema("id BIGINT").json("{inbox}")


for number in range({tables}):
    table(number)
"""


def sizes(first: int, most: int) -> list[int]:
    """Powers of ten."""
    result = [first]
    while result[-1] * 10 <= most:
        result.append(result[-1] * 10)
    return result


def rows(spark: Any, root: Path, most: int, rounds: int) -> Iterator[tuple[int, list[float]]]:
    for size in sizes(10_000, most):
        source = views.Source(spark, root / f"rows{size}", size, 1_000 / size)
        kind, query = views.VIEWS["filter"]
        query = query.format(**source.paths)
        view = views.ViewProject(spark, root / f"view{size}", query, "incremental")
        view.refresh()
        spent = []
        for _ in range(WARM_UP + rounds):
            source.change(kind)
            spent.append(view.refresh())
        yield size, spent[WARM_UP:]


def keys(spark: Any, root: Path, most: int, rounds: int) -> Iterator[tuple[int, list[float]]]:
    for size in sizes(10_000, most):
        place = root / f"keys{size}"
        place.mkdir()
        tables = upserts.Tables(spark, str(place), place / "inbox", size, 1_000)
        spent = [
            upserts.timed(tables, "update", tables.batch(), number)
            for number in range(1, WARM_UP + rounds + 1)
        ]
        yield size, spent[WARM_UP:]


def add_commits(table: Path, count: int) -> None:
    """Add commits of one row; most are copies of the first one, because appends get slower."""
    if count < 2:
        return
    write_deltalake(table, pa.table({"id": [-1]}), mode="append")
    (file,) = table.glob("*.parquet")
    commit = table / "_delta_log" / f"{1:020}.json"
    text = commit.read_text(encoding="utf-8")
    for version in range(2, count):
        name = f"{version}.parquet"
        shutil.copy(file, table / name)
        commit.with_name(f"{version:020}.json").write_text(text.replace(file.name, name))
    DeltaTable(table).create_checkpoint()


def age(spark: Any, root: Path, most: int, rounds: int) -> Iterator[tuple[int, list[float]]]:
    from penstock._tables.layout import TableRef
    from penstock._tables.write.prepare import prepare_table
    from penstock._tables.write.table_spec import TableSpec
    from penstock._tables.write.writer import FlowWriter

    for size in sizes(1, min(most, 10_000)):
        target = TableRef(f"{root}/age{size}", "age")
        df = spark.range(1_000).coalesce(1)
        prepare_table(spark, target, TableSpec(schema=df.schema))
        add_commits(Path(target.path), size)
        writer = FlowWriter(spark, flow="age", app_id="bench/age/writer/1", target=target)
        spent = []
        for number in range(WARM_UP + rounds):
            started = time.perf_counter()
            writer.write(df, number)
            spent.append(time.perf_counter() - started)
        yield size, spent[WARM_UP:]


def tables(spark: Any, root: Path, most: int, rounds: int) -> Iterator[tuple[int, list[float]]]:
    from penstock._observe.bus import EventBus
    from penstock._project.spec import load_settings
    from penstock._update import UpdateOptions, run_update

    inbox = root / "inbox"
    inbox.mkdir()
    (inbox / "0.json").write_text('{"id": 1}\n', encoding="utf-8")
    for size in sizes(1, min(most, 100)):
        project = root / f"tables{size}"
        project.mkdir()
        source = TABLES.replace("{inbox}", str(inbox)).replace("{tables}", str(size))
        (project / "tables.py").write_text(source, encoding="utf-8")
        settings = "name: bench\nlibraries: [{file: {path: tables.py}}]\n"
        (project / "penstock.yaml").write_text(settings, encoding="utf-8")
        spent = []
        for _ in range(1 + rounds):
            started = time.perf_counter()
            result = run_update(load_settings(project), UpdateOptions(), bus=EventBus())
            spent.append(time.perf_counter() - started)
            if result.failures:
                sys.exit(str(result.failures[0]))
        yield size, spent[1:]  # the first update has data


MEASUREMENTS = {"rows": rows, "keys": keys, "age": age, "tables": tables}
TITLES = {
    "rows": "incremental refresh of a filter after 1,000 new rows, by rows of the source",
    "keys": "1,000 random keys in update mode, by keys of the table",
    "age": "append of 1,000 rows, by commits of the table",
    "tables": "update without new data, by tables",
}


def slope(points: list[tuple[int, float]]) -> float:
    """Slope of the line through the logarithms of sizes and times; 0 for a single point."""
    if len(points) < 2:
        return 0.0
    logarithms = [(math.log10(size), math.log10(seconds)) for size, seconds in points]
    line = statistics.linear_regression(*zip(*logarithms, strict=True))
    return line.slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(MEASUREMENTS))
    parser.add_argument("--most", type=int, default=10_000_000, help="largest size")
    arguments = parser.parse_args()
    from penstock._spark.call_sites import own_columns

    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-scaling-")))
        spark = make_session("penstock", root, root.as_uri(), 0)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        stack.enter_context(own_columns())
        for name in arguments.only.split(","):
            points = []
            for size, spent in MEASUREMENTS[name](spark, root, arguments.most, arguments.rounds):
                points.append((size, statistics.median(spent)))
                print(f"{name} {size:,}: {results.spread(spent, 3)} s", flush=True)
            times = ", ".join(f"{size:,}: {seconds:.2f} s" for size, seconds in points)
            results.record(
                "time against size, medians", TITLES[name], f"{times}; slope {slope(points):.2f}"
            )


if __name__ == "__main__":
    main()
