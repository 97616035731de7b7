"""The key up to which all rows are committed.

Keys are assigned in order but committed in any order: a transaction that got key 5 may commit after
key 6 was read. So a key that was seen is first a *mark*. It is settled when no transaction can
commit a smaller key any more:

* PostgreSQL: an INSERT locks its table before it gets the key, until its transaction has ended.
  The mark is read first, then the transactions that hold such a lock. When those have ended, each
  key up to the mark is visible or never will be. `CREATE INDEX CONCURRENTLY` waits in the same way.
  Transaction ids cannot be used: their order is not that of the keys.
* Other databases: after a delay that the user sets.
"""

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from penstock._model.quantity import plural
from penstock.errors import ConnectorError
from penstock.sources.jdbc.database import Database
from penstock.sources.jdbc.options import JdbcSourceOptions, Key

_POLL_SECONDS = 0.05
# A table and its partitions: a row that is inserted into a partition directly locks only that.
_WRITERS_OF_TABLE = """
WITH RECURSIVE parts(relation) AS (
  SELECT CAST(to_regclass(?) AS oid)
  UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = relation
)
SELECT DISTINCT virtualtransaction FROM pg_locks JOIN parts USING (relation)
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# All writers of tables other than system tables: a view or query may read any of them.
_WRITERS = """
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted AND relation >= 16384
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_SHOWS_OTHERS = {"m": "materialized view", "f": "foreign table"}
_PLAIN_NAME = re.compile(r'(?:(?:"(?:[^"]|"")+"|\w+)\.)?(?:"(?:[^"]|"")+"|\w+)')


class NotSettledError(Exception):
    """Transactions delay the stream for longer than the timeout."""


@dataclass
class _Mark:
    key: Key
    taken: float
    writers: frozenset[str]


class Marks:
    """The newest settled key of a stream. Used by one thread; `stop` may be called by any.

    `newest` reads the greatest visible key (`None` for an empty table) on a connection from
    `connect`, in which each statement sees what is committed when it runs. `clock` returns seconds.
    """

    def __init__(
        self,
        options: JdbcSourceOptions,
        newest: Callable[[Database], Key | None],
        connect: Callable[[], AbstractContextManager[Database]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._newest = newest
        self._connect = connect
        self._clock = clock
        self._stopped = threading.Event()
        self._mark: _Mark | None = None
        self._looked = 0.0
        self.settled: Key | None = None
        """The last key that was settled; `None` before the first."""
        self.seen: Key | None = None
        """The greatest key that was visible at the last query."""

    def stop(self) -> None:
        self._stopped.set()

    def rest(self, seconds: float) -> None:
        """Wait until `seconds` have passed since the last query."""
        left = self._looked + seconds - self._clock()
        if left > 0:
            self._stopped.wait(left)

    def settle(self, wait_seconds: float) -> Key | None:
        """The newest settled key, after waiting up to `wait_seconds` for the visible keys."""
        until = self._clock() + wait_seconds
        with self._connect() as database:
            while True:
                mark = self._mark = self._mark or self._take(database)
                if mark is None:
                    return self.settled
                if self._is_settled(mark, database):
                    self.settled, self._mark = mark.key, None
                    return self.settled
                self._looked = self._clock()
                if self._looked >= until or self._stopped.wait(_POLL_SECONDS):
                    break
        held = self._clock() - mark.taken
        is_late = self._options.settling_delay_seconds is None
        if is_late and held >= self._options.settle_timeout_seconds and not self._stopped.is_set():
            self._mark = None
            raise NotSettledError(
                f"waited {held:.0f} seconds for {plural(len(mark.writers), 'transaction')} to end: "
                "rows that they commit may have smaller keys than existing rows"
            )
        return self.settled

    def _take(self, database: Database) -> _Mark | None:
        self._looked = self._clock()
        key = self._newest(database)
        if key is None:
            return None
        self.seen = key
        taken = self._clock()
        if self._options.settling_delay_seconds is not None:
            return _Mark(key, taken, frozenset())
        # Read after the key: a transaction with a smaller key holds the lock or has ended.
        return _Mark(key, taken, frozenset(self._writers(database)))

    def _is_settled(self, mark: _Mark, database: Database) -> bool:
        delay = self._options.settling_delay_seconds
        if delay is not None:
            return self._clock() - mark.taken >= delay
        if not mark.writers:
            return True
        # A transaction that is prepared for two-phase commit changes its name to `-1/...`.
        return not [
            name
            for name in self._writers(database)
            if name in mark.writers or name.startswith("-1/")
        ]

    def _writers(self, database: Database) -> list[str]:
        table = self._options.table
        if self._options.is_query or _PLAIN_NAME.fullmatch(table) is None:
            rows = database.query(_WRITERS)
        else:
            rows = database.query(_WRITERS_OF_TABLE, table)
        return [str(name) for (name,) in rows]


def check_postgresql(database: Database, options: JdbcSourceOptions, key: str) -> JdbcSourceOptions:
    """Refuse tables whose keys cannot be settled, and mark a view or foreign table as a query."""
    if options.settling_delay_seconds is None:
        ((standby,),) = database.query("SELECT pg_is_in_recovery()")
        if standby in ("t", "true"):
            raise ConnectorError(
                "JDBC_OPTION_INVALID",
                f"{options.place} is a standby: it does not show which transactions still write",
                hint='read the primary, or set .option("settlingDelay", "1 minute"): the longest '
                "time from taking a key to the commit",
            )
    if options.is_query or _PLAIN_NAME.fullmatch(options.table) is None:
        return replace(options, is_query=True)
    rows = database.query(
        "SELECT c.relkind, s.cache_size, s.increment_by FROM pg_class c LEFT JOIN pg_sequences s "
        "ON to_regclass(format('%I.%I', s.schemaname, s.sequencename)) = "
        "to_regclass(CASE WHEN EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid "
        "AND a.attname = ?) THEN pg_get_serial_sequence(CAST(c.oid AS regclass)::text, ?) END) "
        "WHERE c.oid = to_regclass(?)",
        key,
        key,
        options.table,
    )
    for kind, cached, step in rows:
        if kind in _SHOWS_OTHERS and options.settling_delay_seconds is None and not options.overlap:
            raise ConnectorError(
                "JDBC_OPTION_INVALID",
                f"{options.place} is a {_SHOWS_OTHERS[kind]}: no lock shows who writes its rows",
                hint='set .option("settlingDelay", "1 minute"): the longest time from taking a key '
                "until its row is visible; or read keys again with option `overlap`, and remove "
                "duplicates in the table: @dp.table(deduplicate_by=[...])",
            )
        if kind not in ("r", "p"):
            return replace(options, is_query=True)
        if step is not None and int(step) < 0:
            raise ConnectorError(
                "JDBC_KEY_NOT_ORDERED",
                f"the sequence of {key!r} counts down: its keys get smaller",
                hint="name another key column, whose values get greater",
            )
        if cached is not None and int(cached) > 1 and options.overlap is None:
            raise ConnectorError(
                "JDBC_KEY_NOT_ORDERED",
                f"the sequence of {key!r} hands out {cached} keys to each session at once (CACHE): "
                "a session may use a small one at any time later, and its row would be lost",
                hint="ALTER SEQUENCE ... CACHE 1; or read keys again with option `overlap`, and "
                "remove duplicates in the table: @dp.table(deduplicate_by=[...])",
            )
    return options
