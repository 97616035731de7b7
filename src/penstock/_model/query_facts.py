"""Facts about a query, derived without running it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock._model.origin import SourceLocation


@dataclass(frozen=True, kw_only=True)
class ReadFacts:
    """One read in a query function.

    Attributes:
        source: Format in lower case; `table` for one that is read by name; empty for the default.
        name: Of the table; empty for other reads.
        is_own: Whether it is a dataset of the pipeline.
        options: As the user gave them, keys in lower case, secrets not filled in.
    """

    source: str
    name: str = ""
    is_own: bool = False
    is_streaming: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_schema: bool = False
    origin: SourceLocation


class StateKind(StrEnum):
    """Stateful operators of a streaming query, by the names of its API."""

    AGGREGATE = "aggregation"
    DEDUPLICATE = "dropDuplicates"
    DEDUPLICATE_WITHIN = "dropDuplicatesWithinWatermark"
    JOIN = "stream-stream join"
    ARBITRARY = "arbitrary state"


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """One stateful operator, with its keys as SQL.

    Attributes:
        has_watermark: Whether a watermark is defined below it.
        is_bounded: Whether Spark will ever remove what it keeps.
        nondeterministic_keys: Functions in its keys whose value differs between evaluations.
        clock_keys: Functions in its keys that return the current time, which is that of the batch.
    """

    kind: StateKind
    keys: tuple[str, ...] = ()
    has_watermark: bool = False
    is_bounded: bool = False
    nondeterministic_keys: tuple[str, ...] = ()
    clock_keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueryFacts:
    """A query.

    Attributes:
        watermarks: Column to delay in milliseconds.
        state: Stateful operators, from the result downwards.
        nondeterministic: Functions in it whose value differs between evaluations.
        clock: Functions in it that return the current time.
        functions: Parsers that it calls and that return NULL for what they cannot parse:
            `from_json`, `from_csv`, `from_xml`.
        dropped_offset_columns: Those of `partition` and `offset` of a Kafka source that no column
            of the result uses.
        columns: Of the result: name to type as DDL.
    """

    is_streaming: bool = False
    watermarks: Mapping[str, int] = field(default_factory=dict)
    state: tuple[StateFacts, ...] = ()
    nondeterministic: tuple[str, ...] = ()
    clock: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()
    dropped_offset_columns: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """What NULL does to an expectation.

    Attributes:
        constant: The value of a condition that no row changes: `true`, `false`, `null`; else empty.
        passes: Columns of which a NULL alone makes the condition true.
        breaks: Nullable columns of which a NULL alone makes it false or NULL.
        mentioned: Columns whose NULL the condition speaks about.
    """

    constant: str = ""
    passes: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    mentioned: tuple[str, ...] = ()
