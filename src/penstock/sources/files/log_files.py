"""Files of logs that Spark also reads."""

import os
import uuid
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock._spark.failures import full_text
from penstock._tables.files import StorageFiles, local_path

_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"


class LogFiles:
    """The files of a log, through Spark's own manager of checkpoint files."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._root = root
        self.files = StorageFiles(spark)
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        manager: Any = getattr(jvm, f"{_MANAGER}$")
        self._manager = getattr(manager, "MODULE$").create(self._path(""), conf)

    def names(self, folder: str = "") -> list[str]:
        return self.files.names(f"{self._root}/{folder}".rstrip("/"))

    def read(self, name: str) -> str | None:
        return self.files.read(f"{self._root}/{name}")

    def write(self, name: str, text: str, *, replace: bool) -> bool:
        """Write a file; `False` if it exists and must not be replaced."""
        local = local_path(f"{self._root}/{name}")
        if local is not None and not replace:
            # Hadoop checks whether a local file exists before it renames another, not atomically.
            draft = local.with_name(f".{local.name}.{uuid.uuid4().hex}")
            self.files.write(str(draft), text)
            try:
                os.link(draft, local)
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            return True
        stream = self._manager.createAtomic(self._path(name), replace)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        try:
            stream.close()
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in full_text(error):
                return False
            raise
        return True

    def delete(self, name: str) -> None:
        self._manager.delete(self._path(name))

    def create_folder(self) -> None:
        self._manager.mkdirs(self._path(""))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}".rstrip("/"))
