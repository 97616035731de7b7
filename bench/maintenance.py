"""A flow with many small commits, with and without maintenance of its table.

A continuous update runs a flow that commits as fast as it can, until its table has the given number
of versions. The script prints the durations of the first and the last 1,000 batches, the number of
files in each version, and the number of compactions. Then it reads the rows of the newest version
and of two older versions: each must contain every value up to its newest value exactly once. The
same applies to a stream over the whole table, and to a stream over the second half of its versions.

    python bench/maintenance.py [--commits 20000] [--off]
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deltalake import DeltaTable

PIPELINE = """
import dlt


@dlt.table
def numbers():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
"""
SETTINGS = """
name: maintenance
storage: {storage}
continuous: true
configuration:
  pipelines.trigger: processingTime=0 seconds
{maintenance}
"""
OFF = "maintenance: false\n"
STREAMS = """
import dlt


@dlt.table
def whole():
    return spark.readStream.format("delta").load("{table}")


@dlt.table
def second_half():
    return spark.readStream.format("delta").option("startingVersion", {version}).load("{table}")
"""


def batches(storage: Path) -> list[int]:
    """Milliseconds of each batch, in order."""
    found = {}
    for file in sorted((storage / "events").rglob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if '"flow_progress"' not in line or '"batch_duration_ms"' not in line:
                continue
            event = json.loads(line)
            metrics = event["details"]["flow_progress"]["metrics"]
            if metrics.get("batch_duration_ms") is not None:
                found[event["origin"]["batch_id"]] = metrics["batch_duration_ms"]
    return [found[batch] for batch in sorted(found)]


def newest(log: Path) -> int:
    return max((int(f.name[:20]) for f in log.glob("0*.json")), default=-1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--commits", type=int, default=20_000)
    options.add_argument("--off", action="store_true", help="without maintenance")
    options.add_argument("--folder", type=Path)
    given = options.parse_args()
    root = given.folder or Path(tempfile.mkdtemp(prefix="penstock-maintenance-"))
    root.mkdir(parents=True, exist_ok=True)
    storage = root / "storage"
    (root / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    settings = SETTINGS.format(storage=storage.as_uri(), maintenance=OFF if given.off else "")
    (root / "penstock.yaml").write_text(settings, encoding="utf-8")
    table = storage / "tables" / "spark_catalog" / "default" / "numbers"
    with (root / "run.log").open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "penstock", "run"],
            cwd=root,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        started = time.monotonic()
        while newest(table / "_delta_log") < given.commits:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(timeout=2)
                break
        run.send_signal(signal.SIGTERM)
        run.wait()
    print(f"{newest(table / '_delta_log')} versions in {time.monotonic() - started:.0f} s")
    report(batches(storage), table)
    check_streams(root / "streams", table)


def check_streams(project: Path, table: Path) -> None:
    last = newest(table / "_delta_log")
    middle = DeltaTable(table, version=last // 2).to_pyarrow_table(columns=["value"]).num_rows
    rows = DeltaTable(table).to_pyarrow_table(columns=["value"]).num_rows
    project.mkdir()
    source = STREAMS.format(table=table.as_uri(), version=last // 2 + 1)
    (project / "pipeline.py").write_text(source, encoding="utf-8")
    storage = project / "storage"
    settings = f"name: streams\nstorage: {storage.as_uri()}\n"
    (project / "penstock.yaml").write_text(settings, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "penstock", "run", "--quiet"], cwd=project, check=True)
    for name, first in (("whole", 0), ("second_half", middle)):
        copy = DeltaTable(storage / "tables" / "spark_catalog" / "default" / name)
        values = sorted(copy.to_pyarrow_table(columns=["value"])["value"].to_pylist())
        if values != list(range(first, rows)):
            sys.exit(f"stream {name}: rows are missing or duplicated")
        print(f"stream {name}: {len(values):,} rows, each value once")


def report(durations: list[int], table: Path) -> None:
    size = min(1000, len(durations) // 2)
    for name, part in (("first", durations[:size]), ("last", durations[-size:])):
        ordered = sorted(part)
        print(
            f"{name} {size} batches: p50 {statistics.median(part):.0f} ms, "
            f"p99 {ordered[size * 99 // 100]} ms, max {ordered[-1]} ms"
        )
    log = table / "_delta_log"
    files = [json.loads(path.read_text())["numFiles"] for path in sorted(log.glob("0*.crc"))]
    compactions = sum('"operation":"OPTIMIZE"' in path.read_text() for path in log.glob("0*.json"))
    print(f"files: {files[-1]} in the newest version, at most {max(files)}; {compactions} OPTIMIZE")
    last = newest(log)
    for version in (last, last // 2, last // 10):
        column = DeltaTable(table, version=version).to_pyarrow_table(columns=["value"])["value"]
        values = sorted(column.to_pylist())
        if values != list(range(len(values))):
            sys.exit(f"version {version}: rows are missing or duplicated")
        print(f"version {version}: {len(values):,} rows, each value once")


if __name__ == "__main__":
    main()
