"""Small text files in the storage root: state that must survive, written atomically."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError

from penstock._model.paths import local_path as local_path
from penstock._tables.commits import lines_of

T = TypeVar("T")
_CHANGED = "RemoteFileChangedException"


def commit_file(version: int) -> str:
    return f"{version:020d}.json"


def commit_lines(table: Path, version: int) -> list[str] | None:
    """The lines of a commit of a local table; `None` if there is no file."""
    try:
        file = table / "_delta_log" / commit_file(version)
        return lines_of(file.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None


def hadoop_path(spark: Any, uri: str) -> tuple[Any, Any]:
    """Hadoop's `FileSystem` of a URI, and its `Path`."""
    path = spark._jvm.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def if_exists(read: Callable[[], T]) -> T | None:
    """The result of a read through Hadoop; `None` if the file or the folder does not exist.

    Checking for existence first would take one to three more requests to an object store.
    """
    try:
        return read()
    except Py4JJavaError as error:
        if str(error.java_exception.getClass().getName()) == "java.io.FileNotFoundException":
            return None
        raise


def _refused(error: OSError) -> None:
    raise error


class StorageFiles:
    """Reads and replaces small files, on a local disk or through Hadoop's FileSystem.

    On a local disk a replacement is atomic (rename). Elsewhere it is one `create(overwrite)`, which
    is atomic on object stores, but not on HDFS: there a truncated file is treated as absent. On S3,
    a file that another driver has changed meanwhile is not replaced.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def read(self, uri: str) -> str | None:
        path = local_path(uri)
        if path is not None:
            try:
                return path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
        system, remote = hadoop_path(self._spark, uri)

        def read() -> str:
            stream = system.open(remote)
            try:
                return str(self._spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

        return if_exists(read)

    def exists(self, uri: str) -> bool:
        path = local_path(uri)
        if path is not None:
            return path.exists()
        system, remote = hadoop_path(self._spark, uri)
        return bool(system.exists(remote))

    def names(self, folder: str) -> list[str]:
        path = local_path(folder)
        if path is not None:
            return [entry.name for entry in path.iterdir()] if path.is_dir() else []
        system, remote = hadoop_path(self._spark, folder)
        entries = if_exists(lambda: system.listStatus(remote))
        # Without a hierarchical namespace, Hadoop lists some folders of Azure twice.
        return list(dict.fromkeys(str(status.getPath().getName()) for status in entries or ()))

    def write(self, uri: str, text: str, *, sync: bool = True) -> None:
        """Create or replace a file and its parent folders.

        Without `sync`, for files that can be computed again, there is no fsync on a local disk and
        no condition on S3.
        """
        path = local_path(uri)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            with draft.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            draft.replace(path)
            # The checksum of a file that Hadoop wrote does not match the new content.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            return
        for is_last in (False, False, True):
            try:
                self._replace(uri, text, is_conditional=sync)
                return
            except Py4JJavaError as error:
                if _CHANGED not in str(error.java_exception.getClass().getName()):
                    raise
                self.check_lease()
                if self.read(uri) == text:  # the response to the first request was lost
                    return
                if is_last:  # otherwise another thread of this driver may have replaced the file
                    raise

    def _replace(self, uri: str, text: str, *, is_conditional: bool) -> None:
        system, remote = hadoop_path(self._spark, uri)
        file = system.createFile(remote).overwrite(True).recursive()
        # By default, s3a first lists the path to find out whether it is a folder.
        file.opt("fs.s3a.create.performance", True)
        if is_conditional and str(system.getScheme()) == "s3a":
            # Read before the check: a file that another driver writes after a takeover is not
            # replaced, such as by a request that s3a repeats until the network works again.
            status = if_exists(lambda: system.getFileStatus(remote))
            if status is None:
                file.overwrite(False).must("fs.option.create.conditional.overwrite", True)
            else:
                file.must("fs.option.create.conditional.overwrite.etag", status.getEtag())
        self.check_lease()
        stream = file.build()
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete_tree(self, uri: str) -> None:
        system, remote = hadoop_path(self._spark, uri)
        if local_path(uri) is None:
            self.check_lease()
        system.delete(remote, True)

    def copy_tree(self, source: str, target: str) -> bool:
        """Replace a folder with a copy of another one; `False` if `source` does not exist."""
        self.delete_tree(target)
        path, copy = local_path(source), local_path(target)
        if path is not None and copy is not None:
            if not path.is_dir():
                return False
            # `shutil.copytree` continues after an error, and raises only its message.
            for folder, _, names in os.walk(path, onerror=_refused):
                into = copy / Path(folder).relative_to(path)
                into.mkdir(parents=True)
                for name in names:
                    shutil.copy2(Path(folder, name), into / name)
            return True
        system, remote = hadoop_path(self._spark, source)
        status = if_exists(lambda: system.getFileStatus(remote))
        if status is None:
            return False
        self._copy(system, status, *hadoop_path(self._spark, target))
        return True

    def _copy(self, system: Any, status: Any, other: Any, target: Any) -> None:
        jvm, path = self._spark._jvm, status.getPath()
        if status.isDirectory():
            other.mkdirs(target)
            entries = {str(entry.getPath().getName()): entry for entry in system.listStatus(path)}
            for name, entry in entries.items():
                child = jvm.org.apache.hadoop.fs.Path(target, name)
                self._copy(system, entry, other, child)
            return
        self.check_lease()  # a driver may be suspended in the middle of a copy
        util, conf = jvm.org.apache.hadoop.fs.FileUtil, system.getConf()
        # Another driver that has taken the lease over may have copied the file, and changed it.
        util.copy(system, path, other, target, False, False, conf)

    def check_lease(self) -> None:
        """Fail if another driver has taken over the lease of the storage."""
        lease: Any = self._spark._jvm.penstock.storage.StorageLease
        if not isinstance(lease, JavaPackage):  # a borrowed session may lack it
            lease.check()
