"""The lease of a storage without file locks, such as S3: files that are created conditionally.

`<storage>/state/lease/<term>` belongs to the driver that created it; the driver of the newest term
holds the lease. `StorageLease.java` renews it, checks it before each commit, and explains why that
is safe. The table's log fences a driver that resumes in the middle of a commit: after a takeover,
each table that the other driver may write gets a commit, so that the other driver's commit has a
conflict, and the lease is checked again when it is retried.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock._model.quantity import plural
from penstock._runtime.lease import describe_holder, holder_lives, own_record, record_of
from penstock._runtime.system import SystemProcesses
from penstock._spark.failures import BUCKET_HINT, NO_BUCKET, full_text
from penstock._tables.delta_log import DeltaJvm
from penstock._tables.files import StorageFiles, hadoop_path
from penstock._tables.layout import StorageLayout
from penstock.errors import SetupError

_RENEWALS = 3
"""Number of renewals of a lease in its duration."""
_LOOKS = 10
"""Number of reads of another driver's lease in that time."""
_COMMITS = 4  # concurrent ones of a driver that takes over


class StorageLease:
    """The lease of a storage; thread-safe. Create it with `acquire`."""

    def __init__(
        self,
        spark: SparkSession,
        storage: str,
        holder: Mapping[str, str],
        seconds: float,
        is_borrowed: bool,
    ) -> None:
        self._spark = spark
        self._is_borrowed = is_borrowed
        self._files = StorageFiles(spark)
        jvm: Any = spark._jvm
        self._java: Any = jvm.penstock.storage.StorageLease
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._folder = f"{StorageLayout(storage).state_dir}/lease"
        self._seconds = seconds
        self._record: dict[str, Any] = {
            **own_record(holder, SystemProcesses()),
            "machine": _machine(),
            "id": uuid.uuid4().hex,
            "tables": [],
        }
        self._tables: set[str] = set()
        self._term = 0
        self._jvm: Any = None
        self._on_lost: Callable[[str], None] = lambda _: None
        self._lost: str | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    @classmethod
    def acquire(
        cls,
        spark: SparkSession,
        storage: str,
        holder: Mapping[str, str],
        seconds: float,
        on_wait: Callable[[str], None] = lambda _: None,
        *,
        is_borrowed: bool = False,
    ) -> Self:
        """Take the lease.

        If another driver holds it, this waits for a renewal, and then fails; if the lease is not
        renewed during its duration, it is taken over. There is no wait for a driver that ran on
        this machine and has ended. `is_borrowed`: other code of the session may commit after the
        release.

        Raises:
            SetupError: LEASE_HELD, or LEASE_UNAVAILABLE if the storage fails.
        """
        lease = cls(spark, storage, holder, seconds, is_borrowed)
        try:
            lease._acquire(on_wait)
        except (Py4JError, PySparkException) as error:  # the latter for a refused address
            lease._end(type(error))
            raise lease._failed(error) from error
        return lease

    def add_tables(self, paths: Iterable[str]) -> None:
        """Record tables before they are written: a driver that takes over fences them.

        Raises:
            SetupError: As `acquire`.
        """
        with self._lock:
            new = set(paths) - self._tables
            if new:
                self._tables |= new
                try:
                    self._jvm.setRecord(self._text())
                except Py4JError as error:
                    raise self._failed(error) from error

    def failure(self) -> str | None:
        """The failure if another driver has taken over the lease; reads the storage."""
        try:
            self._jvm.renew()
        except (Py4JError, OSError) as error:
            # Other failures of the storage may be transient, and the end of the JVM is reported
            # elsewhere: no commit succeeds in the meantime.
            text = full_text(error)
            return text if "LEASE_LOST" in text else None
        return None

    def on_lost(self, call: Callable[[str], None]) -> None:
        """Set the function to call, on another thread, when another driver takes over the lease."""
        self._on_lost = call
        if self._lost is not None:
            call(self._lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lease. Unless the session is borrowed, later commits of this driver fail."""
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        self._ended.set()
        if self._jvm is None:
            return
        # Without the JVM, the lease expires.
        with contextlib.suppress(Py4JError, OSError):
            # After an error, a commit may be in flight: the next driver fences the tables.
            tables = [] if kind is None else sorted(self._tables)
            self._jvm.release(json.dumps({**self._record, "tables": tables, "released": True}))
            if self._is_borrowed:
                self._java.forget()

    # -- acquisition ---------------------------------------------------------------------------

    def _acquire(self, on_wait: Callable[[str], None]) -> None:
        while True:
            term, text = self._newest()
            if term and not _may_be_taken(_record(text)):
                text = self._wait(term, text, on_wait)
            self._term = term + 1
            self._tables = set(_record(text).get("tables", ()))
            if self._create() and self._newest()[0] == self._term:
                break
        # The other driver renews before it checks for a newer term: if it renewed after our check,
        # it has seen our term, or will see it.
        while term and not _may_be_taken(_record(now := self._read(term))) and now != text:
            text = now
            self._ended.wait(self._seconds)
        java: Any = self._java
        self._jvm = java.hold(
            self._path(self._term), self._text(), int(self._seconds * 1000), self._conf
        )
        threading.Thread(target=self._renew, name="lease", daemon=True).start()
        if self._tables:
            on_wait(f"taking over {plural(len(self._tables), 'table')}, with a commit to each")
            self._fence()
        for number in self._terms():
            if number < self._term:
                self._files.delete_tree(self._path(number))

    def _wait(self, term: int, text: str, on_wait: Callable[[str], None]) -> str:
        """Wait until another driver's lease may be taken, and return its file; fail if renewed."""
        record = _record(text)
        on_wait(f"waiting at most {self._seconds:g} s for the lease of {describe_holder(record)}")
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            self._ended.wait(self._seconds / _LOOKS)
            now = self._read(term)
            if _may_be_taken(_record(now)):
                return now
            if now != text:
                raise self._held(now)
        return text

    def _failed(self, error: Exception) -> SetupError:
        text = full_text(error)
        if "LEASE_LOST" in text:  # taken over before a renewal
            return self._held(self._newest()[1])
        reason = first_line(text.strip().rpartition("\n")[2])
        hint = "check the endpoint, that the bucket exists, and that the credentials are "
        hint += "valid and allow to list, read, write and delete there"
        if "No FileSystem for scheme" in reason:
            hint = "open-source Spark reads S3 as s3a://; other file systems need their jars "
            hint += "(setting spark.jars)"
        elif NO_BUCKET in reason:
            hint = BUCKET_HINT
        return SetupError(
            "LEASE_UNAVAILABLE", f"cannot take the lease in {self._folder}: {reason}", hint=hint
        )

    def _held(self, text: str) -> SetupError:
        holder = describe_holder(_record(text))
        return SetupError(
            "LEASE_HELD",
            f"another update writes here: {holder} holds the lease in {self._folder}",
            hint="wait for it to end, or stop it there",
        )

    def _fence(self) -> None:
        """Commit to every table that the previous driver may write."""
        delta = DeltaJvm(self._spark)
        # Not `ManualUpdate`: after it, Delta computes the state of the table.
        operation = delta.streaming_operation(self._folder, self._term, "{}", complete=False)

        def commit(path: str) -> None:
            transaction = delta.begin(path)
            if int(transaction.snapshot().version()) >= 0:
                fence = delta.set_transaction(self._folder, self._term, int(time.time() * 1000))
                transaction.commit(delta.seq([fence]), operation)

        with ThreadPoolExecutor(_COMMITS, thread_name_prefix="lease") as pool:
            list(pool.map(commit, sorted(self._tables)))
        self._tables = set()

    # -- files ---------------------------------------------------------------------------------

    def _create(self) -> bool:
        _, path = hadoop_path(self._spark, self._path(self._term))
        return bool(self._java.create(path, bytearray(f"{self._text()}\n".encode()), self._conf))

    def _terms(self) -> list[int]:
        return [int(name) for name in self._files.names(self._folder) if name.isdecimal()]

    def _newest(self) -> tuple[int, str]:
        term = max(self._terms(), default=0)
        return term, self._read(term) if term else ""

    def _read(self, term: int) -> str:
        _, path = hadoop_path(self._spark, self._path(term))
        return self._java.read(path, self._conf) or ""

    def _path(self, term: int) -> str:
        return f"{self._folder}/{term:020d}"

    def _text(self) -> str:
        return json.dumps({**self._record, "tables": sorted(self._tables)})

    # -- renewal -------------------------------------------------------------------------------

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            self._lost = self.failure()
            if self._lost is not None:
                self._on_lost(self._lost)
                return


def has_java_classes(spark: SparkSession) -> bool:
    """Whether a session has Penstock's Java classes; a borrowed one may lack them."""
    jvm: Any = spark._jvm
    return not isinstance(jvm.penstock.storage.StorageLease, JavaPackage)


def _record(text: str) -> dict[str, Any]:
    return record_of(text.partition("\n")[0])


def _may_be_taken(record: Mapping[str, Any]) -> bool:
    """Whether a term was released, or its driver ran on this machine and has ended."""
    if record.get("released"):
        return True
    is_here = record.get("machine") == _machine()
    return is_here and not holder_lives(record, SystemProcesses())


def _machine() -> str:
    """The scope in which process ids are unique: a boot of a kernel, and a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return uuid.uuid4().hex
