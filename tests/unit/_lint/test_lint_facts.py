"""Rules about reads, queries and datasets, on facts that the analysis records."""

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


def rules_of_read(
    source: str, *, streaming: bool = True, own: bool = False, **options: str
) -> list[str]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    read = ReadFacts(
        source=source, is_streaming=streaming, is_own=own, options=named, origin=AT, has_schema=True
    )
    return sorted(finding.rule.id for finding in findings_of_read("f", AT, read))


def rules_of_kafka_read(streaming: bool = True, **more: str) -> list[str]:
    options = {**LIMITED, **{key.replace("__", "."): value for key, value in more.items()}}
    read = ReadFacts(source="kafka", is_streaming=streaming, options=options, origin=AT)
    return sorted(finding.rule.id for finding in findings_of_read("f", AT, read))


def test_kafka_stream_that_starts_at_latest_is_reported():
    assert rules_of_kafka_read() == ["PSL201"]
    assert rules_of_kafka_read(startingoffsets=" Latest ") == ["PSL201"]
    assert rules_of_kafka_read(startingoffsets="earliest") == []
    assert rules_of_kafka_read(startingoffsets='{"t":{"0":5}}') == []
    assert rules_of_kafka_read(startingtimestamp="0") == []
    assert rules_of_kafka_read(streaming=False) == []


def test_unencrypted_connection_to_a_remote_broker_is_reported():
    start = {"startingoffsets": "earliest"}
    assert (
        rules_of_kafka_read(**start, kafka__bootstrap__servers="127.0.0.1:9, [::1]:9, localhost")
        == []
    )
    assert rules_of_kafka_read(**start, kafka__bootstrap__servers="localhost:9092,k2:9092") == [
        "PSL211"
    ]
    assert rules_of_kafka_read(
        **start, kafka__bootstrap__servers="k:9", kafka__security__protocol="sasl_plaintext"
    ) == ["PSL211"]
    assert (
        rules_of_kafka_read(
            **start, kafka__bootstrap__servers="k:9", kafka__security__protocol="SASL_SSL"
        )
        == []
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
def test_risky_options_of_streams_are_reported(
    source: str, options: dict[str, str], expected: list[str]
):
    assert rules_of_read(source, **options) == expected
    assert rules_of_read(source, streaming=False, **options) == []


def test_missing_limit_names_an_option_of_the_source():
    read = ReadFacts(source="json", origin=AT, is_streaming=True, has_schema=True)
    (finding,) = findings_of_read("f", AT, read)
    assert finding.message == "the json stream has no limit per batch, such as maxFilesPerTrigger"


def rules_of_query(
    target: DatasetKind | None = DatasetKind.STREAMING_TABLE, **facts: Any
) -> list[str]:
    query = QueryFacts(**{"is_streaming": True, **facts})
    return sorted(finding.rule.id for finding in findings_of_query("f", AT, query, target))


def test_unbounded_state_is_reported_by_kind_of_operator():
    minutes = {"ts": 60_000}
    for kind, rule in (
        (StateKind.AGGREGATE, "PSL102"),
        (StateKind.DEDUPLICATE, "PSL103"),
        (StateKind.JOIN, "PSL104"),
        (StateKind.ARBITRARY, "PSL106"),
    ):
        endless = StateFacts(kind=kind, has_watermark=True)
        bounded = StateFacts(kind=kind, has_watermark=True, is_bounded=True)
        assert rules_of_query(state=(endless,), watermarks=minutes) == [rule]
        assert rules_of_query(state=(bounded,), watermarks=minutes) == []
    assert rules_of_query(state=(StateFacts(kind=StateKind.AGGREGATE),)) == ["PSL101"]
    assert rules_of_query(state=(StateFacts(kind=StateKind.AGGREGATE, is_bounded=True),)) == []
    assert rules_of_query(watermarks={"ts": 0}) == ["PSL105", "PSL108"]


def test_rules_of_targets_do_not_apply_to_temporary_views():
    view = DatasetKind.TEMPORARY_VIEW
    assert rules_of_query(view, watermarks={"ts": 60_000}) == []
    assert rules_of_query(None, watermarks={"ts": 60_000}) == ["PSL108"]
    assert rules_of_query(dropped_offset_columns=("offset",)) == ["PSL204"]
    assert rules_of_query(view, dropped_offset_columns=("offset",)) == []
    assert rules_of_query(None, dropped_offset_columns=("offset",)) == []


def test_nondeterministic_and_clock_expressions_are_reported_by_use():
    key = StateFacts(kind=StateKind.AGGREGATE, is_bounded=True, has_watermark=True)
    by_chance = StateFacts(**{**key.__dict__, "nondeterministic_keys": ("uuid",)})
    assert rules_of_query(state=(by_chance,), nondeterministic=("uuid",)) == ["PSL401"]
    assert rules_of_query(state=(key,), nondeterministic=("uuid",)) == ["PSL402"]
    assert rules_of_query(clock=("now",)) == []
    by_time = StateFacts(**{**key.__dict__, "clock_keys": ("now",)})
    assert rules_of_query(state=(by_time,), clock=("now",)) == ["PSL404"]
    batch = {"is_streaming": False, "clock": ("now",)}
    assert rules_of_query(DatasetKind.MATERIALIZED_VIEW, **batch) == ["PSL403"]
    for target in (None, DatasetKind.STREAMING_TABLE, DatasetKind.TEMPORARY_VIEW):
        assert rules_of_query(target, **batch) == []


def rules_of_dataset(
    query: QueryFacts | None = None,
    rules: dict[str, RuleFacts] | None = None,
    *,
    quarantine: bool = True,
    **more: Any,
) -> list[str]:
    more.setdefault("kind", DatasetKind.STREAMING_TABLE)
    dataset = Dataset(name="t", origin=AT, **more)
    queries = {"t": query or QueryFacts(is_streaming=True)}
    findings = findings_of_dataset(dataset, queries, rules or {}, quarantine=quarantine)
    return sorted(finding.rule.id for finding in findings)


@pytest.mark.parametrize(
    ("column", "kind", "is_reported"),
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
def test_partition_columns_with_many_values_are_reported(column: str, kind: str, is_reported: bool):
    query = QueryFacts(is_streaming=True, columns={column: kind})
    assert rules_of_dataset(query, partition_cols=(column,)) == (["PSL309"] if is_reported else [])


@pytest.mark.parametrize(
    ("value", "is_reported"),
    [("interval 6 days", True), ("168 HOURS", False), ("1 week", False), ("soon", False)],
)
def test_short_file_retention_is_reported(value: str, is_reported: bool):
    rules = rules_of_dataset(table_properties={"delta.deletedFileRetentionDuration": value})
    assert rules == (["PSL310"] if is_reported else [])


def expectation(action: OnViolation) -> dict[str, Any]:
    rule = Expectation(name="r", condition="a > 0", on_violation=action, origin=AT)
    return {"expectations": (rule,)}


def test_drop_fail_and_view_expectations_are_reported():
    assert rules_of_dataset(**expectation(OnViolation.DROP)) == []
    assert rules_of_dataset(**expectation(OnViolation.DROP), quarantine=False) == ["PSL504"]
    assert rules_of_dataset(**expectation(OnViolation.QUARANTINE), quarantine=False) == []
    assert rules_of_dataset(**expectation(OnViolation.FAIL)) == ["PSL505"]
    assert rules_of_dataset(QueryFacts(), **expectation(OnViolation.FAIL)) == []
    view = {"kind": DatasetKind.TEMPORARY_VIEW}
    assert rules_of_dataset(**expectation(OnViolation.DROP), **view) == ["PSL507"]
    assert rules_of_dataset(**expectation(OnViolation.WARN), **view, quarantine=False) == ["PSL507"]
    assert rules_of_dataset(QueryFacts(), **expectation(OnViolation.FAIL), **view) == []


def test_expectation_with_a_constant_condition_or_unhandled_null_is_reported():
    warn = expectation(OnViolation.WARN)
    assert rules_of_dataset(rules={"r": RuleFacts(constant="true")}, **warn) == ["PSL503"]
    assert rules_of_dataset(rules={"r": RuleFacts(passes=("a",), breaks=("b",))}, **warn) == [
        *("PSL501", "PSL502")
    ]
    handles_null = RuleFacts(passes=("a",), breaks=("b",), mentioned=("a", "b"))
    assert rules_of_dataset(rules={"r": handles_null}, **warn) == []


def test_parsed_column_without_an_expectation_is_reported():
    parsing = QueryFacts(is_streaming=True, functions=frozenset({"from_json"}))
    assert rules_of_dataset(parsing) == ["PSL506"]
    assert rules_of_dataset(parsing, **expectation(OnViolation.WARN)) == []
