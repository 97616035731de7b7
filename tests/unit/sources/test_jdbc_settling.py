"""The keys that no open transaction can precede, with a simulated database."""

from contextlib import nullcontext

import pytest

from penstock.errors import ConnectorError
from penstock.sources.jdbc.commit_visibility import Marks, NotSettledError, check_postgresql
from penstock.sources.jdbc.options import Key, KeyKind, jdbc_source_options

OPTIONS = {"url": "jdbc:postgresql://db/shop", "dbtable": "orders", "partitionColumn": "id"}


class Server:
    """A database with visible keys and open transactions."""

    def __init__(self) -> None:
        self.visible: list[int] = []
        self.writers: set[str] = set()
        self.now = 0.0
        self.queries: list[str] = []

    def query(self, sql, *values):
        self.queries.append(sql)
        return [(name,) for name in sorted(self.writers)]

    def newest(self, database):
        assert database is self
        return Key(KeyKind.INTEGER, str(max(self.visible))) if self.visible else None

    def clock(self) -> float:
        self.now += 0.25
        return self.now

    def marks(self, **more: str) -> Marks:
        options = jdbc_source_options({**OPTIONS, **more})
        return Marks(options, self.newest, lambda: nullcontext(self), self.clock)


def settled(marks: Marks) -> int | None:
    key = marks.settle(0)
    return None if key is None else int(key.text)


def test_key_is_settled_when_earlier_transactions_have_ended():
    server = Server()
    marks = server.marks()
    assert settled(marks) is None
    server.visible, server.writers = [2], {"1/7"}
    assert settled(marks) is None
    # A transaction that starts later writes greater keys.
    server.visible, server.writers = [2, 4], {"1/7", "2/8"}
    assert settled(marks) is None
    server.visible, server.writers = [1, 2, 4], {"2/8"}
    assert settled(marks) == 2
    # Key 4 is not settled before the transaction 2/8 has ended.
    assert settled(marks) == 2
    server.writers = {"3/9"}
    assert settled(marks) == 4


def test_keys_are_not_settled_before_a_prepared_transaction_ends():
    server = Server()
    marks = server.marks()
    server.visible, server.writers = [2], {"1/7"}
    assert settled(marks) is None
    server.writers = {"-1/7"}
    assert settled(marks) is None
    server.writers = set()
    assert settled(marks) == 2


def test_delay_queries_no_transactions():
    server = Server()
    marks = server.marks(url="jdbc:mysql://db/shop", settlingDelay="10 seconds")
    server.visible = [2]
    assert settled(marks) is None
    server.visible = [1, 2, 5]
    server.now += 10
    assert settled(marks) == 2
    assert server.queries == []


def test_transaction_that_does_not_end_is_an_error():
    server = Server()
    marks = server.marks(settleTimeout="30 seconds")
    server.visible, server.writers = [2], {"1/7"}
    assert settled(marks) is None
    server.now += 30
    with pytest.raises(NotSettledError, match="1 transaction"):
        marks.settle(0)


def test_keys_of_views_wait_for_transactions_of_all_tables():
    server = Server()
    marks = server.marks(dbtable="(SELECT * FROM a JOIN b USING (id)) x")
    server.visible = [1]
    assert settled(marks) == 1
    assert "parts" not in server.queries[0]
    server.visible = [2]
    assert settled(server.marks()) == 2
    assert "to_regclass" in server.queries[1]


class Relation:
    """A server with one relation of this kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def query(self, sql, *values):
        return [("f",)] if "pg_is_in_recovery" in sql else [(self.kind, None, None)]


@pytest.mark.parametrize("kind", ["m", "f"])
def test_rows_of_concurrent_writers_need_a_delay_or_an_overlap(kind):
    def checked(**more: str):
        options = jdbc_source_options({**OPTIONS, **more})
        return check_postgresql(Relation(kind), options, "id")

    with pytest.raises(ConnectorError, match="no lock shows") as caught:
        checked()
    assert caught.value.condition == "JDBC_OPTION_INVALID"
    assert checked(settlingDelay="1 minute").is_query
    assert checked(overlap="100").is_query


def test_view_needs_no_delay_and_no_overlap():
    options = jdbc_source_options(OPTIONS)
    assert check_postgresql(Relation("v"), options, "id").is_query
    assert not check_postgresql(Relation("p"), options, "id").is_query
