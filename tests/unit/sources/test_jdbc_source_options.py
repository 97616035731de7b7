from itertools import pairwise

import pytest

from penstock._model.redaction import redact
from penstock.errors import ConnectorError
from penstock.sources.jdbc.options import (
    Key,
    KeyKind,
    jdbc_source_options,
    nth_key,
    overlap_amount,
    read_key,
    split_range,
)
from penstock.sources.jdbc.stream import JdbcStream, KeyRange

POSTGRESQL = {
    "url": "jdbc:postgresql://db:5432/shop",
    "dbtable": "orders",
    "partitionColumn": "id",
}


def test_defaults_and_options_of_the_driver():
    options = jdbc_source_options({**POSTGRESQL, "user": "u", "sslmode": "require"})
    assert options.settling_delay_seconds is None
    assert options.max_rows == 1_000_000
    assert options.reader == {"user": "u", "sslmode": "require", "fetchsize": "1000"}
    assert options.place == "orders in postgresql://db:5432/shop"


def test_no_secret_is_shown():
    options = jdbc_source_options(
        {**POSTGRESQL, "url": "jdbc:postgresql://u:pw-in-url@db/shop?password=pw-as-parameter"}
        | {"password": "pw-as-option"}
    )
    for text in (repr(options), options.place):
        assert "pw-" not in text
    assert redact("pw-in-url pw-as-parameter pw-as-option") == " ".join(["[redacted]"] * 3)


@pytest.mark.parametrize(
    ("options", "condition", "message"),
    [
        ({"url": "postgresql://db/shop"}, "JDBC_OPTION_INVALID", "jdbc:"),
        ({"query": "SELECT 1"}, "JDBC_OPTION_INVALID", "not both"),
        ({"dbtable": " "}, "JDBC_OPTION_INVALID", "not both"),
        ({"partitionColumn": ""}, "JDBC_OPTION_INVALID", "only grow"),
        ({"lowerBound": "5"}, "JDBC_OPTION_INVALID", "startingKey"),
        ({"maxRowsPerTriger": "5"}, "JDBC_OPTION_UNKNOWN", "maxRowsPerTrigger"),
        ({"maxRowsPerTrigger": "0"}, "JDBC_OPTION_INVALID", "above zero"),
        ({"settlingDelay": "soon"}, "JDBC_OPTION_INVALID", "30 seconds"),
        ({"onKeyBack": "ignore"}, "JDBC_OPTION_INVALID", "refuse, continue"),
        ({"url": "jdbc:mysql://db/shop"}, "JDBC_OPTION_INVALID", "settlingDelay"),
    ],
)
def test_wrong_options_are_refused(options, condition, message):
    with pytest.raises(ConnectorError) as caught:
        jdbc_source_options({**POSTGRESQL, **options})
    assert caught.value.condition == condition
    assert message in str(caught.value)


def test_a_query_becomes_a_table_expression():
    without_table = {k: v for k, v in POSTGRESQL.items() if k != "dbtable"}
    options = jdbc_source_options({**without_table, "query": "SELECT * FROM a;"})
    assert options.table == "(SELECT * FROM a) penstock_rows"
    assert options.is_query


def test_query_for_the_nth_key_uses_the_dialect():
    assert nth_key(jdbc_source_options(POSTGRESQL), "id", "id > 1", 5) == (
        "SELECT id FROM orders WHERE id > 1 ORDER BY id OFFSET 4 ROWS FETCH NEXT 1 ROWS ONLY"
    )
    mysql = jdbc_source_options(
        {**POSTGRESQL, "url": "jdbc:mysql://db/shop", "settlingDelay": "0 seconds"}
    )
    assert nth_key(mysql, "id", "id > 1", 5).endswith("ORDER BY id LIMIT 1 OFFSET 4")


def test_keys_are_escaped_as_literals():
    assert read_key(KeyKind.INTEGER, "-5").sql == "-5"
    zoned = read_key(KeyKind.TIMESTAMP, "2026-01-02 03:04:05.123456+00")
    assert zoned.sql == "TIMESTAMP WITH TIME ZONE '2026-01-02 03:04:05.123456+00'"
    plain = read_key(KeyKind.TIMESTAMP, "2026-01-02 03:04:05.5")
    assert plain.sql == "TIMESTAMP '2026-01-02 03:04:05.5'"
    assert plain.before(600).text == "2026-01-02 02:54:05.500000"
    assert read_key(KeyKind.INTEGER, "100").before(30).text == "70"
    assert read_key(KeyKind.DECIMAL, f"1{'0' * 27}89").before(10).text == f"1{'0' * 27}79"
    for kind, text in (
        (KeyKind.INTEGER, "1 OR 1 = 1"),
        (KeyKind.INTEGER, "1.5"),
        (KeyKind.TIMESTAMP, "infinity"),
        (KeyKind.TIMESTAMP, "2026-01-02 03:04:05' OR '1'='1"),
    ):
        with pytest.raises(ConnectorError, match="JDBC_KEY_INVALID"):
            read_key(kind, text)
    with pytest.raises(ConnectorError, match="of the years 1 to 9999"):
        read_key(KeyKind.TIMESTAMP, "12000-01-01 00:00:00+00")


def test_keys_compare_as_numbers_and_times():
    assert Key(KeyKind.INTEGER, "10").order > Key(KeyKind.INTEGER, "9").order
    early = Key(KeyKind.TIMESTAMP, "2026-01-01 01:00:00+02")
    assert early.order < Key(KeyKind.TIMESTAMP, "2026-01-01 00:00:00+00").order


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("inclusive", [True, False])
def test_each_key_is_in_one_part_of_a_range(parts, inclusive):
    low, high = Key(KeyKind.INTEGER, "-3"), Key(KeyKind.INTEGER, "17")
    conditions = split_range("id", low, high, parts, inclusive=inclusive)
    assert len(conditions) <= parts
    wanted = range(-3, 18) if inclusive else range(-2, 18)
    for key in range(-10, 30):
        hits = [c for c in conditions if eval(c.replace("AND", "and"), {"id": key})]
        assert len(hits) == (key in wanted), key
    assert all(a != b for a, b in pairwise(conditions))


def test_overlap_of_timestamps_is_an_interval_and_of_numbers_a_number():
    options = jdbc_source_options(POSTGRESQL)
    assert overlap_amount(options, KeyKind.INTEGER) == 0
    with pytest.raises(ConnectorError, match="deduplicate_by"):
        overlap_amount(options, KeyKind.TIMESTAMP)
    timed = jdbc_source_options({**POSTGRESQL, "overlap": "10 minutes"})
    assert overlap_amount(timed, KeyKind.TIMESTAMP) == 600
    with pytest.raises(ConnectorError, match="JDBC_OPTION_INVALID"):
        overlap_amount(timed, KeyKind.INTEGER)


@pytest.mark.parametrize(
    ("start", "begin"),
    [
        ({}, ("90", False)),
        ({"startingKey": "95"}, ("95", True)),
        ({"startingKey": "80"}, ("90", False)),
        # A greater key has no effect, as rows up to 100 have been read.
        ({"startingKey": "500"}, ("90", False)),
    ],
)
def test_overlap_begins_at_the_starting_key(start, begin):
    stream = object.__new__(JdbcStream)
    stream._options = jdbc_source_options({**POSTGRESQL, **start})
    stream._bounds, stream._kind, stream._overlap = KeyRange(), KeyKind.INTEGER, 10
    key, is_inclusive = stream._begin(Key(KeyKind.INTEGER, "100"))
    assert (key.text, is_inclusive) == begin
    # After a start at the newest key, open transactions may write smaller keys.
    stream._bounds = KeyRange(after="95")
    key, is_inclusive = stream._begin(Key(KeyKind.INTEGER, "100"))
    assert (key.text, is_inclusive) == ("90", False)
