"""Spark with the jars of an object store, in a process of its own; prints JSON.

python store_session.py JAR_SET SETTINGS race STORE FOLDER  writers race for versions of a log
python store_session.py JAR_SET SETTINGS read STORAGE       rows of all tables below a storage
python store_session.py JAR_SET SETTINGS sql STATEMENT      executes it
"""

import json
import sys
import tempfile
import threading
from typing import Any

from pyspark.sql import SparkSession

from penstock._local.jars import SPARK_JAR_SETS, class_path
from penstock._spark.session import SessionOptions, build_session, stop_session

VERSIONS = 40


def race(spark: SparkSession, store: str, folder: str) -> dict[str, Any]:
    """Per writer the versions that it took for its own, and whose each version is."""
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


def read(spark: SparkSession, storage: str) -> dict[str, Any]:
    """Rows of the tables, by name."""
    jvm: Any = spark._jvm
    root = jvm.org.apache.hadoop.fs.Path(f"{storage}/tables/spark_catalog/default")
    system = root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    paths = [str(status.getPath().toString()) for status in system.listStatus(root)]
    frames = {path.rpartition("/")[2]: spark.read.format("delta").load(path) for path in paths}
    return {name: [row.asDict() for row in frame.collect()] for name, frame in frames.items()}


def sql(spark: SparkSession, statement: str) -> dict[str, Any]:
    """Rows of a statement."""
    return {"rows": [list(row) for row in spark.sql(statement).collect()]}


def main() -> None:
    jar_set, settings, what, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        options = SessionOptions(
            app_name=what,
            configuration=json.loads(settings),
            jars=tuple(str(jar) for jar in class_path([*SPARK_JAR_SETS, jar_set])),
            log_file=f"{folder}/spark.log",
        )
        spark = build_session(options)
        try:
            result = {"race": race, "read": read, "sql": sql}[what](spark, *arguments)
        finally:
            stop_session(spark)
    print(json.dumps(result, default=str))


if __name__ == "__main__":
    main()
