"""The file of `penstock package`, run by spark-submit on a cluster and on a local master."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pipeline_process import children

from penstock._local.cluster import start_cluster, stop_cluster
from penstock._local.repository import spark_jars_directory

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

SOURCE = """\
import penstock as dp
from lookup import COUNTRIES
from pyspark.sql import functions as F


@dp.table
@dp.expect_or_drop("positive", "id > 0")
def bronze():
    return spark.readStream.schema("id BIGINT").json(spark.conf.get("input"))


@F.udf("string")
def packages(number):
    import os
    import sys

    import deltalake
    import penstock

    executor = "SPARK_EXECUTOR_DIRS" in os.environ
    return f"{COUNTRIES[number % 2]} {executor} {deltalake.__file__} {penstock.__file__}"


@F.pandas_udf("bigint")
def tenfold(numbers):
    return numbers * 10


@dp.materialized_view
def gold():
    return dp.read("bronze").select("id", tenfold("id").alias("v"), packages("id").alias("p"))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed project whose folder was deleted."""
    folder = tmp_path_factory.mktemp("package")
    project = folder / "shop"
    (project / ".git").mkdir(parents=True)
    (project / "notes").mkdir()
    (project / "pipeline.yaml").write_text("name: shop\nstorage: storage\n", encoding="utf-8")
    (project / "shop.py").write_text(SOURCE, encoding="utf-8")
    (project / "lookup.py").write_text("COUNTRIES = ['DE', 'FR']\n", encoding="utf-8")
    (project / ".env").write_text("PASSWORD=hidden\n", encoding="utf-8")
    command = [sys.executable, "-m", "penstock", "package", "shop", "--no-compress"]
    command += ["--file", "dist/shop.py", "--output", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["files"] == ["lookup.py", "pipeline.yaml", "shop.py"]
    assert not [package for package in body["packages"] if package.startswith("pyspark")]
    for name in ("pipeline.yaml", "shop.py", "lookup.py"):
        (project / name).unlink()
    return folder / "dist" / "shop.py"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working directory for the file, with input rows."""
    (tmp_path / "in").mkdir()
    rows = "\n".join(json.dumps({"id": number}) for number in (0, 1, 2, 3))
    (tmp_path / "in" / "a.json").write_text(rows, encoding="utf-8")
    return tmp_path


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    yield start_cluster(tmp_path / "cluster", memory="512m").master
    stop_cluster(tmp_path / "cluster")


def submit(work: Path, file: Path, *options: str, after: tuple[str, ...] = ()) -> subprocess.Popen:
    """Run Spark's own script with a Python that has no packages."""
    jars = spark_jars_directory()
    assert jars is not None
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PENSTOCK"))}
    environment |= {"SPARK_HOME": str(jars.parent), "PYSPARK_PYTHON": sys._base_executable}
    environment["PATH"] = f"{Path(sys._base_executable).parent}:{environment['PATH']}"
    arguments = after or ("--conf", f"input={work / 'in'}")
    return subprocess.Popen(
        [str(jars.parent / "bin" / "spark-submit"), *options, str(file), *arguments],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rows_of(work: Path, table: str) -> list[dict]:
    return (
        DeltaTable(str(work / "storage/tables/spark_catalog/default" / table))
        .to_pyarrow_table()
        .to_pylist()
    )


def test_executors_of_a_cluster_use_the_packages_of_the_file(
    packed: Path, work: Path, master: str
) -> None:
    conf = ("--conf", "spark.executor.memory=512m")
    process = submit(work, packed, "--master", master, *conf)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    rows = sorted(rows_of(work, "gold"), key=lambda row: row["id"])
    assert [(row["id"], row["v"]) for row in rows] == [(1, 10), (2, 20), (3, 30)]
    country, executor, deltalake, penstock = rows[0]["p"].split()
    assert (country, executor) == ("FR", "True")
    assert "/pex/" in deltalake
    assert "/pex/" in penstock or "penstock.zip" in penstock


def start_continuous(packed: Path, work: Path) -> subprocess.Popen:
    """Start an update; returns when it has written all tables and waits for rows."""
    options = ("--conf", f"input={work / 'in'}", "--continuous", "--log-format", "json")
    process = submit(work, packed, after=options)
    log = work / "storage/tables/spark_catalog/default/gold/_delta_log/00000000000000000001.json"
    becomes_true(lambda: log.exists() or process.poll() is not None, 400)
    assert process.poll() is None, process.communicate()[0]
    assert log.exists()
    return process


def becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.2)
    return condition()


def test_a_signal_to_spark_submit_stops_the_update_gracefully(packed: Path, work: Path) -> None:
    process = start_continuous(packed, work)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "CANCELED" in output
    assert len(rows_of(work, "bronze")) == 3


def test_the_update_stops_when_spark_submit_is_killed(packed: Path, work: Path) -> None:
    process = start_continuous(packed, work)
    processes = children(process.pid)  # the driver and its JVM
    process.kill()
    process.communicate(timeout=20)
    assert processes
    assert becomes_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 120)
    status = json.loads((work / "storage/state/status.json").read_text(encoding="utf-8"))
    assert (status["state"], status["has_ended"]) == ("CANCELED", True)


def test_the_exit_code_of_a_failed_update_is_that_of_spark_submit(packed: Path, work: Path) -> None:
    process = submit(work, packed, after=("--conf", f"input={work / 'none'}"))
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 2, output
    other = submit(work, packed, after=("status",))
    output, _ = other.communicate(timeout=100)
    assert other.returncode == 1, output
    assert "PATH_NOT_FOUND" in output
