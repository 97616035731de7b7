"""Spark with the jars of S3, in a process of its own; prints JSON.

python s3_session.py PORT race STORE     writers race for versions of a log
python s3_session.py PORT read STORAGE   rows of all tables below a storage
python s3_session.py PORT lease PLAN     one of two drivers that race for a lease in each round
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession
from s3_double import BUCKET, settings_of

from penstock._execution import storage_lease
from penstock._execution.storage_lease import StorageLease
from penstock._local.jars import S3_JAR_SET, SPARK_JAR_SETS, class_path
from penstock._spark.session import SessionOptions, build_session, stop_session
from penstock.errors import SetupError

VERSIONS = 40


def race(spark: SparkSession, store: str) -> dict[str, Any]:
    """Per writer the versions that it took for its own, and whose each version is."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    log = getattr(jvm, store)(conf)
    won: dict[str, list[int]] = {"a": [], "b": []}
    begin = threading.Barrier(2)

    def path(number: int) -> Any:
        return jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/race/_delta_log/{number:020d}.json")

    def write(writer: str) -> None:
        for number in range(VERSIONS):
            lines = jvm.java.util.ArrayList()
            lines.add(f'{{"writer":"{writer}","number":{number}}}')
            begin.wait()
            try:
                log.write(path(number), lines.iterator(), False, conf)
                won[writer].append(number)
            except Exception as error:
                if "FileAlreadyExistsException" not in str(error):
                    raise

    threads = [threading.Thread(target=write, args=(writer,)) for writer in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = []
    for number in range(VERSIONS):
        lines = log.read(path(number), conf)
        contents.append(json.loads(lines.next())["writer"])
        lines.close()
    return {"won": won, "contents": contents}


def lease(spark: SparkSession, plan_text: str) -> list[str]:
    """What came of each round: `held` or the condition of the error.

    A round ends with a release, or with a holder that disappears, as another machine can.
    """
    plan = json.loads(plan_text)
    folder, me, other = Path(plan["folder"]), plan["me"], plan["other"]
    outcomes = []
    with mock.patch.object(storage_lease, "_machine", lambda: f"machine of {me}"):
        for number, end in enumerate(plan["ends"]):
            _meet(folder, f"{number}-begin", me, other)
            taken = None
            try:
                taken = StorageLease.acquire(spark, f"s3a://{BUCKET}/leases", {"command": me}, 1.0)
                outcomes.append("held")
            except SetupError as error:
                outcomes.append(error.condition)
            _meet(folder, f"{number}-end", me, other)
            if taken is not None and end == "release":
                taken.__exit__(None, None, None)
            elif taken is not None:
                taken._ended.set()
    return outcomes


def _meet(folder: Path, step: str, me: str, other: str) -> None:
    (folder / f"{step}-{me}").touch()
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not (folder / f"{step}-{other}").exists():
        assert time.monotonic() < deadline, f"the other driver is not at {step}"
        pause.wait(0.002)


def read(spark: SparkSession, storage: str) -> dict[str, Any]:
    """Rows of the tables, by name."""
    jvm: Any = spark._jvm
    root = jvm.org.apache.hadoop.fs.Path(f"{storage}/tables/spark_catalog/default")
    system = root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    paths = [str(status.getPath().toString()) for status in system.listStatus(root)]
    frames = {path.rpartition("/")[2]: spark.read.format("delta").load(path) for path in paths}
    return {name: [row.asDict() for row in frame.collect()] for name, frame in frames.items()}


def main() -> None:
    port, what, argument = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        options = SessionOptions(
            app_name=what,
            configuration=settings_of(int(port)),
            jars=tuple(str(jar) for jar in class_path([*SPARK_JAR_SETS, S3_JAR_SET])),
            log_file=f"{folder}/spark.log",
        )
        spark = build_session(options)
        try:
            result = {"race": race, "read": read, "lease": lease}[what](spark, argument)
        finally:
            stop_session(spark)
    print(json.dumps(result, default=str))


if __name__ == "__main__":
    main()
