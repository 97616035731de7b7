"""Rules about reads, queries and datasets, on facts as the analysis notes them."""

from typing import Any

import pytest

from penstock._lint.datasets import findings_of_dataset
from penstock._lint.plans import findings_of_query, findings_of_read
from penstock._model.dataset import Dataset, DatasetKind
from penstock._model.expectation import Expectation, OnViolation
from penstock._model.origin import SourceLocation
from penstock._model.query_facts import QueryFacts, ReadFacts, RuleFacts, StateFacts, StateKind

AT = SourceLocation("a.py", 3)
LOCAL = {"kafka.bootstrap.servers": "localhost:9092"}
LIMITED = {**LOCAL, "maxoffsetspertrigger": "9"}


def of_read(source: str, *, streaming: bool = True, own: bool = False, **options: str) -> list[str]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    read = ReadFacts(
        source=source, is_streaming=streaming, is_own=own, options=named, origin=AT, has_schema=True
    )
    return sorted(one.rule.id for one in findings_of_read("f", AT, read))


def kafka(streaming: bool = True, **more: str) -> list[str]:
    options = {**LIMITED, **{key.replace("__", "."): value for key, value in more.items()}}
    read = ReadFacts(source="kafka", is_streaming=streaming, options=options, origin=AT)
    return sorted(one.rule.id for one in findings_of_read("f", AT, read))


def test_where_a_stream_of_kafka_begins():
    assert kafka() == ["PSL201"]
    assert kafka(startingoffsets=" Latest ") == ["PSL201"]
    assert kafka(startingoffsets="earliest") == []
    assert kafka(startingoffsets='{"t":{"0":5}}') == []
    assert kafka(startingtimestamp="0") == []
    assert kafka(streaming=False) == []


def test_how_a_broker_is_reached():
    start = {"startingoffsets": "earliest"}
    assert kafka(**start, kafka__bootstrap__servers="127.0.0.1:9, [::1]:9, localhost") == []
    assert kafka(**start, kafka__bootstrap__servers="localhost:9092,k2:9092") == ["PSL211"]
    assert kafka(
        **start, kafka__bootstrap__servers="k:9", kafka__security__protocol="sasl_plaintext"
    ) == ["PSL211"]
    assert (
        kafka(**start, kafka__bootstrap__servers="k:9", kafka__security__protocol="SASL_SSL") == []
    )


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("eventhubs", {}, ["PSL201", "PSL205"]),
        ("kinesis", {}, ["PSL201"]),
        ("kinesis", {"initialposition": "earliest", "failondataloss": "false"}, ["PSL202"]),
        (
            "eventhubs",
            {"eventhubs__startingposition": '{"offset": "-1"}', "maxeventspertrigger": "9"},
            [],
        ),
        ("json", {}, ["PSL205"]),
        ("json", {"maxbytespertrigger": "1g"}, []),
        ("json", {"maxfilespertrigger": "1", "latestfirst": "TRUE"}, ["PSL207"]),
        # Delta and Auto Loader have a limit by default.
        ("cloudfiles", {}, []),
        ("cloudfiles", {"cloudfiles__cleansource": "DELETE"}, ["PSL208"]),
        ("delta", {}, []),
        ("delta", {"startingversion": "latest"}, ["PSL201"]),
        ("delta", {"failondataloss": "False"}, ["PSL202"]),
        ("table", {"ignorechanges": "true"}, ["PSL210"]),
        ("table", {}, []),
        ("socket", {}, ["PSL206"]),
        ("rate", {}, []),
    ],
)
def test_options_of_streams(source: str, options: dict[str, str], expected: list[str]):
    assert of_read(source, **options) == expected
    assert of_read(source, streaming=False, **options) == []


def of_query(target: DatasetKind | None = DatasetKind.STREAMING_TABLE, **facts: Any) -> list[str]:
    query = QueryFacts(**{"is_streaming": True, **facts})
    return sorted(one.rule.id for one in findings_of_query("f", AT, query, target))


def test_state_is_told_by_kind():
    minutes = {"ts": 60_000}
    for kind, rule in (
        (StateKind.AGGREGATE, "PSL102"),
        (StateKind.DEDUPLICATE, "PSL103"),
        (StateKind.JOIN, "PSL104"),
        (StateKind.ARBITRARY, "PSL106"),
    ):
        endless = StateFacts(kind=kind, has_watermark=True)
        bounded = StateFacts(kind=kind, has_watermark=True, is_bounded=True)
        assert of_query(state=(endless,), watermarks=minutes) == [rule]
        assert of_query(state=(bounded,), watermarks=minutes) == []
    assert of_query(state=(StateFacts(kind=StateKind.AGGREGATE),)) == ["PSL101"]
    assert of_query(state=(StateFacts(kind=StateKind.AGGREGATE, is_bounded=True),)) == []
    assert of_query(watermarks={"ts": 0}) == ["PSL105", "PSL108"]


def test_a_view_is_not_told_what_its_readers_do():
    view = DatasetKind.TEMPORARY_VIEW
    assert of_query(view, watermarks={"ts": 60_000}) == []
    assert of_query(None, watermarks={"ts": 60_000}) == ["PSL108"]
    assert of_query(dropped_offset_columns=("offset",)) == ["PSL204"]
    assert of_query(view, dropped_offset_columns=("offset",)) == []
    assert of_query(None, dropped_offset_columns=("offset",)) == []


def test_chance_is_told_once_and_time_in_batches_only():
    key = StateFacts(kind=StateKind.AGGREGATE, is_bounded=True, has_watermark=True)
    by_chance = StateFacts(**{**key.__dict__, "nondeterministic_keys": ("uuid",)})
    assert of_query(state=(by_chance,), nondeterministic=("uuid",)) == ["PSL401"]
    assert of_query(state=(key,), nondeterministic=("uuid",)) == ["PSL402"]
    assert of_query(clock=("now",)) == []
    by_time = StateFacts(**{**key.__dict__, "clock_keys": ("now",)})
    assert of_query(state=(by_time,), clock=("now",)) == ["PSL404"]
    batch = {"is_streaming": False, "clock": ("now",)}
    assert of_query(DatasetKind.MATERIALIZED_VIEW, **batch) == ["PSL403"]
    for target in (None, DatasetKind.STREAMING_TABLE, DatasetKind.TEMPORARY_VIEW):
        assert of_query(target, **batch) == []


def of_dataset(
    query: QueryFacts | None = None,
    rules: dict[str, RuleFacts] | None = None,
    *,
    quarantine: bool = True,
    **more: Any,
) -> list[str]:
    more.setdefault("kind", DatasetKind.STREAMING_TABLE)
    dataset = Dataset(name="t", origin=AT, **more)
    queries = {"t": query or QueryFacts(is_streaming=True)}
    found = findings_of_dataset(dataset, queries, rules or {}, quarantine=quarantine)
    return sorted(one.rule.id for one in found)


@pytest.mark.parametrize(
    ("column", "kind", "is_told"),
    [
        ("day", "date", False),
        ("country", "string", False),
        ("country_id", "int", False),
        ("date_key", "int", False),
        ("order_date_id", "int", False),
        ("year_id", "int", False),
        ("update_id", "int", True),
        ("order_id", "string", True),
        ("ID", "bigint", True),
        ("at", "timestamp", True),
        ("price", "decimal(10,2)", True),
        ("paid", "boolean", False),
        ("valid", "string", False),
        ("kafka_offset", "bigint", True),
    ],
)
def test_partitions_of_many_values(column: str, kind: str, is_told: bool):
    query = QueryFacts(is_streaming=True, columns={column: kind})
    assert of_dataset(query, partition_cols=(column,)) == (["PSL309"] if is_told else [])


@pytest.mark.parametrize(
    ("value", "is_told"),
    [("interval 6 days", True), ("168 HOURS", False), ("1 week", False), ("soon", False)],
)
def test_retention_is_read_as_delta_reads_it(value: str, is_told: bool):
    found = of_dataset(table_properties={"delta.deletedFileRetentionDuration": value})
    assert found == (["PSL310"] if is_told else [])


def rule(action: OnViolation) -> dict[str, Any]:
    made = Expectation(name="r", condition="a > 0", on_violation=action, origin=AT)
    return {"expectations": (made,)}


def test_where_bad_rows_go():
    assert of_dataset(**rule(OnViolation.DROP)) == []
    assert of_dataset(**rule(OnViolation.DROP), quarantine=False) == ["PSL504"]
    assert of_dataset(**rule(OnViolation.QUARANTINE), quarantine=False) == []
    assert of_dataset(**rule(OnViolation.FAIL)) == ["PSL505"]
    assert of_dataset(QueryFacts(), **rule(OnViolation.FAIL)) == []
    view = {"kind": DatasetKind.TEMPORARY_VIEW}
    assert of_dataset(**rule(OnViolation.DROP), **view) == ["PSL507"]
    assert of_dataset(**rule(OnViolation.WARN), **view, quarantine=False) == ["PSL507"]
    assert of_dataset(QueryFacts(), **rule(OnViolation.FAIL), **view) == []


def test_what_null_does():
    told = rule(OnViolation.WARN)
    assert of_dataset(rules={"r": RuleFacts(constant="true")}, **told) == ["PSL503"]
    assert of_dataset(rules={"r": RuleFacts(passes=("a",), breaks=("b",))}, **told) == [
        *("PSL501", "PSL502")
    ]
    spoken = RuleFacts(passes=("a",), breaks=("b",), mentioned=("a", "b"))
    assert of_dataset(rules={"r": spoken}, **told) == []


def test_parsing_wants_an_expectation():
    parsing = QueryFacts(is_streaming=True, functions=frozenset({"from_json"}))
    assert of_dataset(parsing) == ["PSL506"]
    assert of_dataset(parsing, **rule(OnViolation.WARN)) == []
