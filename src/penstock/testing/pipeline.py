"""A pipeline in a test: rows for its sources, updates, and the rows of its tables."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from penstock._analysis.external_tables import ExternalTables
from penstock._graph.index import DefinitionIndex
from penstock._graph.indexing import build_index
from penstock._model.alert import AlertSettings
from penstock._model.dataset import DatasetKind
from penstock._model.export import LineageSettings, MetricsSettings, TelemetrySettings
from penstock._model.flow import Flow
from penstock._model.name import DatasetName, comparable_parts, resolve_name
from penstock._model.pipeline import EventLogSettings, ExternalTable, PipelineDefinition
from penstock._observe.bus import EventBus
from penstock._observe.events import Event, FlowProgress, UpdateState
from penstock._project.spec import load_settings
from penstock._runtime.update import UpdateResult
from penstock._tables.kill_points import step_callback
from penstock._tables.layout import StorageLayout
from penstock._update import UpdateOptions, run_update
from penstock.errors import FlowError, SpecError
from penstock.testing.time import FrozenTime

Rows = DataFrame | Sequence[Mapping[str, Any]]


@dataclass
class Counts:
    """Rows that the flows of a table reported in the last update.

    Attributes:
        written: Added or merged rows.
        dropped: Rows that violated a drop rule.
        quarantined: Dropped rows that are kept in quarantine.
        late: Rows that were older than the watermark.
        duplicates: Rows whose key the table already had.
    """

    written: int = 0
    dropped: int = 0
    quarantined: int = 0
    late: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class _Added:
    """Rows of a test: the name of the source as first written, and the table of the rows."""

    source: str
    folder: Path
    is_batch: bool


class PipelineTest:
    """A project whose updates run in this process, with a separate storage.

    Args:
        project: Folder of the project, or a source file.
        storage: Folder for tables and checkpoints; initially empty.
        spark: A session with Delta; see the fixture `penstock_spark`.
        configuration: Configuration whose keys override those of the settings file.
        parameters: Parameters whose keys override those of the settings file.
    """

    def __init__(
        self,
        project: Path,
        storage: Path,
        spark: SparkSession,
        *,
        configuration: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self._storage = storage
        self._layout = StorageLayout(str(storage))
        self._settings = load_settings(
            project, storage=str(storage), configuration=configuration, parameters=parameters
        )
        self._rows: dict[str, _Added] = {}
        self._used: set[str] = set()
        self._paths: dict[str, str] = {}
        self._counts: dict[str, Counts] = {}
        self._time: datetime | None = None

    def add_rows(
        self,
        source: str,
        rows: Rows,
        schema: str | StructType | None = None,
        *,
        batch: bool = False,
    ) -> "PipelineTest":
        """Add rows to a source of the pipeline; the next update reads them.

        Args:
            source: A dataset of the pipeline, whose query then returns these rows instead of what
                it reads (its expectations still apply); or a table that the pipeline reads and
                does not declare.
            rows: Mappings with the same keys, or a DataFrame.
            schema: DDL or type of the rows; required if columns are missing or all values of a
                column are `None`.
            batch: Whether the query of the dataset returns all rows as a batch. By default they are
                a stream, except for materialized views and flows with `once` or `replace_where`.

        Raises:
            SpecError: The keys of a row differ from those of the first row or from the schema.
        """
        df = rows if isinstance(rows, DataFrame) else self._frame(rows, schema)
        key = self._name(source).key
        folder = self._storage / "_rows" / key
        df.write.format("delta").mode("append").option("mergeSchema", "true").save(str(folder))
        first = self._rows.get(key, _Added(source, folder, batch))
        self._rows[key] = replace(first, is_batch=batch or first.is_batch)
        return self

    def add_file(self, path: str, content: str | bytes) -> "PipelineTest":
        """Write a file to a path that the pipeline reads.

        Args:
            path: Path as in the code, with the name of the file: `/Volumes/raw/orders/1.json`. The
                whole folder is replaced with one of the test.
            content: Content of the file.
        """
        folder, _, name = path.rpartition("/")
        target = self._storage / "_files" / folder.replace(":", "_").strip("/")
        target.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content.encode() if isinstance(content, str) else content)
        self._paths[folder] = str(target)
        return self

    def freeze_time(self, time: datetime | str) -> "PipelineTest":
        """Set what `current_timestamp`, `now` and `current_date` return in the next updates.

        It applies to queries, in Python and SQL, and to expectations whose condition is a string.

        Args:
            time: A time, or a string in ISO format; UTC unless it has a time zone.
        """
        parsed = datetime.fromisoformat(time) if isinstance(time, str) else time
        self._time = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        return self

    def run(self, *tables: str, **options: Any) -> UpdateResult:
        """Run an update, which must complete.

        Args:
            tables: Tables to update; all by default.
            options: `full_refresh` (names of tables), `full_refresh_all`, `replace_where`.

        Raises:
            AssertionError: A flow failed; the message has the errors. Or rows were added to a name
                that the pipeline neither declares nor reads.
            PenstockError: The update could not start.
        """
        result = self._update(refresh=tables, **options)
        unused = [added.source for key, added in self._rows.items() if key not in self._used]
        errors = "\n".join(str(error) for error in result.failures)
        is_whole = not tables and not options.get("full_refresh")
        assert not (is_whole and unused), (
            f"the pipeline neither declares nor reads {unused}\n{errors}"
        )
        assert result.state is UpdateState.COMPLETED, f"the update ended {result.state}: {errors}"
        return result

    def run_and_crash(self, step: str, *flows: str) -> UpdateResult:
        """Run an update whose flows fail at a step, as if the process had been killed there.

        The next `run` repeats the batch from its checkpoint.

        Args:
            step: `before_write`, `after_quarantine_commit` or `after_target_commit`.
            flows: Names of the flows that fail; all by default.

        Raises:
            AssertionError: No flow reached this step.
        """
        crashed = set()

        def crash(here: str, flow: str, batch_id: int | None) -> None:
            if here == step and (not flows or flow in flows):
                crashed.add(flow)
                raise FlowError("CRASHED", f"crash {here}", flow=flow, batch_id=batch_id)

        with step_callback(crash):
            result = self._update()
        assert crashed, f"no flow reached the step {step!r}"
        return result

    def table(self, name: str) -> DataFrame:
        """The current rows of a table of the pipeline."""
        return self.spark.read.format("delta").load(self._layout.table_path(self._name(name)))

    def quarantine(self, table: str) -> DataFrame:
        """The rows of a table's quarantine, with its columns and `_failed_rules`; may be empty."""
        path = self._layout.quarantine_path(self._name(table))
        if not Path(path, "_delta_log").exists():
            return self.table(table).limit(0)
        return self.spark.read.format("delta").load(path)

    def counts(self, table: str) -> Counts:
        """The counts that the flows of a table reported in the last update."""
        return self._counts.get(table.lower(), Counts())

    # -- helpers -------------------------------------------------------------------------------

    def _frame(self, rows: Sequence[Mapping[str, Any]], schema: str | StructType | None) -> Any:
        wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        names = list(rows[0] if rows else ()) if wanted is None else wanted.names
        for row in rows:
            differing = set(row) - set(names) if wanted else set(row) ^ set(names)
            if differing:
                raise SpecError(
                    "TEST_ROWS_REFUSED",
                    f"not all rows have `{min(differing)}`"
                    if wanted is None
                    else f"the schema of the rows has no `{min(differing)}`",
                    hint="give all rows the same keys, or name the columns in `schema`",
                )
        values = [tuple(row.get(name) for name in names) for row in rows]
        return self.spark.createDataFrame(values, names if wanted is None else wanted)

    def _update(self, **options: Any) -> UpdateResult:
        self._counts = {}
        bus = EventBus()
        bus.subscribe(self._count)
        tables = {
            name: table
            for name, table in self._settings.tables.items()
            if name.endswith("*") or self._name(name).key not in self._rows
        }
        for key, added in self._rows.items():
            tables[key] = ExternalTable(path=str(added.folder), format="delta")
        settings = replace(
            self._settings,
            tables=MappingProxyType(tables),
            paths=MappingProxyType({**self._settings.paths, **self._paths}),
            # Tests do not read from or register in other systems, export events or send messages.
            defer=None,
            metastore=None,
            events=EventLogSettings(),
            alerts=AlertSettings(),
            lineage=LineageSettings(is_wanted=False),
            metrics=MetricsSettings(),
            telemetry=TelemetrySettings(is_wanted=False),
        )
        with contextlib.chdir(Path.cwd()):
            return run_update(settings, UpdateOptions(**options), bus=bus, edit=self._edited)

    def _edited(self, declared: PipelineDefinition, external: ExternalTables) -> PipelineDefinition:
        """The pipeline in which datasets with test rows read these, at the time of the test.

        All tables are in the storage of the test, and event hooks are not called.
        """
        index = build_index(declared, self._settings)
        rows = self._of_datasets(index, external)
        self._used = external.used
        flows: list[Flow] = []
        replaced: set[str] = set()
        for flow in declared.flows:
            dataset = index.find(flow.target)
            added = None if dataset is None else rows.get(dataset.name.key)
            if dataset is None or added is None:
                flows.append(flow)
            elif flow.cdc is not None or flow.snapshot is not None:
                raise SpecError(
                    "TEST_ROWS_REFUSED",
                    f"{flow.target!r} is the target of auto CDC: it cannot be given rows",
                    hint="add the change events to the dataset that the flow reads",
                )
            elif dataset.name.key not in replaced:
                replaced.add(dataset.name.key)
                is_batch = (
                    added.is_batch
                    or flow.once
                    or flow.replace_where is not None
                    or dataset.declared.kind is DatasetKind.MATERIALIZED_VIEW
                )
                flows.append(replace(flow, function=self._reader(added.folder, is_batch)))
        datasets = tuple(replace(dataset, path=None) for dataset in declared.datasets)
        declared = replace(declared, flows=tuple(flows), datasets=datasets, hooks=())
        if self._time is None:
            return declared
        frozen = FrozenTime(self._time, self.spark)
        return replace(
            declared,
            flows=tuple(
                flow if flow.snapshot else replace(flow, function=frozen.query(flow.function))
                for flow in flows
            ),
            datasets=tuple(frozen.dataset(dataset) for dataset in datasets),
        )

    def _of_datasets(self, index: DefinitionIndex, external: ExternalTables) -> dict[str, _Added]:
        """The rows of each dataset, by its key; other rows belong to external tables."""
        rows: dict[str, _Added] = {}
        for key, added in self._rows.items():
            end = "." + ".".join(comparable_parts(added.source) or ())
            names = [name for name in index.datasets if name.endswith(end)]
            end_of = index.datasets[names[0]] if len(names) == 1 else None
            dataset = index.find(added.source) or end_of
            if dataset is not None and dataset.name.key not in rows:
                rows[dataset.name.key] = added
                external.leave(key)
            elif dataset is not None or len(names) > 1:
                raise SpecError(
                    "TEST_ROWS_REFUSED",
                    f"{added.source!r} could be {' or '.join(map(repr, names))}"
                    if dataset is None
                    else f"rows of {dataset.declared.name!r} are added under two names",
                    hint="use the name of the dataset with its schema",
                )
        return rows

    def _reader(self, folder: Path, is_batch: bool) -> Any:
        def read() -> DataFrame:
            reader: Any = self.spark.read if is_batch else self.spark.readStream
            df: DataFrame = reader.format("delta").load(str(folder))
            return df

        return read

    def _count(self, event: Event) -> None:
        if isinstance(event.body, FlowProgress) and event.body.metrics is not None:
            metrics, name = event.body.metrics, event.origin.dataset_name or ""
            for key in {name.lower(), name.lower().rpartition(".")[2]}:
                counts = self._counts.setdefault(key, Counts())
                written = (metrics.num_output_rows or 0) + (metrics.num_upserted_rows or 0)
                counts.written += written
                counts.dropped += metrics.dropped_records or 0
                counts.quarantined += metrics.quarantined_records or 0
                counts.late += metrics.late_records or 0
                counts.duplicates += metrics.duplicate_records or 0

    def _name(self, name: str) -> DatasetName:
        catalog, schema = self._settings.catalog, self._settings.schema
        return resolve_name(name, catalog=catalog, schema=schema)


def assert_rows(actual: DataFrame, expected: Iterable[Mapping[str, Any]]) -> None:
    """Compare the rows of a table with the expected rows, in any order.

    Args:
        actual: A DataFrame such as `pipeline.table("orders")`.
        expected: One mapping per row, all with the same keys; only these columns are compared.

    Raises:
        AssertionError: Rows differ; the message has them.
    """
    rows = [dict(row) for row in expected]
    names = list(rows[0]) if rows else actual.columns
    if not rows:
        shown = [json.dumps(row.asDict(), default=str) for row in actual.limit(5).collect()]
        assert not shown, "no rows are expected, but there are:\n" + "\n".join(shown)
        return
    selected = actual.select(*names)
    schema = selected.schema
    # As Spark returns them: a nested mapping becomes a Row, a timestamp loses its time zone.
    wanted = [schema.fromInternal(schema.toInternal(tuple(row[n] for n in names))) for row in rows]
    assertDataFrameEqual(selected.collect(), wanted)
