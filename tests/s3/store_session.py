"""Spark with the jars of an object store, in a separate process.

    python store_session.py JAR_SET SETTINGS STORAGE

Each line of standard input is a JSON list: a call and its arguments.

    race STORE FOLDER           writers race for versions of a log
    read STORAGE                rows of all tables below a storage
    sql STATEMENT               rows of a statement
    copied PATH                 content of a local copy of a file
    log STORE PATH              files of a log, starting at a path
    after ROOT PATH...          files of a root that come after each path
    late FOLDER                 whether a state file exists if its driver lost the lease
    checkpoint FOLDER           whether an offset exists before and after it is created
    replaced FILE               content and errors of a file that another driver writes meanwhile
    lease PLAN                  one of two drivers that race for a lease
    overtaken FOLDER STORAGE    the same of an update whose lease is taken over before its batch
    penstock FOLDER ARGUMENT... exit code and output of a command, which uses this session

The result is a line on standard output.
"""

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from penstock._cli.main import main
from penstock._execution import storage_lease
from penstock._execution.running import RunningQuery
from penstock._execution.storage_lease import StorageLease
from penstock._formats.options import file_options
from penstock._local.cds import java_options
from penstock._local.jars import SPARK_JAR_SETS, class_path
from penstock._spark.session import SessionOptions, build_session, stop_session
from penstock._tables.files import StorageFiles
from penstock.errors import SetupError
from penstock.sources.files.key_inbox import files_after
from penstock.sources.files.listing import FileRoots

VERSIONS = 40


def race(spark: SparkSession, store: str, folder: str) -> dict[str, Any]:
    """The versions that each writer reports as committed, and the actual writer of each version."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    log = getattr(jvm, store)(conf)
    logs = jvm.org.apache.hadoop.fs.Path(f"{folder}/_delta_log")
    logs.getFileSystem(conf).mkdirs(logs)
    won: dict[str, list[int]] = {"a": [], "b": []}
    begin = threading.Barrier(2)

    def path(number: int) -> Any:
        return jvm.org.apache.hadoop.fs.Path(logs, f"{number:020d}.json")

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
    """The result of each round: `held` or the condition of the error.

    A round ends with a release, or with a holder that disappears like a machine that failed.
    """
    plan = json.loads(plan_text)
    folder, me, other = Path(plan["folder"]), plan["me"], plan["other"]
    outcomes = []
    with mock.patch.object(storage_lease, "_machine", lambda: f"machine of {me}"):
        for number, end in enumerate(plan["ends"]):
            _meet(folder, f"{number}-begin", me, other)
            taken = None
            try:
                taken = StorageLease.acquire(spark, plan["storage"], {"command": me}, 1.0)
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


def sql(spark: SparkSession, statement: str) -> list[list[Any]]:
    return [list(row) for row in spark.sql(statement).collect()]


def copied(spark: SparkSession, path: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        assert StorageFiles(spark).copy_tree(path, f"file://{folder}/copy")
        return (Path(folder) / "copy").read_text(encoding="utf-8")


def log(spark: SparkSession, store: str, path: str) -> list[list[Any]]:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        files = getattr(jvm, store)(conf).listFrom(jvm.org.apache.hadoop.fs.Path(path), conf)
    except Py4JJavaError as error:
        return [[str(error.java_exception.getClass().getName())]]
    listed = []
    while files.hasNext():
        file = files.next()
        listed.append([str(file.getPath().toString()), file.getLen()])
    return listed


def after(spark: SparkSession, root: str, *paths: str) -> list[list[str]]:
    options = file_options({"format": "text"}, has_schema=True, streaming=True)
    roots = FileRoots(spark, [root], options)
    (folder,) = roots.first_folders()
    return [[file.path for file in files_after(spark, roots, folder, path)] for path in paths]


def checkpoint(spark: SparkSession, folder: str) -> list[bool]:
    """Whether the offset exists before and after its creation; also overwrites a small file."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(f"{folder}/offsets/0")
    files = jvm.penstock.storage.ObjectCheckpointFiles(path.getParent(), conf)
    before = files.exists(path)
    files.createAtomic(path, False).close()
    StorageFiles(spark).write(f"{folder}/committed.json", "{}")
    return [before, files.exists(path)]


def late(spark: SparkSession, folder: str) -> bool:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(f"{folder}/state/1.delta")
    files = jvm.penstock.storage.ObjectCheckpointFiles(path.getParent(), conf)
    held = jvm.penstock.storage.StorageLease.hold(f"{folder}/lease/1", "{}", 60_000, conf)
    try:
        state = files.createAtomic(path, True)
        StorageFiles(spark).write(f"{folder}/lease/2", "{}")
        for call in (held.renew, state.close):
            with contextlib.suppress(Py4JJavaError):
                call()
    finally:
        jvm.penstock.storage.StorageLease.forget()
    return bool(files.exists(path))


def replaced(spark: SparkSession, file: str) -> list[str | None]:
    """Another driver writes the file after each check of the lease, for a new and an old file."""
    seen: list[str | None] = []
    versions = itertools.count()

    def write_theirs(files: StorageFiles) -> None:
        with mock.patch.object(StorageFiles, "check_lease"):
            StorageFiles(spark).write(file, f"theirs {next(versions)}")

    for _ in range(2):
        with mock.patch.object(StorageFiles, "check_lease", write_theirs):
            try:
                StorageFiles(spark).write(file, "ours")
            except Py4JJavaError as error:
                seen.append(str(error.java_exception.toString()))
        seen.append(StorageFiles(spark).read(file))
    return seen


def overtaken(spark: SparkSession, folder: str, storage: str) -> tuple[int, str]:
    """The other driver has the lease when the first batch is planned, and has released it."""
    on_batch = RunningQuery.on_batch
    held: list[StorageLease] = []

    def take_over(self: RunningQuery, df: DataFrame, batch_id: int) -> None:
        record = json.dumps({"pid": 1, "host": "h", "since": "now", "released": True})
        StorageFiles(spark).write(f"{storage}/state/lease/{99:020d}", record)
        assert held[0].failure()
        on_batch(self, df, batch_id)

    with (
        mock.patch.object(StorageLease, "_renew", lambda lease: held.append(lease)),
        mock.patch.object(RunningQuery, "on_batch", take_over),
    ):
        return penstock(spark, folder, "run")


def penstock(spark: SparkSession, folder: str, *arguments: str) -> tuple[int, str]:
    """Run a command like on a separate machine: its locks are in the folder of the project."""
    output = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    state = {"XDG_STATE_HOME": f"{folder}/home"}
    try:
        with (
            mock.patch.dict(os.environ, state),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            code = main(arguments)
    finally:
        os.chdir(before)
    return code, output.getvalue()


CALLS = {
    "race": race,
    "read": read,
    "sql": sql,
    "lease": lease,
    "copied": copied,
    "log": log,
    "after": after,
    "late": late,
    "replaced": replaced,
    "checkpoint": checkpoint,
    "overtaken": overtaken,
    "penstock": penstock,
}


def serve(jar_set: str, settings: str, storage: str, log: str) -> None:
    jars = [str(jar) for jar in class_path(SPARK_JAR_SETS)]
    stores = [str(jar) for jar in class_path([*SPARK_JAR_SETS, jar_set])]
    options = SessionOptions(
        app_name="store",
        storage_root=storage,
        configuration=json.loads(settings),
        jars=tuple(jars),
        store_jars=tuple(jar for jar in stores if jar not in jars),
        java_options=tuple(java_options(class_path(SPARK_JAR_SETS))),
        log_file=log,
    )
    spark = build_session(options)
    try:
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            try:
                answer: dict[str, Any] = {"result": CALLS[what](spark, *arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer, default=str), flush=True)
    finally:
        stop_session(spark)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        serve(*sys.argv[1:], f"{folder}/spark.log")
