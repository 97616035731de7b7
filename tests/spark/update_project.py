"""A small pipeline project in a folder, run in this process on the shared session."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stored_rows import stored_rows

from penstock._observe.bus import EventBus
from penstock._observe.events import Event
from penstock._observe.log import read_events
from penstock._project.spec import load_settings
from penstock._runtime.update import UpdateResult
from penstock._tables.files import local_path
from penstock._tables.layout import StorageLayout
from penstock._update import UpdateOptions, run_update

HEADER = """
import penstock as dp
from pyspark.sql import functions as F

ROWS = "id BIGINT, amount INT, ts TIMESTAMP"


def rows(folder="data"):
    return spark.readStream.schema(ROWS).json(folder)
"""


class Project:
    """A project folder; `run` runs an update of the last `source`."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root = root
        self.spark = spark
        self.events: list[Event] = []
        (root / "data").mkdir()

    def source(self, text: str) -> "Project":
        (self.root / "pipeline.py").write_text(HEADER + text, encoding="utf-8")
        return self

    def add(self, name: str, rows: list[dict[str, Any]], folder: str = "data") -> "Project":
        target = self.root / folder / name
        target.parent.mkdir(exist_ok=True)
        draft = target.with_name("." + name)
        draft.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        draft.rename(target)
        return self

    def run(
        self, *, on_running: Callable[[Any], None] | None = None, **options: Any
    ) -> UpdateResult:
        settings = load_settings(self.root)
        bus = EventBus()
        self.events = []
        bus.subscribe(self.events.append)
        return run_update(settings, UpdateOptions(**options), bus=bus, on_running=on_running)

    def path(self, table: str) -> Path:
        layout = StorageLayout(load_settings(self.root).storage)
        folder = local_path(layout.root)
        assert folder is not None
        return folder / "tables" / "spark_catalog" / "default" / table

    def table(self, name: str) -> Any:
        return self.spark.read.format("delta").load(str(self.path(name)))

    def rows(
        self, name: str, *columns: str, key: Callable[[Any], Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of a table, sorted; columns may be expressions."""
        return stored_rows(self.spark, self.path(name), *columns, key=key)

    def version(self, name: str) -> int:
        return max(int(f.stem) for f in (self.path(name) / "_delta_log").glob("*.json"))

    def log(self, event_type: str) -> list[dict[str, Any]]:
        directory = self.root / ".penstock" / "events"
        return list(read_events(directory, event_type=event_type))

    def commits_folder(self, flow: str) -> Path:
        (epoch,) = (self.root / ".penstock" / "checkpoints" / flow).iterdir()
        return epoch / "commits"


@contextlib.contextmanager
def shared_project(root: Path, spark: Any) -> Iterator[Project]:
    """A project that is updated once and then read by several tests."""
    with contextlib.chdir(root):
        yield Project(root, spark)


class ContinuousRun:
    """A continuous update on a separate thread."""

    def __init__(self, project: Project, **options: Any) -> None:
        self.project = project
        self.result: UpdateResult | None = None
        self.error: BaseException | None = None
        self._update: Any = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(options,), daemon=True)
        self._thread.start()

    def _run(self, options: dict[str, Any]) -> None:
        try:
            self.result = self.project.run(continuous=True, on_running=self._running, **options)
        except BaseException as error:
            self.error = error
        finally:
            self._started.set()

    def _running(self, update: Any) -> None:
        self._update = update
        self._started.set()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        deadline = threading.Event()
        for _ in range(int(seconds / 0.25)):
            if self.error is not None:
                raise self.error
            try:
                if condition():
                    return
            except Exception as error:
                # The table may not exist yet.
                if "PATH_NOT_FOUND" not in str(error) and "DELTA" not in str(error):
                    raise
            deadline.wait(0.25)
        raise AssertionError("the condition was not met in time")

    def stop(self, seconds: float = 60) -> UpdateResult:
        self._started.wait(seconds)
        if self._update is not None:
            self._update.request_stop()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the update did not stop"
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result
