"""Facts about a query, derived without running it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock._model.origin import SourceLocation


@dataclass(frozen=True, kw_only=True)
class ReadFacts:
    """One read in a query function.

    Attributes:
        source: Format in lower case; `table` for a read by name; empty for the default format.
        name: Name of the table; empty for other reads.
        is_own: Whether it is a dataset of the pipeline.
        options: Options as set by the user, with keys in lower case and unresolved secrets.
    """

    source: str
    name: str = ""
    is_own: bool = False
    is_streaming: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_schema: bool = False
    origin: SourceLocation


class StateKind(StrEnum):
    """Stateful operators of a streaming query, named as in the API."""

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
        is_bounded: Whether Spark removes state from it.
        nondeterministic_keys: Functions in its keys whose value differs between evaluations.
        clock_keys: Functions in its keys that return the current time (the time of the batch).
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
        watermarks: Delay in milliseconds by column.
        state: Stateful operators, from the result downwards.
        nondeterministic: Functions in it whose value differs between evaluations.
        clock: Functions in it that return the current time.
        functions: Parsers in it that return NULL for values that they cannot parse: `from_json`,
            `from_csv`, `from_xml`.
        dropped_offset_columns: Columns `partition` and `offset` of a Kafka source that no column of
            the result uses.
        columns: Types (as DDL) of the columns of the result, by name.
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
    """The effect of NULL on an expectation.

    Attributes:
        constant: The value of a constant condition: `true`, `false`, `null` or `never true`;
            otherwise empty.
        passes: Columns in which NULL alone makes the condition true.
        breaks: Nullable columns in which NULL alone makes the condition false or NULL.
        mentioned: Columns for which the condition handles NULL explicitly.
    """

    constant: str = ""
    passes: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    mentioned: tuple[str, ...] = ()
