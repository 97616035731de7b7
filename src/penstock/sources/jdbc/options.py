"""Options of the JDBC stream, named as in Spark's reader, and its SQL."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from enum import StrEnum

from penstock._model.duration import parse_seconds
from penstock._model.redaction import remember_secret
from penstock._model.similar import nearest
from penstock.errors import ConnectorError

_OWN = "startingKey maxRowsPerTrigger overlap settlingDelay settleTimeout onKeyBack"
_SPARKS = (
    "url dbtable query user password driver partitionColumn numPartitions fetchsize queryTimeout "
    "customSchema sessionInitStatement pushDownPredicate preferTimestampNTZ"
)
_KNOWN = {name.lower(): name for name in f"{_OWN} {_SPARKS}".split()}
# Spark only splits a batch read at these bounds: rows outside of them are read, too.
_BOUNDS = ("lowerbound", "upperbound")
_MARIADB = "jdbc:mariadb:"
_LIMIT_FIRST = ("jdbc:mysql:", "jdbc:sqlite:")
_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?")
# By default, Python rounds to 28 digits.
_EXACT = Context(prec=100)
_ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")


class KeyKind(StrEnum):
    """What the key column holds."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, order=False)
class Key:
    """A value of the key column, as the database writes it: digits, or a time."""

    kind: KeyKind
    text: str

    @property
    def sql(self) -> str:
        """The key as a SQL literal."""
        if self.kind is not KeyKind.TIMESTAMP:
            return self.text
        # A time zone in the value is kept, so that the session time zone has no effect.
        named = "TIMESTAMP WITH TIME ZONE" if _ZONE.search(self.text[10:]) else "TIMESTAMP"
        return f"{named} '{self.text}'"

    @property
    def order(self) -> Decimal:
        """The number by which keys of one column are compared."""
        if self.kind is not KeyKind.TIMESTAMP:
            return Decimal(self.text)
        moment = datetime.fromisoformat(self.text)
        begin = datetime(1970, 1, 1, tzinfo=UTC if moment.tzinfo else None)
        return Decimal((moment - begin) // timedelta(microseconds=1))

    def before(self, overlap: int | float) -> "Key":
        """The key that is smaller by `overlap` values, or seconds."""
        if self.kind is KeyKind.TIMESTAMP:
            moved = datetime.fromisoformat(self.text) - timedelta(seconds=overlap)
            return Key(self.kind, moved.isoformat(" "))
        return Key(self.kind, f"{_EXACT.subtract(Decimal(self.text), Decimal(overlap)):f}")


@dataclass(frozen=True, kw_only=True)
class JdbcSourceOptions:
    """Checked options of a JDBC stream.

    Attributes:
        table: Table, or a query in brackets with a name.
        max_rows: Maximum rows of a micro-batch; rows with the same key stay together.
        overlap: How many key values, or how long, before the last key rows are read again.
        settling_delay_seconds: How long after a key was seen it and all smaller keys count as
            committed; `None` means to query PostgreSQL's running transactions instead.
        settle_timeout_seconds: How long transactions may delay the stream before it is an error.
        accept_key_back: Whether to continue if the table no longer has the keys that were read.
    """

    url: str = field(repr=False)
    table: str
    is_query: bool
    key: str
    starting_key: str | None
    max_rows: int
    overlap: str | None
    settling_delay_seconds: float | None
    settle_timeout_seconds: float
    accept_key_back: bool
    partitions: int
    reader: Mapping[str, str] = field(repr=False)

    @property
    def is_postgresql(self) -> bool:
        """Whether running transactions can be queried."""
        return self.url.startswith("jdbc:postgresql:")

    @property
    def place(self) -> str:
        """Table and database in words."""
        database = re.split(r"[?;]", self.url.removeprefix("jdbc:"), maxsplit=1)[0]
        database = re.sub(r"//[^/]*@", "//", database)
        return f"{'a query' if self.table.startswith('(') else self.table} in {database}"


def spark_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options for Spark's reader, with a MySQL URL in place of a MariaDB URL.

    Except for MySQL, Spark quotes columns as MariaDB quotes strings: each value would be the name
    of its column. Without a time zone, TIMESTAMP values are in the time zone of the server.
    """
    names = {name.lower(): name for name in options}
    url = options.get(names.get("url", ""), "").strip()
    if not url.startswith(_MARIADB):
        return dict(options)
    mark = "&" if "?" in url else "?"
    url = f"jdbc:mysql:{url.removeprefix(_MARIADB)}{mark}permitMysqlScheme=true"
    if "timezone" not in names and "timezone=" not in url.lower():
        url += "&timezone=auto"
    driver = {} if "driver" in names else {"driver": "org.mariadb.jdbc.Driver"}
    return {**options, names["url"]: url, **driver}


def jdbc_source_options(options: Mapping[str, str]) -> JdbcSourceOptions:
    """Check the options of a JDBC stream and fill in defaults."""
    by_lower_name = {name.lower(): value for name, value in options.items()}
    _remember_secrets(by_lower_name)
    _refuse(options)
    if not by_lower_name.get("url", "").startswith("jdbc:"):
        raise invalid("option `url` is missing, or does not begin with `jdbc:`")
    table, query = (by_lower_name.get(name, "").strip() for name in ("dbtable", "query"))
    if bool(table) == bool(query):
        raise invalid("set either option `dbtable` (a table) or option `query`, not both")
    if not by_lower_name.get("partitioncolumn", "").strip():
        raise invalid(
            "option `partitionColumn` is missing: a stream needs a column whose values only grow",
            hint='.option("partitionColumn", "id"), the serial, identity or sequence of the table',
        )
    if query:
        table = f"({query.rstrip(';')}) penstock_rows"
    own = {*_OWN.lower().split(), *["partitioncolumn", "numpartitions", "url", "dbtable", "query"]}
    reader = {name: value for name, value in options.items() if name.lower() not in own}
    if "fetchsize" not in by_lower_name:
        # Without a fetch size, some drivers read a whole result into memory.
        reader["fetchsize"] = "1000"
    delay = by_lower_name.get("settlingdelay")
    on_key_back = by_lower_name.get("onkeyback", "refuse").strip().lower()
    if on_key_back not in ("refuse", "continue"):
        raise invalid("option `onKeyBack` must be one of refuse, continue")
    chosen = JdbcSourceOptions(
        url=by_lower_name["url"].strip(),
        table=table,
        is_query=table.startswith("("),
        key=by_lower_name["partitioncolumn"].strip(),
        starting_key=by_lower_name.get("startingkey", "").strip() or None,
        max_rows=count(by_lower_name, "maxRowsPerTrigger", 1_000_000),
        overlap=by_lower_name.get("overlap", "").strip() or None,
        settling_delay_seconds=None if delay is None else _seconds("settlingDelay", delay),
        settle_timeout_seconds=_seconds(
            "settleTimeout", by_lower_name.get("settletimeout", "5 minutes")
        ),
        accept_key_back=on_key_back == "continue",
        partitions=count(by_lower_name, "numPartitions", 1),
        reader=reader,
    )
    if delay is None and not chosen.is_postgresql:
        raise invalid(
            "option `settlingDelay` is missing: only PostgreSQL shows which transactions still "
            "write, and a row that is committed late, with a smaller key, would be lost",
            hint='.option("settlingDelay", "1 minute"): the longest time from taking a key to '
            'the commit; "0 seconds" if there is one writer only',
        )
    return chosen


def read_key(kind: KeyKind, text: str) -> Key:
    """Parse a key from a database, a checkpoint or an option."""
    text = text.strip()
    pattern = {KeyKind.INTEGER: _INTEGER, KeyKind.DECIMAL: _DECIMAL, KeyKind.TIMESTAMP: _TIME}[kind]
    if pattern.fullmatch(text) is None:
        years = " of the years 1 to 9999" if kind is KeyKind.TIMESTAMP else ""
        raise ConnectorError(
            "JDBC_KEY_INVALID",
            f"{text[:80]!r} cannot be a key: keys of this column are of type {kind.value}{years}",
        )
    return Key(kind, text)


def overlap_amount(options: JdbcSourceOptions, kind: KeyKind) -> float:
    """The overlap as a number of key values or seconds; 0 for none."""
    text = options.overlap
    if kind is KeyKind.TIMESTAMP:
        if text is None:
            raise invalid(
                f"option `overlap` is missing: many rows may have the same {options.key!r}, and "
                "a transaction commits after the time that it writes",
                hint='.option("overlap", "10 minutes"), the longest transaction; its rows are '
                'read again, so remove duplicates in the table: @dp.table(deduplicate_by=["id", '
                '"updated_at"]), or auto CDC for the newest version',
            )
        return _seconds("overlap", text)
    if text is None:
        return 0
    if not text.isdecimal():
        raise invalid("option `overlap` must be a number of key values if the key is a number")
    return int(text)


def nth_key(options: JdbcSourceOptions, key: str, condition: str, n: int) -> str:
    """The query for the key of the n-th row in key order; no row if there are fewer."""
    window = (
        f"LIMIT 1 OFFSET {n - 1}"
        if options.url.startswith(_LIMIT_FIRST)
        else f"OFFSET {n - 1} ROWS FETCH NEXT 1 ROWS ONLY"
    )
    return f"SELECT {key} FROM {options.table} WHERE {condition} ORDER BY {key} {window}"


def count_between(options: JdbcSourceOptions, condition: str) -> str:
    """The query for the number of rows that match a condition."""
    return f"SELECT COUNT(*) FROM {options.table} WHERE {condition}"


def between(key: str, low: Key | None, high: Key | None, *, inclusive: bool = False) -> str:
    """The condition for keys above `low` (or from `low` on), up to and including `high`."""
    above = [] if low is None else [f"{key} {'>=' if inclusive else '>'} {low.sql}"]
    below = [] if high is None else [f"{key} <= {high.sql}"]
    return " AND ".join(above + below) or "1 = 1"


def split_range(
    key: str, low: Key | None, high: Key, parts: int, *, inclusive: bool = False
) -> list[str]:
    """Conditions that match each row of a range once, one per task; only integers are split."""
    whole = between(key, low, high, inclusive=inclusive)
    if low is None or high.kind is not KeyKind.INTEGER or parts == 1:
        return [whole]
    first, last = int(low.text) - inclusive, int(high.text)
    parts = min(parts, max(last - first, 1))
    ends = [first + (last - first) * at // parts for at in range(parts + 1)]
    return [f"{key} > {lower} AND {key} <= {upper}" for lower, upper in itertools.pairwise(ends)]


def _remember_secrets(options: Mapping[str, str]) -> None:
    remember_secret(options.get("password", ""))
    url = options.get("url", "")
    for pattern in (r"(?i)[?&;]\w*password=([^&;]+)", r"//[^/:@]*:([^/@]+)@"):
        for secret in re.findall(pattern, url):
            remember_secret(secret)


def _refuse(options: Mapping[str, str]) -> None:
    for name in options:
        folded = name.lower()
        if folded in _BOUNDS:
            raise invalid(
                f"option `{name}` is for batch reads",
                hint="option `startingKey` leaves out rows with smaller keys",
            )
        near = nearest(folded, _KNOWN.values(), cutoff=0.85)
        if folded not in _KNOWN and near:
            raise ConnectorError(
                "JDBC_OPTION_UNKNOWN",
                f"the JDBC stream has no option `{name}`",
                hint=f"did you mean `{near}`?",
            )


def count(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number above zero."""
    value = options.get(name.lower(), str(default)).strip()
    if not value.isdecimal() or int(value) == 0:
        raise invalid(f"option `{name}` must be a whole number above zero")
    return int(value)


def _seconds(name: str, text: str) -> float:
    if text.strip() in ("0", "0 seconds"):
        return 0.0
    seconds = parse_seconds(text)
    if seconds is None:
        raise invalid(f"option `{name}` must be a duration, such as 30 seconds")
    return seconds


def invalid(message: str, hint: str | None = None) -> ConnectorError:
    """The error for an invalid option of the JDBC stream or sink."""
    return ConnectorError("JDBC_OPTION_INVALID", message, hint=hint)
