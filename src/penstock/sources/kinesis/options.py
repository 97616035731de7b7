"""Options of the Kinesis source, as in Databricks' connector, checked before any read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NoReturn
from zoneinfo import ZoneInfo

from penstock._model.aws import AwsAccess, access_options
from penstock._model.duration import parse_seconds
from penstock._model.quantity import parse_bytes
from penstock._model.similar import suggested
from penstock.errors import ConnectorError

FORMAT = "kinesis"
BEHIND = "behind_millis"

_EXAMPLE = '.option("streamName", "orders")'
_NAMES = (
    "streamName region endpoint stsEndpoint initialPosition awsAccessKey awsSecretKey "
    "awsSessionToken roleArn roleExternalId roleSessionName consumerMode failOnDataLoss "
    "maxRecordsPerFetch maxFetchRate minFetchPeriod maxFetchDuration fetchBufferSize "
    "shardsPerTask shardFetchInterval retryTimeout"
)
# Options of Databricks' connector for prefetched records. This source does not prefetch.
_WITHOUT_EFFECT = (
    "coalescethresholdblocksize coalesce coalescebinsize reusekinesisclient maxshardsperdescribe "
    "avoidemptypartitions"
)
_REFUSED = {
    "servicecredential": "service credentials are not supported: use the default credentials of "
    "AWS, `roleArn`, or `awsAccessKey` and `awsSecretKey`",
    "streamarn": "name streams with `streamName`, and their region with `region`",
    "streamnames": "use `streamName`; several names are separated by commas",
    "initialpositioninstream": "use `initialPosition`",
    "startingposition": "use `initialPosition`",
    "endpointurl": "use `endpoint`",
    "regionname": "use `region`",
}
_KNOWN = {name.lower(): name for name in _NAMES.split()}
_MAX_BUFFER = 1 << 30
# Java's date patterns that have an equivalent in Python.
_PATTERN = {
    "yyyy": "%Y", "uuuu": "%Y", "MMM": "%b", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M",
    "ss": "%S", "SSSSSS": "%f", "SSS": "%f", "XXX": "%z", "XX": "%z", "ZZZZZ": "%z", "ZZZ": "%Z",
    "Z": "%z", "zzz": "%Z", "z": "%Z", "VV": "%Z",
}  # fmt: skip
_PATTERN_TOKEN = re.compile("'([^']*)'|" + "|".join(sorted(_PATTERN, key=len, reverse=True)))
_ZONES = {
    "UTC": 0, "GMT": 0, "Z": 0, "PST": -8, "PDT": -7, "MST": -7, "MDT": -6, "CST": -6, "CDT": -5,
    "EST": -5, "EDT": -4,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InitialPosition:
    """Where a stream without a checkpoint begins: `latest`, `trim_horizon` or `at_timestamp`."""

    kind: str
    millis: int = 0


@dataclass(frozen=True, kw_only=True)
class KinesisOptions(AwsAccess):
    """Checked options.

    Attributes:
        fetch_rate: Bytes per second and shard.
        fetch_period_seconds: Shortest time between two requests for a shard.
        fetch_seconds: How long to collect one micro-batch.
        buffer_bytes: Size at which no more records are added to a micro-batch.
        retry_seconds: How long a throttled or unanswered request is retried.
    """

    streams: tuple[str, ...]
    start: InitialPosition
    endpoint: str | None = None
    fails_on_loss: bool = True
    records_per_fetch: int = 10_000
    fetch_rate: float = 1.0 * (1 << 20)
    fetch_period_seconds: float = 0.4
    fetch_seconds: float = 10.0
    buffer_bytes: int = 32 << 20
    shards_per_task: int = 5
    shard_interval_seconds: float = 1.0
    retry_seconds: float = 60.0


def source_options(options: Mapping[str, str], *, streaming: bool = True) -> KinesisOptions:
    """Check the options of a Kinesis source, add defaults, and remember keys and tokens."""
    access = access_options({name.lower(): value.strip() for name, value in options.items()})
    by_lower_name: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in _REFUSED:
            raise ConnectorError(
                "KINESIS_OPTION_REFUSED", f"option `{name}` is not used", hint=_REFUSED[lower]
            )
        if lower in _KNOWN:
            by_lower_name[lower] = value.strip()
        elif lower not in _WITHOUT_EFFECT.split():
            known = _KNOWN.values()
            raise ConnectorError(
                "KINESIS_OPTION_UNKNOWN",
                f"the Kinesis source has no option `{name}`",
                hint=suggested(name, known, f"known: {', '.join(known)}"),
            )
    mode = by_lower_name.get("consumermode", "polling").lower()
    if mode == "efo":
        raise ConnectorError(
            "KINESIS_OPTION_REFUSED",
            "consumerMode `efo` (enhanced fan-out) is not available: shards are polled",
            hint="remove the option; polled, all consumers of a shard share 2 MB and 5 reads "
            "per second",
        )
    if mode != "polling":
        _invalid("consumerMode", "must be `polling`")
    if ("access_key" in access) != ("secret_key" in access):
        _invalid("awsAccessKey", "and `awsSecretKey` must be set together")
    if "session_token" in access and "access_key" not in access:
        _invalid("awsSessionToken", "requires `awsAccessKey` and `awsSecretKey`")
    on_loss = by_lower_name.get("failondataloss", "true").lower()
    if on_loss not in ("true", "false"):
        _invalid("failOnDataLoss", "must be true or false")
    fallback = "latest" if streaming else "trim_horizon"
    start = _start(by_lower_name.get("initialposition") or fallback)
    if not streaming and start.kind == "latest":
        _invalid("initialPosition", "cannot be latest for a batch: there would be no rows")
    if sts_endpoint := _url("stsEndpoint", by_lower_name):
        access["sts_endpoint"] = sts_endpoint
    return KinesisOptions(
        streams=_streams(by_lower_name.get("streamname", "")),
        start=start,
        endpoint=_url("endpoint", by_lower_name),
        fails_on_loss=on_loss == "true",
        records_per_fetch=_whole("maxRecordsPerFetch", by_lower_name, 10_000, most=10_000),
        fetch_rate=_rate(by_lower_name.get("maxfetchrate", "1.0")),
        fetch_period_seconds=_duration("minFetchPeriod", by_lower_name, 0.4),
        fetch_seconds=_duration("maxFetchDuration", by_lower_name, 10.0),
        buffer_bytes=_size(by_lower_name.get("fetchbuffersize", "32mb")),
        shards_per_task=_whole("shardsPerTask", by_lower_name, 5),
        shard_interval_seconds=_duration("shardFetchInterval", by_lower_name, 1.0),
        retry_seconds=_duration("retryTimeout", by_lower_name, 60.0),
        **access,
    )


def _invalid(name: str, rule: str, hint: str | None = None) -> NoReturn:
    raise ConnectorError("KINESIS_OPTION_INVALID", f"option `{name}` {rule}", hint=hint)


def _streams(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        _invalid("streamName", "is missing or empty", _EXAMPLE)
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,128}", name):
            _invalid("streamName", f"has {name!r}, which is not a stream name", _EXAMPLE)
    return names


def _url(name: str, options: Mapping[str, str]) -> str | None:
    value = options.get(name.lower())
    if not value:
        return None
    if "@" in value:
        _invalid(name, "contains a user; use the options for credentials")
    return value if re.match(r"https?://", value) else f"https://{value}"


def _whole(name: str, options: Mapping[str, str], default: int, most: int | None = None) -> int:
    value = options.get(name.lower(), str(default))
    if not value.isdecimal() or int(value) < 1 or (most is not None and int(value) > most):
        _invalid(name, "must be a whole number above zero" + (f", at most {most}" if most else ""))
    return int(value)


def _duration(name: str, options: Mapping[str, str], default: float) -> float:
    value = options.get(name.lower())
    if value is None:
        return default
    # A number without a unit is in seconds.
    seconds = parse_seconds(value if value[-1:].isalpha() else f"{value} s")
    if seconds is None:
        _invalid(name, "must be a duration such as `400ms`, `10s` or `2m`")
    return seconds


def _rate(value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 2:
        _invalid("maxFetchRate", "must be a number of MB per second and shard, at most 2.0")
    return rate * (1 << 20)


def _size(value: str) -> int:
    try:
        size = parse_bytes(value)
    except ValueError:
        size = 0
    if size == 0:
        _invalid("fetchBufferSize", "must be a size such as `32mb`")
    # The driver keeps a micro-batch in memory; Databricks' default, 20gb, would not fit.
    return min(size, _MAX_BUFFER)


_START_HINT = (
    '"latest", "trim_horizon", "earliest", or JSON such as '
    '{"at_timestamp": "2026-06-25T10:23:45Z"} or '
    '{"at_timestamp": "06/25/2026 10:23:45 UTC", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}'
)


def _start(text: str) -> InitialPosition:
    word = text.lower()
    if word in ("trim_horizon", "earliest"):
        return InitialPosition(kind="trim_horizon")
    if word == "latest":
        return InitialPosition(kind="latest")
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        _invalid("initialPosition", "is neither a known keyword nor JSON", _START_HINT)
    fields = {str(k).lower(): v for k, v in parsed.items()} if isinstance(parsed, dict) else {}
    value, pattern = fields.pop("at_timestamp", None), fields.pop("format", None)
    if fields or not isinstance(value, str) or not isinstance(pattern, str | None):
        _invalid("initialPosition", "has JSON without `at_timestamp`, or with more", _START_HINT)
    at = _with_pattern(value, pattern) if pattern else _iso(value)
    return InitialPosition(kind="at_timestamp", millis=round(at.timestamp() * 1000))


def _iso(value: str) -> datetime:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        _invalid(
            "initialPosition", "has an `at_timestamp` that is not an ISO 8601 time", _START_HINT
        )
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _with_pattern(value: str, pattern: str) -> datetime:
    rest = _PATTERN_TOKEN.sub("", pattern)
    if re.search("[A-Za-z]", rest):
        _invalid("initialPosition", f"has a `format` with unknown letters: {rest.strip()}")
    zone: tzinfo = UTC
    wanted = _PATTERN_TOKEN.sub(
        lambda m: m[1].replace("%", "%%") if m[1] is not None else _PATTERN[m[0]], pattern
    )
    if wanted.endswith("%Z"):
        # Python parses only UTC, GMT and the names of the local time zone.
        value, _, name = value.rpartition(" ")
        wanted = wanted[: -len("%Z")].rstrip()
        hours = _ZONES.get(name.upper())
        if hours is not None:
            zone = timezone(timedelta(hours=hours))
        else:
            try:
                return datetime.strptime(f"{value} {name}", f"{wanted} %z")
            except ValueError:
                pass
            try:
                zone = ZoneInfo(name)
            except (OSError, ValueError):
                _invalid("initialPosition", "has an unknown time zone", _START_HINT)
    try:
        at = datetime.strptime(value, wanted)  # noqa: DTZ007 - the zone is added below
    except ValueError:
        _invalid("initialPosition", "has an `at_timestamp` that does not match its `format`")
    return at if at.tzinfo else at.replace(tzinfo=zone)
