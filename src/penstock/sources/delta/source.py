"""Streams of Delta tables, the pipeline's own and others."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock._model.flow import Flow
from penstock._model.paths import MISSING_PATH_HINT
from penstock._model.similar import nearest
from penstock._model.sql_text import delta_table
from penstock._tables.commits import actions_of
from penstock._tables.delta_log import DeltaJvm, size_in_bytes
from penstock._tables.jvm import dataframe
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock._tables.read.log_scan import LoggedRemovals, append_only_start, logged_removals
from penstock.errors import ConnectorError, FlowError, PenstockError, PlanError
from penstock.sources import checkpoints
from penstock.sources.base import (
    OpenedSource,
    Position,
    Range,
    RangeReport,
    Read,
    Source,
    StartKind,
    StartPosition,
    StartReport,
    flow_error,
    not_read_yet,
    path_key,
    range_invalid,
    start_not_available,
)
from penstock.sources.delta.lag import PendingVersions

_DESCRIPTION = "DeltaSource["
STARTS = ("startingversion", "startingtimestamp")
_FEEDS = ("readchangefeed", "readchangedata")
_SKIPS = ("skipchangecommits", "ignorechanges")
_OUTSIDE = re.compile(r"\[DELTA_(?:VERSION_NOT_FOUND|TIMESTAMP_GREATER_THAN_COMMIT)\w*\] (.+)")
_ENDS = ("endingVersion", "endingTimestamp")
_OPTIONS = (
    "allowSourceColumnDrop allowSourceColumnRename allowSourceColumnTypeChange excludeRegex "
    "failOnDataLoss ignoreChanges ignoreDeletes ignoreFileDeletion maxBytesPerTrigger "
    "maxFilesPerTrigger path readChangeData readChangeFeed schemaLocation schemaTrackingLocation "
    "skipChangeCommits startingTimestamp startingVersion streamingSourceTrackingId timestampAsOf "
    "versionAsOf withEventTimeOrder"
)
# With one of these options, the query specifies how its beginning is read.
OWN_BEGINNING = (*_FEEDS, "witheventtimeorder", "schematrackinglocation", "schemalocation")
_MOST_FILES = 20_000
_LONGEST_LOG = 10_000
_BEYOND_NEWEST = "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled"


class DeltaSource(Source):
    """Delta tables, read by Delta's own source."""

    formats = ("delta",)

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        for name in options:
            near = nearest(name, (*_OPTIONS.split(), *_ENDS), cutoff=0.8)
            is_known = near is None or near.lower() == name.lower()
            if not is_known or (is_stream and near in _ENDS):
                raise ConnectorError(
                    "DELTA_OPTION_UNKNOWN",
                    f"{'a stream of a Delta table' if is_known else 'Delta'} would ignore the "
                    f"option `{name}`",
                    hint="a stream has no end: read the versions as a batch, or filter rows"
                    if is_known
                    else f"did you mean `{near}`?",
                )
        return dict(options)

    def open(self, read: Read) -> OpenedSource:
        if not read.is_stream or len(read.paths) != 1:
            return OpenedSource(read.load(read.options), name=self.describe(read))
        try:
            return DeltaStream(read, read.paths[0])
        except (AnalysisException, Py4JJavaError) as error:
            # Delta's error for a path without a log; that of a batch read names the path.
            if "DELTA_SCHEMA_NOT_SET" not in str(error):
                raise
            raise FlowError(
                "PATH_NOT_FOUND",
                f"there is no Delta table at {path_key(read.paths[0])}: the folder does not exist, "
                "is empty, or its storage is not mounted",
                flow=read.flow,
                retryable=True,
                hint=MISSING_PATH_HINT,
            ) from error


class DeltaStream(OpenedSource):
    """A stream of one table. Positions are versions; see `OpenedSource`."""

    def __init__(self, read: Read, path: str) -> None:
        self.path = path_key(path)
        self.paths = (path,)
        self._location = path
        self._spark = read.spark
        self._delta = DeltaJvm(read.spark)
        self._options = {name.lower(): value for name, value in read.options.items()}
        self._lag = PendingVersions(read.spark, of_changes=self.has_any(_FEEDS))
        super().__init__(self._rows(read), name=f"table {self.path}", unit="versions")
        # The `DeltaLog` of the query, which updates it before each batch.
        self._log = self._delta.log(self._location)
        self._table_id = self._current_id()
        self._flow: Flow | None = None

    def _current_id(self) -> str:
        return str(self._log.unsafeVolatileSnapshot().metadata().id())

    def _rows(self, read: Read) -> DataFrame:
        position = read.position
        version = position.get("versions", {}).get(self.path)
        if version is None and not position.get("from_the_start"):
            return read.load(read.options)
        options = options_at(read.options, position, self.path)
        if version is not None and version > int(self._delta.snapshot(self._location).version()):
            return self._waiting(options)
        rows = self._spark.readStream.format("delta").options(**options).load(self._location)
        last = position.get("end_versions", {}).get(self.path)
        return rows if last is None else self._within(rows, int(version or 0), int(last))

    def _waiting(self, options: Mapping[str, str]) -> DataFrame:
        """A stream that begins at a future version, which Delta refuses by default.

        Delta reads its setting when the first batch is planned, in the session in which the stream
        was created: a separate session, so that the setting has no other effect.
        """
        session: Any = self._spark._jsparkSession.cloneSession()
        session.conf().set(_BEYOND_NEWEST, "true")
        reader = session.readStream().format("delta")
        for key, value in options.items():
            reader = reader.option(key, value)
        return dataframe(self._spark, reader.load(self._location).logicalPlan())

    def _within(self, rows: DataFrame, first: int, last: int) -> DataFrame:
        if "_commit_version" in rows.columns:  # a change feed has it as a column
            return rows.where(F.col("_commit_version").between(first, last))
        names = added_files(self._spark, self._location, first, last)
        # Delta's streams have no `_metadata`; directly above the scan, the file name is correct.
        return rows.where(F.element_at(F.split(F.input_file_name(), "/"), -1).isin(names))

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        name, end = str(progress.get("description", "")), progress.get("endOffset")
        if not name.startswith(_DESCRIPTION) or not isinstance(end, dict):
            return None
        path = name[len(_DESCRIPTION) : -1]
        if path_key(path) != self.path:
            return None
        lag = self._lag.measure(path, end)
        if self._current_id() != self._table_id:
            # No batch is planned while the new table has no more versions than the old one.
            lag["problem"] = (
                "the table was dropped or created again while the flow ran: put the old one back, "
                "or run a full refresh of the table of the flow"
            )
        return lag

    def check_identity(self, known: Mapping[str, str], flow: Flow, display: str) -> dict[str, str]:
        self._flow = flow
        return {}

    def check_batch(self, checkpoint: str, batch_id: int) -> None:
        """See `OpenedSource.check_batch`: Delta compares the table only at the start."""
        if self._flow is not None and self._current_id() != self._table_id:
            raise self._replaced(self._flow)

    def explain(self, text: str, flow: Flow) -> PenstockError | None:
        signs = ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE")
        if any(sign in text for sign in signs):
            return flow_error(
                "SOURCE_ROWS_CHANGED",
                flow,
                f"it reads a table whose rows were changed or deleted: {self.path}",
                hint='read its change feed (option "readChangeFeed"), ignore changes with option '
                f'"skipChangeCommits", or --full-refresh {flow.target}{flow.sink_reset}',
            )
        if self.has_any(STARTS) and (outside := _OUTSIDE.search(text)) is not None:
            return flow_error(
                "START_NOT_AVAILABLE",
                flow,
                f"{self.path} cannot be read from its startingVersion or startingTimestamp: "
                f"{outside[1]}",
                hint="choose a version that the table has; startingVersion `latest` begins with "
                "the next one",
            )
        if "DELTA_MISSING_CHANGE_DATA" in text:
            return flow_error(
                "FLOW_FAILED",
                flow,
                f"the change feed of {self.path} does not have all versions that it reads",
                hint="`ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true)` "
                'records changes from then on; option "startingVersion" begins there. '
                "DESCRIBE HISTORY shows the version",
            )
        if "DELTA_STREAMING_SCHEMA_LOCATION_NOT_UNDER_CHECKPOINT" in text:
            return flow_error(
                "FLOW_FAILED",
                flow,
                f"the `schemaTrackingLocation` of {self.path} must be below the checkpoint, of "
                "which Penstock chooses the folder",
                hint="remove the option. After a column of the table was renamed or removed, or "
                f"has another type: --full-refresh {flow.target}{flow.sink_reset}",
            )
        is_final = "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE" in text
        if is_final or "DELTA_SCHEMA_CHANGED" in text:
            return flow_error(
                "SOURCE_SCHEMA_CHANGED",
                flow,
                f"it reads a table whose columns changed: {self.path}",
                # A retry reads a column that was added during the update.
                retryable=not is_final,
                hint="if a column was removed, renamed or has another type: "
                f"--full-refresh {flow.target}{flow.sink_reset}",
            )
        folder = re.escape(f"{self.path}/")
        data_file = f"(?:FileNotFoundException|FILE_NOT_(?:EXIST|FOUND)).*{folder}(?!_delta_log)"
        if re.search(f"{data_file}|DELTA_LOG_FILE_NOT_FOUND.*{folder}_delta_log", text):
            return flow_error(
                "SOURCE_ROWS_LOST",
                flow,
                f"files or commits that were not read yet are missing: {self.path}",
                hint="if they were moved, or their storage is not mounted, put them back: the flow "
                "continues. If VACUUM or the retention of the log deleted them, --full-refresh "
                f"{flow.target} reads the newest version of the table{flow.sink_reset}. A longer "
                "`delta.deletedFileRetentionDuration` and `delta.logRetentionDuration` of the "
                "table keep them for flows that do not run for a while",
            )
        if "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE" in text:
            return self._replaced(flow)
        return None

    def _replaced(self, flow: Flow) -> FlowError:
        return flow_error(
            "SOURCE_TABLE_REPLACED",
            flow,
            f"its checkpoint has read another table than {self.path}",
            hint="the table was created again, a target with `defer_to` reads it from another "
            "storage now, or the query names its sources in another order than before: restore "
            f"the order, or --full-refresh {flow.target} reads it from its "
            f"start{flow.sink_reset}",
        )

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        version = self._version(at)
        read = self._read_by(done)
        report = self.start_report(max(0, read - version), max(0, version - read), done)
        if at.kind is StartKind.EARLIEST:
            return {"from_the_start": True}, report
        return {"versions": {self.path: version}}, report

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        whole = self._whole_version(done)
        first = self._version(wanted.begin)
        if wanted.end is None:
            last = whole - 1
        elif wanted.end.kind is StartKind.VERSION:
            last = wanted.end.version
        else:
            last = self._version(wanted.end) - 1
        if last >= whole:
            raise not_read_yet(
                wanted.flow,
                f"it has read {self.name} before version {whole}, the range ends with {last}",
            )
        report = self.range_report(max(0, last - first + 1), f"{first} to {last}")
        return {"versions": {self.path: first}, "end_versions": {self.path: last}}, report

    def history(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        position, report = self.start(at, done, now_ms)
        snapshot = self._delta.snapshot(self._location)
        newest = int(snapshot.version())
        start = position.get("versions", {}).get(self.path)
        if at.kind is StartKind.EARLIEST and not self.has_any(OWN_BEGINNING):
            # Rows are read in commit order, so that as few as possible are late for a watermark.
            whole = append_only_start(self._delta, self._location, newest, most=_LONGEST_LOG)
            if whole is not None:
                position = {**position, "versions": {self.path: whole}}
        missing, note = lost_versions(
            logged_removals(self._delta, self._location, newest),
            own_start=self._options.get("startingversion", ""),
            start=start,
            read=self._read_by(done),
            created_ms=min((checkpoints.created_ms(c) for c in done), default=0),
        )
        return position, replace(report, missing=missing, size=size_in_bytes(snapshot), note=note)

    @property
    def on_replacement(self) -> str:
        """What the stream does if rows are replaced.

        `stops`, `skips` (the commit is skipped) or `changes` (deleted and inserted rows are read).
        """
        if self.has_any(_FEEDS):
            return "changes"
        return "skips" if self.has_any(_SKIPS) else "stops"

    def has_any(self, names: Sequence[str]) -> bool:
        """Whether one of these options is set."""
        return any(self._options.get(name, "false").lower() != "false" for name in names)

    def _version(self, at: StartPosition) -> int:
        times = self._times()
        first, newest = min(times), max(times)
        match at.kind:
            case StartKind.EARLIEST:
                return first
            case StartKind.LATEST:
                return newest + 1
            case StartKind.TIMESTAMP:
                later = [version for version, time in times.items() if time >= at.timestamp_ms]
                return min(later, default=newest + 1)
            case StartKind.VERSION:
                if not first <= at.version <= newest + 1:
                    raise PlanError(
                        "START_NOT_AVAILABLE",
                        f"table {self.path} has no version {at.version}: its log has {first} to "
                        f"{newest}",
                        hint=f"use one of them, or {newest + 1} for what comes next",
                    )
                return at.version
            case _:
                raise start_not_available(
                    at, f"a Delta table has no {at.kind.plural}", "use a version or a timestamp"
                )

    def _times(self) -> dict[int, int]:
        rows = self._spark.sql(f"DESCRIBE HISTORY {delta_table(self._location)}")
        return {
            int(row["version"]): int(row["at"])
            for row in rows.selectExpr("version", "unix_millis(timestamp) AS at").collect()
        }

    def _read_by(self, done: Sequence[Checkpoint]) -> int:
        """The version before which the checkpoints have read; a partly read version counts."""
        versions = [0]
        for offset in self._offsets(done):
            is_begun = offset.get("isStartingVersion") or int(offset.get("index", -1)) >= 0
            versions.append(int(offset["reservoirVersion"]) + bool(is_begun))
        return max(versions)

    def _whole_version(self, done: Checkpoint) -> int:
        """As `_read_by`, without versions that may be partly read."""
        versions = [
            0 if offset.get("isStartingVersion") else int(offset["reservoirVersion"])
            for offset in self._offsets([done])
        ]
        return max(versions, default=0)

    def _offsets(self, done: Sequence[Checkpoint]) -> list[Mapping[str, Any]]:
        table_id = self._delta.metadata(self._delta.begin(self._location)).id
        return [
            offset
            for checkpoint in done
            for offset in checkpoints.last_offsets(checkpoint)
            if "reservoirVersion" in offset and str(offset.get("reservoirId")) == table_id
        ]


def options_at(options: Mapping[str, str], position: Position, path: str) -> dict[str, str]:
    """The options of a stream of the table at a path, with the version where it begins."""
    version = position.get("versions", {}).get(path)
    if version is None and not position.get("from_the_start"):
        return dict(options)
    kept = {name: value for name, value in options.items() if name.lower() not in STARTS}
    return kept if version is None else {**kept, "startingVersion": str(version)}


def added_files(spark: SparkSession, path: str, first: int, last: int) -> list[str]:
    """Names of the files that the commits of a range have added."""
    delta = DeltaJvm(spark)
    names: list[str] = []
    for version in range(first, last + 1):
        for file in actions_of(delta.commit_lines(path, version) or (), "add"):
            # Delta's names of files are unique, and have no characters that URIs escape.
            names.append(file["path"].rpartition("/")[2])
        if len(names) > _MOST_FILES:
            raise range_invalid(
                f"versions {first} to {last} of {path} have more than {_MOST_FILES:,} files",
                "backfill a part of the range, and then the next",
            )
    return names


def lost_versions(
    removals: LoggedRemovals, *, own_start: str, start: int | None, read: int, created_ms: int
) -> tuple[str, str]:
    """What a table has lost since a flow began to read it, and what is unknown."""
    missing = ""
    changed = [
        f"{version} ({operation})"
        for version, (operation, at) in removals.versions.items()
        if read and (version >= int(own_start) if own_start.isdecimal() else at > created_ms)
    ]
    if start is not None and start > 0:
        missing = f"rows of versions before {start} are not read"
    elif changed:
        missing = "rows that the flow has read were removed or changed since, by version " + (
            ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        )
    note = ""
    if removals.first > 0:
        note = f"its log begins at version {removals.first}: what was removed before is not known"
    return missing, note
