"""Option rules of Auto Loader (`cloudFiles`, `read_files`): names, defaults, refusals.

Options may have the prefix `cloudFiles.`; with it, an unknown option is an error.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

from penstock._model.aws import AwsAccess, access_options
from penstock._model.duration import parse_seconds
from penstock._model.quantity import parse_bytes
from penstock._model.similar import nearest, suggested
from penstock.errors import ConnectorError

Choice = TypeVar("Choice", bound=str)

FORMATS = ("json", "csv", "xml", "parquet", "avro", "orc", "text", "binaryFile")
TEXTUAL = frozenset({"json", "csv", "xml"})
COLUMNAR = frozenset({"parquet", "avro", "orc"})

_PREFIX = "cloudfiles."
# Relative to the newest file, whose wrong timestamp may be centuries ahead and hide the others.
ANY_AGE = "3650000d"
_SQS_HOST = re.compile(r"(?:sqs\.)?([a-z]+(?:-[a-z]+)+-\d)\..*")

# Options of Auto Loader itself; the rest belongs to the format.
_OWN = (
    "format schemaLocation schemaEvolutionMode inferColumnTypes schemaHints rescuedDataColumn "
    "readerCaseSensitive maxFilesPerTrigger maxBytesPerTrigger includeExistingFiles "
    "allowOverwrites maxFileAge cleanSource cleanSource.retentionDuration "
    "cleanSource.moveDestination partitionColumns ignoreCorruptFiles ignoreMissingFiles "
    "pathGlobFilter recursiveFileLookup modifiedAfter modifiedBefore useNotifications queueUrl "
    "region fetchParallelism backfillInterval awsAccessKey awsSecretKey awsSessionToken roleArn "
    "roleExternalId roleSessionName stsEndpoint useIncrementalListing"
)
# Options of file readers that functions for single records do not have.
_READER_ONLY = frozenset(
    {"mode", "multiline", "columnnameofcorruptrecord", "encoding", "charset", "linesep", "header"}
    | {"inferschema", "samplingratio", "compression", "skiprows", "enforceschema", "comment"}
    | {"maxcolumns", "prefersdate", "primitivesasstring", "rowtag", "roottag"}
)
# Options for the setup of queues, and for queues other than Amazon's, have no effect.
_WITHOUT_EFFECT = (
    "listOnStart pathRewrites resourceTag useManagedFileEvents "
    "useStrictGlobber validateOptions clientEmail clientId clientSecret "
    "connectionString databricks.serviceCredential privateKey privateKeyId projectId queueName "
    "resourceGroup subscription subscriptionId tenantId"
)
_KNOWN = {name.lower(): name for name in f"{_OWN} {_WITHOUT_EFFECT}".split()}
_IGNORED_PREFIXES = ("resourcetag.", "client.")


class Evolution(StrEnum):
    """How new columns are handled."""

    ADD = "addNewColumns"
    WIDEN = "addNewColumnsWithTypeWidening"
    RESCUE = "rescue"
    FAIL = "failOnNewColumns"
    NONE = "none"

    @property
    def adds_columns(self) -> bool:
        """Whether new columns become part of the schema."""
        return self in (Evolution.ADD, Evolution.WIDEN)


class IncrementalListing(StrEnum):
    """Whether new files are searched without a complete listing."""

    AUTO = "auto"
    ON = "true"
    OFF = "false"


class ParseMode(StrEnum):
    """How malformed records are handled."""

    PERMISSIVE = "PERMISSIVE"
    DROP = "DROPMALFORMED"
    FAIL = "FAILFAST"


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What is done with processed files; without a `destination`, they are deleted."""

    retention_seconds: float
    destination: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueueOptions(AwsAccess):
    """A queue of Amazon SQS with the events of a bucket."""

    url: str
    receivers: int


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Checked options of a stream of files: `source` for Spark's source, `parse` for the format.

    An empty `format` is detected from the names of the files. `partition_columns` are taken from
    the path; `None` to detect them, empty for none.
    """

    format: str
    evolution: Evolution
    infer_types: bool
    hints: str | None
    rescued: str | None
    corrupt: str | None
    mode: ParseMode
    multiline: bool
    case_sensitive: bool
    partition_columns: tuple[str, ...] | None
    include_existing: bool
    allow_overwrites: bool
    quarantine_corrupt: bool
    modified_after: str | None
    modified_before: str | None
    cleaning: Cleaning | None
    use_notifications: bool
    queue: QueueOptions | None
    backfill_seconds: float | None
    incremental_listing: IncrementalListing
    source: Mapping[str, str]
    parse: Mapping[str, str]

    @property
    def whole_files(self) -> bool:
        """Whether records may span lines, or lines cannot be split before a file is decoded."""
        encoding = self.parser_option("encoding", "charset").upper()
        return self.multiline or encoding.startswith(("UTF-16", "UTF-32", "UTF16", "UTF32"))

    @property
    def record_options(self) -> dict[str, str]:
        """The format options for functions that parse one record."""
        return {k: v for k, v in self.parse.items() if k.lower() not in _READER_ONLY}

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names of columns that do not contain a field of the file, in lower case."""
        return tuple(name.lower() for name in (self.rescued, self.corrupt) if name)

    def parser_option(self, *names: str, default: str = "") -> str:
        """The value of a format option by the first of its names that is set, case-insensitive."""
        folded = _folded(self.parse)
        return next((folded[name.lower()] for name in names if name.lower() in folded), default)

    def parser_flag(self, name: str) -> bool:
        """A format option that is true or false."""
        return _flag(self.parse, name)


def file_options(options: Mapping[str, str], *, has_schema: bool, streaming: bool) -> FileOptions:
    """Check options and fill in defaults."""
    own, parse = _split(options)
    if not has_schema and own.get("format", "").strip().lower() == "csv":
        # Without a schema, `header` defaults to true.
        parse = {"header": "true", **parse} if "header" not in _folded(parse) else parse
    file_format = own.get("format", "").strip()
    if file_format:
        _choice("format", file_format, FORMATS)
    evolution = _evolution(own, has_schema=has_schema, streaming=streaming)
    rescued = own.get("rescueddatacolumn") or (None if has_schema else "_rescued_data")
    if file_format.lower() in ("text", "binaryfile"):
        rescued, evolution = None, Evolution.NONE
    return FileOptions(
        format=file_format.lower(),
        evolution=evolution,
        infer_types=_flag(own, "inferColumnTypes"),
        hints=own.get("schemahints") or None,
        rescued=rescued,
        corrupt=_folded(parse).get("columnnameofcorruptrecord") or None,
        mode=_choice(
            "mode", _folded(parse).get("mode", ParseMode.PERMISSIVE), ParseMode, prefix=""
        ),
        multiline=_flag(parse, "multiLine"),
        case_sensitive=_flag(own, "readerCaseSensitive", default=True),
        partition_columns=_names(own.get("partitioncolumns")),
        include_existing=_flag(own, "includeExistingFiles", default=True),
        allow_overwrites=_flag(own, "allowOverwrites"),
        quarantine_corrupt=_flag(own, "ignoreCorruptFiles", default=True),
        modified_after=own.get("modifiedafter") or None,
        modified_before=own.get("modifiedbefore") or None,
        cleaning=_cleaning(own) if streaming else None,
        use_notifications=_flag(own, "useNotifications") and streaming,
        queue=_queue(own),
        backfill_seconds=_seconds(own, "backfillInterval", "") or None,
        incremental_listing=_choice(
            "useIncrementalListing",
            own.get("useincrementallisting", IncrementalListing.AUTO),
            IncrementalListing,
        ),
        source=_source_options(own, streaming=streaming),
        parse=parse,
    )


# Alternative names of options.
_ALIASES = {"filenamepattern": "pathglobfilter"}
# Options of formats that older notebooks write with the prefix.
_OF_FORMATS = {"header", "inferschema"}


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    own: dict[str, str] = {}
    parse: dict[str, str] = {}
    for key, value in options.items():
        folded = key.lower()
        name = folded.removeprefix(_PREFIX)
        name = _ALIASES.get(name, name)
        if name in _KNOWN:
            own[name] = value
        elif name in _OF_FORMATS or not folded.startswith(_PREFIX):
            if folded != "path":
                parse[key[len(key) - len(name) :]] = value
        elif not name.startswith(_IGNORED_PREFIXES):
            near = nearest(name, _KNOWN.values(), cutoff=0.5)
            raise ConnectorError(
                "AUTOLOADER_OPTION_UNKNOWN",
                f"Auto Loader has no option {key!r}",
                hint=f"did you mean 'cloudFiles.{near}'?" if near else None,
            )
    return own, parse


def _cleaning(own: Mapping[str, str]) -> Cleaning | None:
    kind = _choice("cleanSource", own.get("cleansource", "OFF"), ("OFF", "MOVE", "DELETE"))
    if kind == "OFF":
        return None
    retention = _seconds(own, "cleanSource.retentionDuration", "30 days")
    destination = own.get("cleansource.movedestination", "").strip()
    if kind == "MOVE" and not destination:
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            "cloudFiles.cleanSource=MOVE needs cloudFiles.cleanSource.moveDestination",
            hint="name a folder outside of the source, on the same file system",
        )
    return Cleaning(
        retention_seconds=retention, destination=destination if kind == "MOVE" else None
    )


def _queue(own: Mapping[str, str]) -> QueueOptions | None:
    url = own.get("queueurl", "").strip()
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.netloc or not parts.path.strip("/"):
        raise _invalid(
            "queueUrl", url, "as https://sqs.eu-central-1.amazonaws.com/<account>/<name>"
        )
    by_host = _SQS_HOST.fullmatch(parts.hostname or "")
    region = {"region": by_host[1]} if by_host else {}
    return QueueOptions(
        url=url,
        receivers=int(_count(own.get("fetchparallelism", "1"), "fetchParallelism")),
        **region | access_options(own),
    )


def _seconds(own: Mapping[str, str], name: str, default: str) -> float:
    text = own.get(name.lower()) or default
    seconds = 0.0 if text.strip().strip("'\"") in ("", "0") else parse_seconds(text)
    if seconds is None:
        raise _invalid(name, text, "a number and a unit, such as '30 days'")
    return seconds


def _evolution(own: Mapping[str, str], *, has_schema: bool, streaming: bool) -> Evolution:
    name = own.get("schemaevolutionmode")
    if name is None:
        evolution = Evolution.NONE if has_schema else Evolution.ADD
    else:
        evolution = _choice("schemaEvolutionMode", name, Evolution)
    if has_schema and evolution.adds_columns:
        raise ConnectorError(
            "AUTOLOADER_OPTION_INVALID",
            f"cloudFiles.schemaEvolutionMode {evolution.value!r} cannot be combined with a schema",
            hint="set known types as cloudFiles.schemaHints instead of a schema",
        )
    if not streaming and evolution.adds_columns:
        # A batch reads all files at once: there is no restart that could add the column.
        return Evolution.RESCUE
    return evolution


def _source_options(own: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    # Auto Loader always lists subfolders; partition columns are taken from the path.
    source = {"recursiveFileLookup": "true"}
    if own.get("pathglobfilter"):
        source["pathGlobFilter"] = own["pathglobfilter"]
    if "ignoremissingfiles" in own:
        source["ignoreMissingFiles"] = str(_flag(own, "ignoreMissingFiles")).lower()
    if not streaming:
        return source
    # Spark's default of 7 days silently skips older files.
    source["maxFileAge"] = ANY_AGE
    if limit := own.get("maxbytespertrigger"):
        # Spark accepts only one of the two limits.
        source["maxBytesPerTrigger"] = _bytes(limit)
    else:
        source["maxFilesPerTrigger"] = _count(
            own.get("maxfilespertrigger", "1000"), "maxFilesPerTrigger"
        )
    return source


def _bytes(text: str) -> str:
    try:
        size = parse_bytes(text)
    except ValueError:
        size = 0
    if size == 0:
        raise _invalid("maxBytesPerTrigger", text, "a number of bytes, such as 10g")
    return str(size)


def _count(text: str, name: str) -> str:
    if not text.strip().isdecimal() or int(text) == 0:
        raise _invalid(name, text, "a positive whole number")
    return text.strip()


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip().strip("`") for name in text.split(",") if name.strip())


def _folded(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    text = _folded(options).get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise _invalid(name, text, "true or false", prefix="")
    return text.strip().lower() == "true"


def _choice(
    name: str, text: str, choices: Iterable[Choice], *, prefix: str = "cloudFiles."
) -> Choice:
    """The choice that a string names, case-insensitive."""
    by_name = {choice.lower(): choice for choice in choices}
    choice = by_name.get(text.strip().lower())
    if choice is None:
        names = tuple(by_name.values())
        raise _invalid(name, text, "one of " + ", ".join(names), names, prefix=prefix)
    return choice


def _invalid(
    name: str,
    value: str,
    wanted: str,
    choices: tuple[str, ...] = (),
    *,
    prefix: str = "cloudFiles.",
) -> ConnectorError:
    return ConnectorError(
        "AUTOLOADER_OPTION_INVALID",
        f"option {prefix}{name} is {value!r}; it must be {wanted}",
        hint=suggested(value, choices),
    )
