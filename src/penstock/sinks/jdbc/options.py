"""Option rules of the JDBC sink: names, defaults, refusals. Pure functions over option maps.

An unknown option is an error: Spark would pass it to the driver, and some parameters of the driver
make it load foreign classes. Errors never contain values, because they may be secrets.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from penstock.errors import ConnectorError

__all__ = ["JdbcSinkOptions", "TableName", "WriteRows", "jdbc_sink_options", "table_name"]

_POSTGRESQL = "jdbc:postgresql:"
_OWN = (
    *("url", "dbtable", "user", "password", "driver", "mode", "keys", "sequenceBy", "createTable"),
    *("fenceTable", "stagingSchema", "numPartitions", "batchsize", "nulCharacters", "onGap"),
)
# Parameters of the driver that neither run code nor read other files than keys and certificates.
_CONNECTION = (
    *("ssl", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "ApplicationName"),
    *("connectTimeout", "loginTimeout", "socketTimeout", "tcpKeepAlive", "currentSchema"),
    *("targetServerType", "prepareThreshold", "preferQueryMode", "gssEncMode", "channelBinding"),
)
_KNOWN = {name.lower(): name for name in (*_OWN, *_CONNECTION)}
_DRIVER = "org.postgresql.Driver"
_NAME_PART = r'\s*("(?:[^"]|"")+"|[A-Za-z_]\w*)\s*'
_NAME = re.compile(rf"(?:{_NAME_PART}\.)?{_NAME_PART}")
_LONGEST_NAME = 63


class WriteRows(StrEnum):
    """Whether a batch adds rows, or replaces those with the same keys."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True)
class TableName:
    """A table of the database; `None` as the schema is the first one of the search path."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        """Quoted, for SQL."""
        parts = [self.schema, self.table] if self.schema else [self.table]
        return ".".join(quote(part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class JdbcSinkOptions:
    """The parsed options of a JDBC sink."""

    url: str = field(repr=False)
    table: TableName
    mode: WriteRows
    keys: tuple[str, ...]
    sequence_by: str | None  # orders rows of one key
    create_table: bool  # create a missing target
    fence: TableName  # stores the last batch of each flow
    staging_schema: str | None  # of the tables of single batches
    partitions: int  # maximum of concurrent tasks, and so connections
    batch_size: int  # rows per INSERT
    replace_nul: bool  # U+0000 in strings becomes U+FFFD; otherwise it is an error
    accept_gap: bool  # continue if the database lacks finished batches
    connection: Mapping[str, str] = field(repr=False)

    @property
    def place(self) -> str:
        """The database for messages: host, port, name."""
        return self.url.removeprefix(_POSTGRESQL).lstrip("/")


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def table_name(text: str) -> TableName:
    """Parse `table` or `schema.table`; unquoted parts are folded to lower case, as in SQL."""
    match = _NAME.fullmatch(text)
    parts = [] if match is None else [_unquoted(part) for part in match.groups() if part]
    if not parts or any(len(p.encode()) > _LONGEST_NAME or "\0" in p for p in parts):
        raise _invalid(
            "a table name must be `table` or `schema.table`, each part of at most 63 bytes",
            'put other characters than letters, digits and `_` in double quotes: "a-b"',
        )
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def jdbc_sink_options(options: Mapping[str, str]) -> JdbcSinkOptions:
    """Check the options of a JDBC sink, with secrets resolved, and fill in defaults."""
    by_lower_name = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(options)
    for name in ("url", "dbtable"):
        if not by_lower_name.get(name, "").strip():
            raise _invalid(f"option `{name}` is missing or empty")
    url, parameters = _split_url(by_lower_name["url"].strip())
    if by_lower_name.get("driver", _DRIVER) != _DRIVER:
        raise _other_database("option `driver` must be PostgreSQL's driver")
    mode = _choice(by_lower_name, "mode", [*WriteRows], WriteRows.APPEND)
    keys = tuple(key.strip() for key in by_lower_name.get("keys", "").split(",") if key.strip())
    sequence = by_lower_name.get("sequenceby", "").strip() or None
    if mode == WriteRows.UPSERT and not keys:
        raise _invalid(
            "mode `upsert` needs option `keys`: the columns that identify a row",
            '{"mode": "upsert", "keys": "customer_id, day"}',
        )
    if mode == WriteRows.APPEND and (keys or sequence):
        hint = 'add {"mode": "upsert"}, or remove them'
        raise _invalid("options `keys` and `sequenceBy` are for mode `upsert`", hint)
    table = table_name(by_lower_name["dbtable"].strip())
    fence = by_lower_name.get("fencetable", "").strip()
    connection = {
        name: by_lower_name[name.lower()] for name in _CONNECTION if name.lower() in by_lower_name
    }
    connection |= {
        name: by_lower_name[name] for name in ("user", "password") if by_lower_name.get(name)
    }
    return JdbcSinkOptions(
        url=url,
        table=table,
        mode=WriteRows(mode),
        keys=keys,
        sequence_by=sequence,
        create_table=_choice(by_lower_name, "createTable", ["true", "false"], "true") == "true",
        fence=table_name(fence) if fence else TableName(table.schema, "penstock_fence"),
        staging_schema=_schema_name(by_lower_name.get("stagingschema", "")) or table.schema,
        partitions=_count(by_lower_name, "numPartitions", 8),
        batch_size=_count(by_lower_name, "batchsize", 2000),
        replace_nul=_choice(by_lower_name, "nulCharacters", ["fail", "replace"], "fail")
        == "replace",
        accept_gap=_choice(by_lower_name, "onGap", ["refuse", "continue"], "refuse") == "continue",
        connection={**parameters, **connection},
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name.lower() in _KNOWN:
            continue
        near = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.6)
        raise ConnectorError(
            "JDBC_OPTION_UNKNOWN",
            f"the JDBC sink has no option `{name}`",
            hint=f"did you mean `{_KNOWN[near[0]]}`?" if near else f"options: {', '.join(_OWN)}",
        )


def _split_url(url: str) -> tuple[str, dict[str, str]]:
    if not url.startswith(_POSTGRESQL):
        raise _other_database(
            f"the JDBC sink writes to PostgreSQL: option `url` must start with `{_POSTGRESQL}`"
        )
    base, _, query = url.partition("?")
    try:
        authority = urlsplit(base.removeprefix("jdbc:"))
        has_user = "@" in authority.netloc
    except ValueError:
        raise _invalid("option `url` cannot be read as a URL") from None
    parameters: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        known = {entry.lower(): entry for entry in _CONNECTION}.get(name.lower())
        if name.lower() in ("user", "password"):
            has_user = True
        elif known is None:
            raise ConnectorError(
                "JDBC_OPTION_UNSAFE",
                f"option `url` has the parameter `{name}`, which is not one of those allowed",
                hint=f"allowed: {', '.join(_CONNECTION)}",
            )
        else:
            parameters[known] = unquote(value)
    if has_user:
        raise ConnectorError(
            "JDBC_OPTION_UNSAFE",
            "option `url` contains a user or a password",
            hint='give {"user": "...", "password": "${secret:NAME}"} as separate options',
        )
    return base, parameters


def _choice(options: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    value = options.get(name.lower(), default).strip().lower()
    if value not in choices:
        raise _invalid(f"option `{name}` must be one of {', '.join(choices)}")
    return value


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name.lower(), str(default)).strip()
    if not value.isdecimal() or int(value) == 0:
        raise _invalid(f"option `{name}` must be a whole number above zero")
    return int(value)


def _schema_name(text: str) -> str | None:
    if not text.strip():
        return None
    name = table_name(text.strip())
    if name.schema is not None:
        raise _invalid("option `stagingSchema` must be a single name")
    return name.table


def _invalid(message: str, hint: str | None = None) -> ConnectorError:
    return ConnectorError("JDBC_OPTION_INVALID", message, hint=hint)


def _other_database(message: str) -> ConnectorError:
    hint = "write to other databases from a foreach_batch_sink function"
    return ConnectorError("JDBC_DATABASE_NOT_SUPPORTED", message, hint=hint)
