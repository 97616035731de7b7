"""Random transactions in a real PostgreSQL, and the tables that auto CDC builds from its log."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from database_tables import Tables
from postgres_changes import ChangeLog
from postgres_server import PostgresServer
from test_jdbc_stream import session
from update_project import Project

from penstock._observe.events import UpdateState

TABLE = """
CREATE TABLE members (
    id bigint PRIMARY KEY, name text NOT NULL, price numeric(24, 4), born date,
    at timestamp, seen timestamptz, note text
);
ALTER TABLE members ALTER note SET STORAGE EXTERNAL;
CREATE TABLE history (number bigserial, gone boolean, LIKE members);
ALTER TABLE history ALTER name DROP NOT NULL;
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND OLD.id <> NEW.id) THEN
        INSERT INTO history (gone, id) VALUES (true, OLD.id); END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO history SELECT nextval('history_number_seq'), false, NEW.*; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER remembers AFTER INSERT OR UPDATE OR DELETE ON members
FOR EACH ROW EXECUTE FUNCTION remember()
"""
PIPELINE = '''
from penstock import parsing


@dp.temporary_view
def changes():
    messages = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json("data")
    return parsing.debezium(messages, schema="""
        id BIGINT NOT NULL, name STRING NOT NULL, price DECIMAL(24, 4), born DATE,
        at TIMESTAMP_NTZ, seen TIMESTAMP, note STRING
    """)


dp.create_streaming_table("members")
dp.create_auto_cdc_flow(
    target="members",
    source="changes",
    keys=["id"],
    sequence_by="_sequence",
    apply_as_deletes="_op = 'd'",
    apply_as_truncates="_op = 't'",
    columns_to_update="_columns_to_update",
    except_column_list=parsing.CHANGE_COLUMNS,
)
'''
HISTORY = """
CREATE STREAMING TABLE customer_history;

CREATE FLOW follow AS AUTO CDC INTO customer_history
FROM STREAM(changes)
KEYS (id)
APPLY AS DELETE WHEN _op = 'd'
SEQUENCE BY _sequence
COLUMNS * EXCEPT (
    _op, _sequence, _changed_at, _transaction, _columns_to_update, _parse_error, _raw_payload
)
COLUMNS TO UPDATE _columns_to_update
STORED AS SCD TYPE 2;
"""
SAME = "id, name, CAST(price AS {text}), CAST(born AS {text}), CAST(at AS {text}), {micros}, note"
IN_POSTGRES = SAME.format(text="text", micros="(extract(epoch FROM seen) * 1000000)::bigint")
IN_SPARK = [
    part.strip() for part in SAME.format(text="STRING", micros="unix_micros(seen)").split(", ")
]


Rows = Iterable[tuple[Any, ...]]


class Writer:
    """Random transactions of one session, which has its own keys, so that it waits for no lock."""

    def __init__(self, execute: Callable[[str], Any], chance: random.Random, keys: range) -> None:
        self._execute, self._chance, self._keys = execute, chance, keys
        self._live: set[int] = set()

    def transaction(self) -> Iterator[None]:
        """Run a transaction; yields in the middle of it."""
        live, before = self._live, set(self._live)
        statements = [self._statement(live) for _ in range(self._chance.randint(1, 6))]
        middle = self._chance.randint(0, len(statements))
        self._execute("; ".join(["BEGIN", *statements[:middle]]))
        yield
        rolls_back = self._chance.random() < 0.1
        self._execute("; ".join([*statements[middle:], "ROLLBACK" if rolls_back else "COMMIT"]))
        if rolls_back:
            self._live = before

    def _statement(self, live: set[int]) -> str:
        free = [key for key in self._chance.sample(self._keys, 5) if key not in live]
        kind = self._chance.choice(["insert", "update", "update", "update", "delete", "move"])
        if not live or (kind == "insert" and free):
            key = (free or [next(key for key in self._keys if key not in live)])[0]
            live.add(key)
            columns, values = zip(*self._values(), strict=True)
            return (
                f"INSERT INTO members (id, {', '.join(columns)}) "
                f"VALUES ({key}, {', '.join(values)})"
            )
        key = self._chance.choice(sorted(live))
        if kind == "delete":
            live.remove(key)
            return f"DELETE FROM members WHERE id = {key}"
        changed = self._chance.sample(self._values(), self._chance.randint(1, 3))
        if kind == "move" and free:
            live.remove(key)
            live.add(free[0])
            # The log does not contain an unchanged large value for the row of the new key.
            changed = [*self._values()[-1:], ("id", str(free[0]))]
        settings = ", ".join(f"{name} = {value}" for name, value in changed)
        return f"UPDATE members SET {settings} WHERE id = {key}"

    def _values(self) -> list[tuple[str, str]]:
        chance = self._chance
        whole = chance.randint(-(10**18), 10**18) // 10 ** chance.randint(0, 18)
        micros = chance.randint(-2 * 10**15, 2 * 10**15)
        values = {
            "name": chance.choice(["'Anne'", "'it''s \u20ac'", "'\"\\'", "''"]),
            "price": f"{whole}.{chance.randint(0, 9999):04}",
            "born": f"date '1970-01-01' + {chance.randint(-40_000, 40_000)}",
            "at": f"timestamp '2000-01-01' + {micros} * interval '1 us'",
            "seen": f"timestamptz '2000-01-01Z' + {micros} * interval '1 us'",
            "note": f"repeat('{chance.choice('abc')}', {chance.choice([1, 1, 1, 3000])})",
        }
        return [
            (name, "NULL" if name != "name" and chance.random() < 0.1 else value)
            for name, value in values.items()
        ]


def write(spark, server: PostgresServer, count: int, chance: random.Random) -> None:
    """Run transactions in two sessions, so that they overlap."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(session(spark, server)) for _ in range(2)]
        keys = range(1, 20 + count // 2)
        writers = [
            Writer(database.execute, chance, keys[at::2]) for at, database in enumerate(sessions)
        ]
        pending: dict[int, Iterator[None]] = {}
        while count or pending:
            at = chance.randrange(2)
            if at in pending:
                next(pending.pop(at), None)
            elif count:
                count -= 1
                pending[at] = writers[at].transaction()
                next(pending[at])


def deliveries(
    events: list[str | None], batches: int, chance: random.Random
) -> list[list[dict[str, str | None]]]:
    """Messages in batches: shuffled, some in later batches, a fifth of them duplicated."""
    result: list[list[dict[str, str | None]]] = [[] for _ in range(batches)]
    for number, event in enumerate(events):
        at = number * batches // len(events)
        for _ in range(1 + (chance.random() < 0.2)):
            late = min(batches - 1, at + chance.choice([0, 0, 0, 1, 2]))
            result[late].append({"value": event})
    for batch in result:
        chance.shuffle(batch)
    return result


def versions(history: Rows) -> dict[Any, list[Any]]:
    """The versions of each key, with `None` where the key was deleted."""
    result: dict[Any, list[Any]] = defaultdict(list)
    for gone, key, *values in history:
        version = None if gone == "t" else values
        if not result[key] or result[key][-1] != version:
            result[key].append(version)
    return result


def stored_versions(rows: Rows) -> dict[Any, list[Any]]:
    """The versions of each key in a table; its rows are in the order of their start."""
    result: dict[Any, list[Any]] = defaultdict(list)
    last_end: dict[Any, Any] = {}
    for start, end, key, *values in rows:
        if last_end.get(key, start) != start:
            result[key].append(None)
        result[key].append(values)
        last_end[key] = end
    for key, end in last_end.items():
        if end is not None:
            result[key].append(None)
    return result


def as_text(values: Iterable[Any]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in values)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("transactions", "batches"), [(200, 2), pytest.param(10_000, 12, marks=pytest.mark.long)]
)
def test_tables_equal_the_database_when_its_log_is_shuffled_and_duplicated(
    project: Project, postgres_server: PostgresServer, tables: Tables, transactions, batches
):
    chance = random.Random(20261125)
    tables.execute(TABLE)
    tables.execute("INSERT INTO members SELECT -i, 'before', i FROM generate_series(1, 20) i")
    log = ChangeLog(tables, "members")
    events: list[str | None] = [*log.snapshot()]
    write(project.spark, postgres_server, transactions, chance)
    tables.execute("UPDATE members SET name = 'after' WHERE id < -10")
    tables.execute("DELETE FROM members WHERE id = -1")
    events += log.events()
    assert sum("__debezium_unavailable_value" in (event or "") for event in events) > 10
    (project.root / "history.sql").write_text(HISTORY, encoding="utf-8")
    project.source(PIPELINE)
    for number, batch in enumerate(deliveries(events, batches, chance)):
        project.add(f"{number:03}.json", batch)
    assert project.run().state is UpdateState.COMPLETED

    expected = tables.query(f"SELECT {IN_POSTGRES} FROM members")
    assert sorted(map(as_text, project.rows("members", *IN_SPARK))) == sorted(expected)

    history = tables.query(f"SELECT gone, {IN_POSTGRES} FROM history ORDER BY number")
    rows = project.table("customer_history").orderBy("__START_AT")
    rows = rows.selectExpr("__START_AT", "__END_AT", *IN_SPARK).collect()
    stored = [(start, end, *as_text(values)) for start, end, *values in rows]
    assert stored_versions(stored) == versions(history)
    assert not list(project.path("members").parent.glob("*_quarantine"))
