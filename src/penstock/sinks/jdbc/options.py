"""The options of the JDBC sink: names, defaults, checks. Pure functions over option maps.

An unknown option is an error: Spark would pass it to the driver, and some driver parameters load
arbitrary classes. Errors never contain values, because they may be secrets.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from penstock._model.similar import suggested
from penstock.errors import ConnectorError
from penstock.sources.jdbc.options import count, invalid


@dataclass(frozen=True, kw_only=True)
class DatabaseSystem:
    """A database system and its driver: what the options depend on."""

    name: str
    prefixes: tuple[str, ...]  # prefixes of URLs; the driver is passed the first one
    driver: str
    jar_set: str
    # Parameters of the driver that neither run code nor read files other than keys and
    # certificates.
    parameters: tuple[str, ...]
    folds_names: bool  # to lower case, unless they are quoted
    longest_name: int  # in bytes


POSTGRESQL = DatabaseSystem(
    name="PostgreSQL",
    prefixes=("jdbc:postgresql:",),
    driver="org.postgresql.Driver",
    jar_set="postgresql",
    parameters=(
        *("ssl", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "ApplicationName"),
        *("connectTimeout", "loginTimeout", "socketTimeout", "tcpKeepAlive", "currentSchema"),
        *("targetServerType", "prepareThreshold", "preferQueryMode", "gssEncMode"),
        *("channelBinding",),
    ),
    folds_names=True,
    longest_name=63,
)
MYSQL = DatabaseSystem(
    name="MySQL",
    prefixes=("jdbc:mariadb:", "jdbc:mysql:"),
    driver="org.mariadb.jdbc.Driver",
    jar_set="mariadb",
    parameters=(
        *("sslMode", "serverSslCert", "keyStore", "keyStorePassword", "keyStoreType"),
        *("trustStore", "trustStorePassword", "trustStoreType", "connectTimeout"),
        *("socketTimeout", "tcpKeepAlive", "useCompression", "allowPublicKeyRetrieval"),
        *("serverRsaPublicKeyFile", "permitMysqlScheme"),
    ),
    folds_names=False,
    longest_name=64,
)
_SYSTEMS = (POSTGRESQL, MYSQL)
_OWN = (
    *("url", "dbtable", "user", "password", "driver", "mode", "keys", "sequenceBy", "createTable"),
    *("fenceTable", "stagingSchema", "numPartitions", "batchsize", "nulCharacters", "onGap"),
)
_NAME_PART = r'\s*("(?:[^"]|"")+"|`(?:[^`]|``)+`|[A-Za-z_]\w*)\s*'
_NAME = re.compile(rf"(?:{_NAME_PART}\.)?{_NAME_PART}")


class WriteRows(StrEnum):
    """Whether a batch appends rows, or replaces those with the same keys."""

    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True)
class TableName:
    """A table of the database; without a schema, it is in the first one of the search path."""

    schema: str | None
    table: str

    def __str__(self) -> str:
        """The quoted name, for SQL."""
        parts = [self.schema, self.table] if self.schema else [self.table]
        return ".".join(quote(part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class JdbcSinkOptions:
    """The parsed options of a JDBC sink."""

    system: DatabaseSystem
    url: str = field(repr=False)
    table: TableName
    mode: WriteRows
    keys: tuple[str, ...]
    sequence_by: str | None  # orders rows with the same key
    create_table: bool  # create a missing target
    fence: TableName  # stores the last batch of each flow
    staging_schema: str | None  # schema of the staging tables
    partitions: int  # maximum number of concurrent tasks, and so of connections
    batch_size: int  # rows per INSERT
    replace_nul: bool  # U+0000 in strings becomes U+FFFD; otherwise it is an error
    accept_gap: bool  # continue if the database lacks finished batches
    connection: Mapping[str, str] = field(repr=False)

    @property
    def place(self) -> str:
        """The database as shown in messages: host, port, name."""
        return self.url.removeprefix(self.system.prefixes[0]).lstrip("/")


def quote(name: str) -> str:
    """Quote a name for SQL; MySQL sessions have the mode ANSI_QUOTES."""
    return '"' + name.replace('"', '""') + '"'


def table_name(text: str, system: DatabaseSystem = POSTGRESQL) -> TableName:
    """Parse `table` or `schema.table`; unquoted parts are folded as by the database."""
    match = _NAME.fullmatch(text)
    parts = [] if match is None else [_unquoted(part, system) for part in match.groups() if part]
    if not parts or any(len(p.encode()) > system.longest_name or "\0" in p for p in parts):
        raise invalid(
            "a table name must be `table` or `schema.table`, each part of at most "
            f"{system.longest_name} bytes",
            'put other characters than letters, digits and `_` in double quotes: "a-b"',
        )
    return TableName(parts[0] if len(parts) == 2 else None, parts[-1])


def _unquoted(part: str, system: DatabaseSystem) -> str:
    if part[0] in '"`':
        return part[1:-1].replace(part[0] * 2, part[0])
    return part.lower() if system.folds_names else part


def jdbc_sink_options(options: Mapping[str, str]) -> JdbcSinkOptions:
    """Check the options of a JDBC sink, with secrets resolved, and fill in defaults."""
    by_lower_name = {name.lower(): value for name, value in options.items()}
    system = _system(by_lower_name.get("url", "").strip())
    _refuse_unknown(options, system)
    if not by_lower_name.get("dbtable", "").strip():
        raise invalid("option `dbtable` is missing or empty")
    url, parameters = _split_url(by_lower_name["url"].strip(), system)
    if by_lower_name.get("driver", system.driver) != system.driver:
        raise _other_database(
            f"option `driver` must be {system.driver}, which the sink uses for {system.name}"
        )
    mode = _choice(by_lower_name, "mode", [*WriteRows])
    keys = tuple(key.strip() for key in by_lower_name.get("keys", "").split(",") if key.strip())
    sequence = by_lower_name.get("sequenceby", "").strip() or None
    if mode == WriteRows.UPSERT and not keys:
        raise invalid(
            "mode `upsert` needs option `keys`: the columns that identify a row",
            '{"mode": "upsert", "keys": "customer_id, day"}',
        )
    if mode == WriteRows.APPEND and (keys or sequence):
        hint = 'add {"mode": "upsert"}, or remove them'
        raise invalid("options `keys` and `sequenceBy` are for mode `upsert`", hint)
    table = table_name(by_lower_name["dbtable"].strip(), system)
    fence = by_lower_name.get("fencetable", "").strip()
    connection = {
        name: by_lower_name[name.lower()]
        for name in system.parameters
        if name.lower() in by_lower_name
    }
    connection |= {
        name: by_lower_name[name] for name in ("user", "password") if by_lower_name.get(name)
    }
    return JdbcSinkOptions(
        system=system,
        url=url,
        table=table,
        mode=WriteRows(mode),
        keys=keys,
        sequence_by=sequence,
        create_table=_choice(by_lower_name, "createTable", ["true", "false"]) == "true",
        fence=table_name(fence, system) if fence else TableName(table.schema, "penstock_fence"),
        staging_schema=_schema_name(by_lower_name.get("stagingschema", ""), system) or table.schema,
        partitions=count(by_lower_name, "numPartitions", 8),
        batch_size=count(by_lower_name, "batchsize", 2000),
        replace_nul=_choice(by_lower_name, "nulCharacters", ["fail", "replace"]) == "replace",
        accept_gap=_choice(by_lower_name, "onGap", ["refuse", "continue"]) == "continue",
        connection={**parameters, **connection},
    )


def _system(url: str) -> DatabaseSystem:
    for system in _SYSTEMS:
        if url.startswith(system.prefixes):
            return system
    if not url:
        raise invalid("option `url` is missing or empty")
    prefixes = [prefix for system in _SYSTEMS for prefix in system.prefixes]
    raise _other_database(
        "the JDBC sink writes to PostgreSQL, MariaDB and MySQL: option `url` must start with "
        + ", ".join(f"`{prefix}`" for prefix in prefixes)
    )


def _refuse_unknown(options: Mapping[str, str], system: DatabaseSystem) -> None:
    known = (*_OWN, *system.parameters)
    for name in options:
        if name.lower() not in map(str.lower, known):
            raise ConnectorError(
                "JDBC_OPTION_UNKNOWN",
                f"the JDBC sink has no option `{name}` for {system.name}",
                hint=suggested(name, known, f"options: {', '.join(_OWN)}"),
            )


def _split_url(url: str, system: DatabaseSystem) -> tuple[str, dict[str, str]]:
    base, _, query = url.partition("?")
    try:
        authority = urlsplit(base.removeprefix("jdbc:"))
        has_user = "@" in authority.netloc
    except ValueError:
        raise invalid("option `url` cannot be read as a URL") from None
    parameters: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        known = {entry.lower(): entry for entry in system.parameters}.get(name.lower())
        if name.lower() in ("user", "password"):
            has_user = True
        elif known is None:
            raise ConnectorError(
                "JDBC_OPTION_UNSAFE",
                f"option `url` has the parameter `{name}`, which is not one of those allowed",
                hint=f"allowed: {', '.join(system.parameters)}",
            )
        else:
            parameters[known] = unquote(value)
    if has_user:
        raise ConnectorError(
            "JDBC_OPTION_UNSAFE",
            "option `url` contains a user or a password",
            hint='give {"user": "...", "password": "${secret:NAME}"} as separate options',
        )
    prefix = next(prefix for prefix in system.prefixes if base.startswith(prefix))
    return system.prefixes[0] + base.removeprefix(prefix), parameters


def _choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The value of an option, by default the first choice."""
    value = options.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise invalid(f"option `{name}` must be one of {', '.join(choices)}")
    return value


def _schema_name(text: str, system: DatabaseSystem) -> str | None:
    if not text.strip():
        return None
    name = table_name(text.strip(), system)
    if name.schema is not None:
        raise invalid("option `stagingSchema` must be a single name")
    return name.table


def _other_database(message: str) -> ConnectorError:
    hint = "write to other databases from a foreach_batch_sink function"
    return ConnectorError("JDBC_DATABASE_NOT_SUPPORTED", message, hint=hint)
