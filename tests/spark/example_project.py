"""A folder of `examples/`, copied and run in this process on the shared session."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock._observe.bus import EventBus
from penstock._observe.events import Event
from penstock._project.spec import load_settings
from penstock._runtime.update import UpdateResult
from penstock._update import UpdateOptions, run_update

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Example:
    """A copy of an example; the test's working directory must be its root."""

    def __init__(self, name: str, root: Path, spark: Any) -> None:
        shutil.copytree(EXAMPLES / name, root, dirs_exist_ok=True)
        self.root = root
        self.spark = spark
        self.events: list[Event] = []

    def run(
        self,
        configuration: Mapping[str, str] | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> UpdateResult:
        settings = load_settings(self.root, configuration=configuration)
        bus = EventBus()
        self.events = []
        bus.subscribe(self.events.append)
        if on_event is not None:
            bus.subscribe(on_event)
        return run_update(settings, UpdateOptions(**options), bus=bus)

    def table(self, name: str) -> Any:
        path = self.root / "storage" / "tables" / "spark_catalog" / "default" / name
        return self.spark.read.format("delta").load(str(path))

    def quarantined(self, name: str) -> list[tuple[list[str], dict[str, Any]]]:
        """Violated rules and row of each record in the quarantine of a table."""
        rows = self.table(f"{name}_quarantine").collect()
        return [(row["_failed_rules"], json.loads(row["_row"])) for row in rows]
