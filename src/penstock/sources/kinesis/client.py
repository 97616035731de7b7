"""Shards, iterators and records of Kinesis; throttled and unanswered requests are retried."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from penstock.errors import ConnectorError
from penstock.sources import aws
from penstock.sources.kinesis.offsets import Position, Shard
from penstock.sources.kinesis.options import KinesisOptions

_THROTTLED = (
    "ProvisionedThroughputExceededException LimitExceededException ThrottlingException Throttling "
    "RequestLimitExceeded KMSThrottlingException SlowDown"
)
_BUSY = frozenset(
    {"InternalFailure", "InternalFailureException", "ServiceUnavailable", "RequestTimeout"}
)
_EXPIRED = "ExpiredIteratorException"
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record as Kinesis returns it."""

    key: str
    data: bytes
    number: str
    arrival: datetime

    @property
    def arrival_millis(self) -> int:
        return int(self.arrival.timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Records from an iterator; may be empty although more follow. Times are in milliseconds.

    `next` is `None` at the end of a closed shard; `now` is the server's clock.
    """

    records: tuple[Record, ...]
    next: str | None
    behind_millis: int
    now: int

    @property
    def at_end(self) -> bool:
        """Whether there were no more records; those of one millisecond may be in several pages."""
        return not self.records and self.behind_millis == 0


class IteratorExpired(Exception):
    """An iterator was not used for five minutes: a new one is needed."""


class NotInShard(Exception):
    """Kinesis does not find a sequence number: its record was removed."""


class KinesisClient:
    """One connection pool; used by several threads, for `connections` concurrent requests."""

    def __init__(self, options: KinesisOptions, *, connections: int = 10) -> None:
        aws.require_botocore("the Kinesis source")
        import botocore.exceptions
        from botocore.config import Config

        self._errors = botocore.exceptions
        self._retry_seconds = options.retry_seconds
        self._pause = threading.Event()
        config = Config(
            connect_timeout=10,
            read_timeout=30,
            max_pool_connections=connections,
            retries={"total_max_attempts": 1},
            user_agent_appid="penstock",
        )
        try:
            self._client: Any = aws.session(options, config, "KINESIS_REFUSED").create_client(
                "kinesis", region_name=options.region, endpoint_url=options.endpoint, config=config
            )
        except (ValueError, self._errors.BotoCoreError) as error:
            raise ConnectorError(
                "KINESIS_OPTION_INVALID",
                f"no connection can be made with these options: {error}",
                hint='name the region: .option("region", "eu-central-1"), or AWS_REGION in the '
                "environment",
            ) from None

    def shards(self, stream: str) -> tuple[list[Shard], int]:
        """All shards of a stream that still have records, and the server's time."""
        shards: list[Shard] = []
        wanted: dict[str, Any] = {"StreamName": stream}
        while True:
            answer = self._call("list_shards", f"stream {stream!r}", **wanted)
            for entry in answer["Shards"]:
                parents = (entry.get("ParentShardId"), entry.get("AdjacentParentShardId"))
                shards.append(
                    Shard(
                        id=entry["ShardId"],
                        parents=tuple(parent for parent in parents if parent),
                        first=int(entry["SequenceNumberRange"]["StartingSequenceNumber"]),
                    )
                )
            if not answer.get("NextToken"):
                return shards, _server_time(answer)
            wanted = {"NextToken": answer["NextToken"]}

    def latest(self, stream: str, shard: str) -> str:
        """An iterator after the last record."""
        return self._iterator(stream, shard, "LATEST")

    def iterator(self, stream: str, shard: str, position: Position) -> str:
        """An iterator at the last record that was read, else at `since` or the oldest record.

        Raises:
            NotInShard: Kinesis no longer has the record.
        """
        if position.after is not None:
            number = position.after
            return self._iterator(
                stream, shard, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number
            )
        if position.since is None:
            return self._iterator(stream, shard, "TRIM_HORIZON")
        since = datetime.fromtimestamp(position.since / 1000, UTC)
        return self._iterator(stream, shard, "AT_TIMESTAMP", Timestamp=since)

    def _iterator(self, stream: str, shard: str, kind: str, **more: Any) -> str:
        answer = self._call(
            "get_shard_iterator",
            f"shard {shard} of stream {stream!r}",
            StreamName=stream,
            ShardId=shard,
            ShardIteratorType=kind,
            **more,
        )
        return str(answer["ShardIterator"])

    def page(self, iterator: str, limit: int) -> Page:
        """The next records of an iterator; raises `IteratorExpired` if a new one is needed."""
        answer = self._call("get_records", "records", ShardIterator=iterator, Limit=limit)
        return Page(
            records=tuple(
                Record(
                    key=entry["PartitionKey"],
                    data=entry["Data"],
                    number=entry["SequenceNumber"],
                    arrival=entry["ApproximateArrivalTimestamp"].astimezone(UTC),
                )
                for entry in answer["Records"]
            ),
            next=answer.get("NextShardIterator") or None,
            behind_millis=int(answer.get("MillisBehindLatest") or 0),
            now=_server_time(answer),
        )

    def _call(self, operation: str, what: str, **arguments: Any) -> Mapping[str, Any]:
        method: Callable[..., Mapping[str, Any]] = getattr(self._client, operation)
        longest = _FIRST_WAIT
        deadline = time.monotonic() + self._retry_seconds
        while True:
            try:
                return method(**arguments)
            except self._errors.ClientError as error:
                by_number = "StartingSequenceNumber" in arguments
                reason = self._translate(error, what, by_number=by_number)
            except (
                self._errors.NoCredentialsError,
                self._errors.PartialCredentialsError,
                self._errors.CredentialRetrievalError,
                self._errors.ParamValidationError,
            ) as error:
                raise _refused(what, str(error)) from None
            except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
                reason = f"no response ({type(error).__name__})"
            wait = longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret is made of it
            longest = min(2 * longest, _LONGEST_WAIT)
            if time.monotonic() + wait > deadline:
                raise ConnectorError(
                    "KINESIS_UNREACHABLE",
                    f"Kinesis did not return {what} within {self._retry_seconds:g} s: {reason}",
                    hint="other readers share the limits of a shard (5 reads, 2 MB per second): "
                    "read with longer triggers or lower `maxFetchRate`, or split shards",
                )
            self._pause.wait(wait)

    def _translate(self, error: Any, what: str, *, by_number: bool) -> str:
        """The reason of an error after which the request is retried; raises other errors."""
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = str(error.response.get("Error", {}).get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _THROTTLED.split():
            return f"throttled ({code})"
        if code in _BUSY or status >= 500:
            return f"the request failed ({code or status})"
        if code == _EXPIRED:
            raise IteratorExpired from None
        unknown_number = code == "InvalidArgumentException" or "SequenceNumber" in message
        if by_number and unknown_number:
            raise NotInShard from None
        raise _refused(what, f"{code}: {message}") from None


def _refused(what: str, reason: str) -> ConnectorError:
    hint = "the reader needs kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords"
    if "ResourceNotFound" in reason:
        hint = "check `streamName` and `region`"
    elif "redential" in reason:
        hint = "give `awsAccessKey` and `awsSecretKey`, or one of AWS's default credentials"
    return ConnectorError("KINESIS_REFUSED", f"Kinesis refused {what}: {reason}", hint=hint)


def _server_time(answer: Mapping[str, Any]) -> int:
    """The server's time (ms), precise to the second; the local time if it is unknown."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except (TypeError, ValueError):
        return int(time.time() * 1000)
