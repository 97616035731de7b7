"""Auto Loader v Spark's own reader with the same schema: JSON lines, and CSV with a header.

Both read the same files in one process, in turns, and discard the rows. Auto Loader also detects
data without a column, so there is a rescued data column. The first rounds are not measured.

Then, in a folder with many known files: the search of a stream for new files v a listing of the
folder by Spark, as Spark's own file stream does for each micro-batch.

    python bench/files.py [--rounds 7] [--rows 800000] [--known 100000]
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from writer import make_session

FILES = 4
WARM_UP = 2
TITLES = {"json": "JSON", "csv": "CSV with a header"}
SCHEMA = (
    "id BIGINT, customer STRING, amount DOUBLE, quantity BIGINT, at STRING, city STRING, "
    "zip STRING, note STRING"
)


def write_files(folder: Path, rows: int) -> None:
    """Write the same rows as JSON and as CSV."""
    source = random.Random(1)
    for number in range(FILES):
        records = [
            {
                "id": number * rows + i,
                "customer": f"c-{source.randrange(10**6)}",
                "amount": round(source.random() * 1000, 2),
                "quantity": source.randrange(9),
                "at": f"2026-01-01T10:{i % 60:02d}:{i % 59:02d}Z",
                "city": f"town {i % 311}",
                "zip": str(10_000 + i % 89_999),
                "note": "x" * (i % 60),
            }
            for i in range(rows // FILES)
        ]
        lines = {
            "json": [json.dumps(record) for record in records],
            "csv": [
                ",".join(records[0]),
                *(",".join(map(str, record.values())) for record in records),
            ],
        }
        for kind, texts in lines.items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            (folder / kind / f"{number}.{kind}").write_text("\n".join(texts) + "\n")


def auto_loader(spark: Any, kind: str, folder: Path, memory: Path) -> Any:
    """The rows as a flow reads them."""
    from penstock._tables.files import StorageFiles
    from penstock.sources.base import Read
    from penstock.sources.files.opening import open_source, read_source
    from penstock.sources.memory import FolderMemory

    read = Read(
        spark=spark,
        format="cloudfiles",
        options={"format": kind, "header": "true", "rescuedDataColumn": "_rescued_data"},
        load=lambda options: spark.read.options(**options).load(),
        schema=SCHEMA,
        paths=(str(folder / kind),),
        is_stream=False,
        memory=lambda key: FolderMemory(StorageFiles(spark), str(memory / kind)),
    )
    return read_source(open_source(read))


def measure(rows: Any) -> tuple[float, float]:
    """Seconds to compute all columns, and processor time of the JVM."""
    info = rows.sparkSession._jvm.java.lang.ProcessHandle.current().info
    begin, start = info().totalCpuDuration().get().toMillis(), time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    end = time.perf_counter()
    return end - start, (info().totalCpuDuration().get().toMillis() - begin) / 1000


def look(spark: Any, folder: Path, known: int, rounds: int) -> None:
    """Print the times to find one new file."""
    from penstock._formats.options import file_options
    from penstock.sources.files.listing import FileRoots
    from penstock.sources.files.name_inbox import LocalNames

    folder.mkdir()
    for number in range(known):
        (folder / f"{number:07}.json").write_text('{"id": 1}\n')
    options = file_options({"format": "json"}, has_schema=True, streaming=True)
    roots = FileRoots(spark, [str(folder)], options)
    names = LocalNames(spark, roots)
    ours, theirs = [], []
    for number in range(WARM_UP + rounds):
        begin = time.perf_counter()
        new = len(names.new())
        names.confirm()
        middle = time.perf_counter()
        listed = len(roots.list())
        end = time.perf_counter()
        if (new, listed) != (1 if number else known, known + number):
            raise SystemExit(f"{new} new files of {listed}")
        if number >= WARM_UP:
            ours.append(middle - begin)
            theirs.append(end - middle)
        (folder / f"new-{number}.json").write_text('{"id": 2}\n')
    group = f"Auto Loader, a new file beside {known:,} that were read"
    results.compare(group, "time to find it", ours, "Spark's listing", theirs)


def main() -> None:
    """Print medians, their ratio and the range of the ratios of single rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--known", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_files(root / "in", arguments.rows)
        spark = make_session("penstock", root, root.as_uri(), 0)
        spark.sparkContext.setLogLevel("ERROR")
        for kind in ("json", "csv"):
            native = spark.read.schema(SCHEMA).option("header", "true").format(kind)
            pairs = []
            for number in range(WARM_UP + arguments.rounds):
                pair = (
                    measure(auto_loader(spark, kind, root / "in", root / "state")),
                    measure(native.load(str(root / "in" / kind))),
                )
                if number >= WARM_UP:
                    pairs.append(pair)
            group = f"Auto Loader, {arguments.rows:,} rows, all columns and rescued data"
            for what, name in enumerate(("elapsed", "processor time")):
                ours, theirs = ([pair[side][what] for pair in pairs] for side in (0, 1))
                results.compare(group, f"{TITLES[kind]}, {name}", ours, "Spark's reader", theirs)
        look(spark, root / "many", arguments.known, arguments.rounds)
        spark.stop()


if __name__ == "__main__":
    main()
