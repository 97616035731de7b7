"""The contract of a source: a system that flows read streams from.

A `Source` is a system, identified by the names of its formats. Its `open` turns a configured reader
into an `OpenedSource`: the rows of one stream of one query, and methods that report on this stream.
Another package adds a system with an entry point `penstock.sources` that names a subclass of
`Source`; no other code has to change. docs/adding-a-source.md has a complete example.

Only `open` must be implemented. A source without other methods starts at the position in its
options, reports no lag, and cannot be reset to a position; Spark's checkpoint gives it exactly-once
delivery as long as a batch that is planned again has the same rows.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock._model.flow import Flow
from penstock._observe.codec import time_text
from penstock._tables.read.checkpoint_files import Checkpoint
from penstock.errors import FlowError, PenstockError, PlanError, SpecError
from penstock.sources.memory import PassingMemory, SourceMemory

Offsets = Mapping[str, Mapping[str, int]]
"""Topic to number of the partition to offset."""

Position = Mapping[str, Any]
"""Where the streams of a flow begin and end: JSON, kept with the flow. Each source reads the keys
that it wrote itself; `merged` combines the positions of several sources."""

NOWHERE: Position = {}
"""Streams begin at the positions in their options."""


class StartKind(StrEnum):
    """How a user names a start position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    VERSION = "version"
    OFFSETS = "offsets"
    KEY = "key"

    @property
    def plural(self) -> str:
        """The plural, for messages about what a source does not have."""
        return f"{self.value.removesuffix('s')}s"


@dataclass(frozen=True, kw_only=True)
class StartPosition:
    """A position in the streams of a flow, as a user names it.

    Attributes:
        kind: Which of the following attributes applies.
        timestamp_ms: Milliseconds since 1970, for `TIMESTAMP`.
        version: A version of a Delta table, for `VERSION`.
        offsets: For `OFFSETS`; partitions that are not named are read from their first record.
        key: The first key of a table in a database, for `KEY`.
    """

    kind: StartKind
    timestamp_ms: int = 0
    version: int = 0
    offsets: Offsets = field(default_factory=dict)
    key: str = ""

    def __str__(self) -> str:
        match self.kind:
            case StartKind.OFFSETS:
                return f"offsets {json.dumps(self.offsets)}"
            case StartKind.TIMESTAMP:
                return iso(self.timestamp_ms)
            case StartKind.VERSION:
                return f"version {self.version}"
            case StartKind.KEY:
                return f"key {self.key}"
            case _:
                return self.kind.value


EARLIEST = StartPosition(kind=StartKind.EARLIEST)


def parse_start(text: str, option: str = "--from") -> StartPosition:
    """A start position from the command line; raises `START_INVALID`, which names the option.

    `earliest`, `latest`, an ISO timestamp (UTC if it has no offset), `version=12`, `key=500`, or
    offsets as JSON.
    """
    word = text.strip()
    if word.lower() in (StartKind.EARLIEST, StartKind.LATEST):
        return StartPosition(kind=StartKind(word.lower()))
    name, is_pair, value = word.partition("=")
    try:
        if word.startswith("{"):
            return StartPosition(kind=StartKind.OFFSETS, offsets=_offsets(json.loads(word)))
        if is_pair and name.strip().lower() == "version" and int(value) >= 0:
            return StartPosition(kind=StartKind.VERSION, version=int(value))
        if is_pair and name.strip().lower() == "key" and value.strip():
            return StartPosition(kind=StartKind.KEY, key=value.strip())
        if not is_pair or name.strip().lower() == "timestamp":
            at = datetime.fromisoformat((value if is_pair else word).strip())
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return StartPosition(
                kind=StartKind.TIMESTAMP, timestamp_ms=round(at.timestamp() * 1000)
            )
    except (ValueError, OverflowError, AttributeError, TypeError):
        pass
    raise SpecError(
        "START_INVALID",
        f"{option} {text!r} is not a start position",
        hint="use `earliest`, `latest`, a timestamp such as `2026-03-01T10:00:00Z`, `version=12` "
        "of a Delta table, `key=500` of a table in a database, or offsets such as "
        '`{"orders": {"0": 250}}`',
    )


def _offsets(body: Any) -> Offsets:
    offsets = {
        str(topic): {str(int(number)): int(offset) for number, offset in parts.items()}
        for topic, parts in body.items()
    }
    if any(offset < 0 for parts in offsets.values() for offset in parts.values()):
        raise ValueError
    return offsets


def iso(milliseconds: int) -> str:
    """A timestamp as an ISO 8601 string in UTC."""
    return time_text(datetime.fromtimestamp(milliseconds / 1000, UTC))


@dataclass(frozen=True, kw_only=True)
class Read:
    """A reader of a query, as it is when `load` is called.

    Attributes:
        spark: The session.
        format: As in `format()`, lower case.
        options: With secrets filled in; names as the user spelled them.
        schema: As in `schema()`; `None` if it was not called.
        paths: Mapped and absolute.
        is_stream: Whether it is `readStream`.
        flow: Name of the flow; empty while source files are loaded.
        is_analysis: Whether the query is only analyzed: nothing may be persisted.
        position: Where the flow's streams begin and end; empty means the positions in the options.
        is_triggered: Whether the flow's query ends after it has read what exists when it starts.
        memory: Returns the stored state of a source, by a key that the source chooses; it is
            deleted with the checkpoint.
        load: Loads with Spark's own reader, after setting these options.
    """

    spark: SparkSession
    format: str
    options: Mapping[str, str]
    load: Callable[[Mapping[str, str]], DataFrame]
    schema: StructType | str | None = None
    paths: tuple[str, ...] = ()
    is_stream: bool = True
    flow: str = ""
    is_analysis: bool = False
    position: Position = field(default_factory=dict)
    is_triggered: bool = False
    memory: Callable[[str], SourceMemory] = lambda _: PassingMemory()


@dataclass(frozen=True, kw_only=True)
class StartReport:
    """What a start position means for one source.

    `size`, `missing` and `note` are set only if a table is recomputed.

    Attributes:
        unit: What is counted: `offsets`, `versions`, `files`, `rows`.
        again: How many are read that the flow has already read; `None` if unknown.
        skipped: How many are never read, though the flow has not read them; `None` if unknown.
        size: The size of what is read, in bytes; `None` if unknown.
        missing: Data of the old table that the new one will not have; empty if there is none.
        note: What is unknown about missing data.
    """

    source: str
    unit: str
    again: int | None
    skipped: int | None = None
    size: int | None = None
    missing: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RangeReport:
    """The size of a range in one source, and its bounds in words; see `StartReport`."""

    source: str
    unit: str
    count: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of a flow's sources, as a user names it.

    Attributes:
        end: The end of the range: exclusive, but inclusive for versions. `None` (and `latest`,
            which `flow.resolve_range` replaces) means the current position of the flow.
        files: Pattern of file names; `None` means all files.
    """

    flow: str
    begin: StartPosition
    end: StartPosition | None
    files: str | None
    now_ms: int


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Rows that a source no longer had when they were to be read: in words, and for the log."""

    text: str
    body: Mapping[str, Any]


class OpenedSource:
    """One stream of a query, or one read of a batch query.

    `lag` is called on a separate thread, `lost` and `new_identities` on that of Spark's listener,
    the others on the thread of the command or of the query; no method is called concurrently with
    itself.

    `name` is shown to users and has no secrets; `unit` is what positions count. Two streams of one
    query may have the same name only if they are at the same `place`.
    """

    has_names_in_offsets = True
    """Whether offsets in a checkpoint show which of several such sources they belong to."""
    has_files = False
    """Whether its ranges can be limited to some files; see `Range.files`."""
    paths: Sequence[str] = ()
    """The locations of a stream of files or of a Delta table."""

    def __init__(self, df: DataFrame, *, name: str, unit: str = "rows", place: str = "") -> None:
        self.df = df
        self.name = name
        self.unit = unit
        self.place = place

    def includes(self, path: str) -> bool:
        """Whether a new file with this path is certain to be read.

        For topics: whether new messages in `kafka://<servers>/<topic>` are.
        """
        return False

    def check_identity(self, known: Mapping[str, str], flow: Flow, display: str) -> dict[str, str]:
        """Compare what is read with what the checkpoint has read; called before each start.

        Args:
            known: The stored identities of all sources of the flow.
            flow: The flow, for the error.
            display: The name of its target.

        Returns:
            The identities to store, such as the ids of topics.

        Raises:
            CheckpointError: The name now refers to something else.
        """
        return {}

    def new_identities(self, progress: Mapping[str, Any]) -> Mapping[str, str]:
        """Further identities to store, such as ids of new topics; argument as for `lost`."""
        return {}

    def prepare_start(self, checkpoint: str, siblings: Sequence["OpenedSource"]) -> str | None:
        """Bring a checkpoint in line with the source, before the query starts.

        Args:
            checkpoint: Folder of the query; may not exist yet.
            siblings: All sources of the query, this one included.

        Returns:
            Why the query must be created again, as a warning; `None` if it need not be.
        """
        return None

    def started(self, checkpoint: str, siblings: Sequence["OpenedSource"]) -> None:
        """Start separate threads that run during the query; arguments as for `prepare_start`."""

    def ended(self) -> None:
        """Stop the threads, without waiting; called only after `started`, maybe more than once."""

    def check_batch(self, checkpoint: str, batch_id: int) -> None:
        """Check a planned batch before it is written; raises to refuse it."""

    def explain(self, text: str, flow: Flow) -> PenstockError | None:
        """The error for a failure that this source caused; `None` if it did not.

        May store what lets the next start succeed, such as a larger schema; the error is then
        retryable. `text` is the whole message of the failure, with its causes in the JVM.
        """
        return None

    def lost(self, progress: Mapping[str, Any]) -> Sequence[Loss]:
        """Rows that a batch was to read and did not get.

        `progress` is the entry of a source in Spark's progress report.
        """
        return ()

    def description(self, text: str) -> str:
        """A source's description in reports, from Spark's; unchanged for other sources."""
        return text

    def lag(
        self, progress: Mapping[str, Any], java_source: Callable[[], Any]
    ) -> dict[str, Any] | None:
        """How far the flow is behind, as in event `lag_progress`; `None` for other sources.

        Args:
            progress: As for `lost`.
            java_source: Returns Spark's object of the source; `None` if there is none.

        Returns:
            `kind`, `seconds_behind` and the figures of the source; `None` for unknown figures.
        """
        return None

    def start(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        """Fix a start position, so that a batch that is planned again begins at the same row.

        Args:
            at: As the user named it.
            done: Checkpoints of which the target has rows.
            now_ms: The current time.

        Returns:
            The value of `Read.position` for `open`, and what it means.

        Raises:
            PlanError: `START_NOT_AVAILABLE`.
        """
        if at.kind is not StartKind.EARLIEST:
            raise start_not_available(
                at, f"{self.name} can only start at the position in its options"
            )
        return {}, self.start_report(None, None)

    def start_report(
        self, again: int | None, skipped: int | None, done: Sequence[Checkpoint] = ()
    ) -> StartReport:
        """The report of `start`; counts are unknown if a checkpoint no longer has its files."""
        if not all(c.planned or (c.exists and not c.finished) for c in done):
            again = skipped = None
        return StartReport(source=self.name, unit=self.unit, again=again, skipped=skipped)

    def range_report(self, count: int, text: str) -> RangeReport:
        """The report of `range`."""
        return RangeReport(source=self.name, unit=self.unit, count=count, text=text)

    def range(self, wanted: Range, done: Checkpoint) -> tuple[Position, RangeReport]:
        """Fix both ends of a range that the flow has read.

        Raises:
            PlanError: `BACKFILL_RANGE_INVALID`, `BACKFILL_NOT_READ_YET`, `START_NOT_AVAILABLE`.
        """
        raise range_invalid(
            f"{self.name} cannot be read again from a position",
            "supported: Kafka, Kinesis, files, Delta tables and database tables",
        )

    def is_past_end(self, position: Position, progress: Mapping[str, Any]) -> bool:
        """Whether all remaining rows are after a range; `progress` as for `lost`."""
        return False

    def check_range(
        self, position: Position, done: Checkpoint, checkpoint: str, batch: int
    ) -> None:
        """Refuse a batch of a range that the flow, by its own checkpoint `done`, has not read.

        Raises:
            PlanError: `BACKFILL_NOT_READ_YET`.
        """

    def history(
        self, at: StartPosition, done: Sequence[Checkpoint], now_ms: int
    ) -> tuple[Position, StartReport]:
        """As `start`, for a table that is recomputed; also reports what no longer exists."""
        position, report = self.start(at, done, now_ms)
        missing = f"it is unknown which data {self.name} still has"
        return position, replace(report, missing=missing)


class Source(ABC):
    """A system, by the names of its formats in lower case. Stateless, one object per process."""

    formats: ClassVar[Sequence[str]] = ()

    def check_options(self, options: Mapping[str, str], *, is_stream: bool) -> dict[str, str]:
        """The options as Spark takes them, with defaults; raises `ConnectorError`."""
        return dict(options)

    def map_options(
        self, options: Mapping[str, str], map_path: Callable[[str], str]
    ) -> dict[str, str]:
        """The options with paths and addresses of another platform replaced; see `paths`."""
        return dict(options)

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        """Addresses that a read connects to, for the list of what a project needs."""
        return ()

    def describe(self, read: Read) -> str:
        """The source in words: format and location; no secrets."""
        return f"{read.format or 'files'} {','.join(read.paths)}".rstrip()

    @abstractmethod
    def open(self, read: Read) -> OpenedSource:
        """The rows of a reader.

        Called on the thread of the query function, for each analysis and each start.

        Raises:
            PenstockError: The source does not exist or cannot be read.
        """


def merged(parts: Sequence[Position]) -> dict[str, Any]:
    """The position of a flow from those of its sources; mappings with the same key are merged."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            known = whole.get(key)
            both = isinstance(known, Mapping) and isinstance(value, Mapping)
            whole[key] = {**known, **value} if both else value  # type: ignore[dict-item]
    return whole


def start_not_available(at: StartPosition, reason: str, hint: str = "use `earliest`") -> PlanError:
    """The error for a start position that a source does not support."""
    return PlanError("START_NOT_AVAILABLE", f"the flow cannot start at {at}: {reason}", hint=hint)


def first_ms(at: StartPosition, now_ms: int, name: str) -> int | None:
    """The start time, for a source whose positions are times; `None` means the earliest.

    Raises:
        PlanError: `START_NOT_AVAILABLE`; `name` is the plural for such sources.
    """
    match at.kind:
        case StartKind.EARLIEST:
            return None
        case StartKind.LATEST:
            return now_ms
        case StartKind.TIMESTAMP:
            return at.timestamp_ms
        case _:
            raise start_not_available(at, f"{name} have no {at.kind.plural}", "use a timestamp")


def range_invalid(reason: str, hint: str) -> PlanError:
    """The error for a range that a source does not support."""
    return PlanError(
        "BACKFILL_RANGE_INVALID", f"this range cannot be backfilled: {reason}", hint=hint
    )


def not_read_yet(flow: str, what: str) -> PlanError:
    """The error for a range with rows that the flow has not read yet."""
    return PlanError(
        "BACKFILL_NOT_READ_YET",
        f"flow {flow!r} has not read the whole range yet: {what}; it would add the rows again",
        hint="run an update first, or end the range before them with --to",
    )


def flow_error(
    condition: str, flow: Flow, reason: str, *, retryable: bool = False, hint: str | None = None
) -> FlowError:
    """The error of a flow that its source has stopped."""
    return FlowError(
        condition,
        f"flow {flow.name!r}: {reason}",
        flow=flow.name,
        retryable=retryable,
        origin=flow.origin,
        hint=hint,
    )


def now_ms() -> int:
    """The current time in milliseconds since 1970."""
    return round(time.time() * 1000)


def age_of_oldest(times: Iterable[int | None], now_ms: int) -> float | None:
    """Seconds since the oldest of some times; 0 if there is none, `None` if one is unknown."""
    known = list(times)
    if None in known:
        return None
    oldest = min((at for at in known if at is not None), default=now_ms)
    return round(max(0, now_ms - oldest) / 1000, 1)


def path_key(path: str) -> str:
    """A path in one spelling: local paths have several."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path.rstrip("/")


def explained(text: str, sources: Iterable[OpenedSource], flow: Flow) -> PenstockError | None:
    """The error of the source that caused a failure; `None` if none of them did."""
    return next((error for s in sources if (error := s.explain(text, flow)) is not None), None)
