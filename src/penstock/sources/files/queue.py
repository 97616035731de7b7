"""The Amazon SQS queue that receives the events of a bucket."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from penstock._formats.options import QueueOptions
from penstock.errors import ConnectorError
from penstock.sources import aws

_AT_ONCE = 10
_ATTEMPTS = 4
_TEMPORARY = ("RequestThrottled", "ThrottlingException", "Throttling", "KmsThrottled")


class QueueUnreachable(OSError):
    """The queue did not respond after several attempts."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message; it is received again if it is not deleted."""

    body: str
    receipt: str
    sent_ms: int


class FileQueue:
    """Receives and deletes messages by concurrent requests; raises `FILE_QUEUE_REFUSED`."""

    def __init__(self, options: QueueOptions) -> None:
        aws.require_botocore("Auto Loader with notifications")
        import botocore.exceptions
        from botocore.config import Config

        self._errors = botocore.exceptions
        self._url = options.url
        self._receivers = options.receivers
        config = Config(
            connect_timeout=10,
            read_timeout=30,
            max_pool_connections=options.receivers,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            user_agent_appid="penstock",
        )
        parts = urlsplit(options.url)
        try:
            self._client: Any = aws.session(options, config, "FILE_QUEUE_REFUSED").create_client(
                "sqs",
                region_name=options.region,
                endpoint_url=f"{parts.scheme}://{parts.netloc}",
                config=config,
            )
        except (ValueError, self._errors.BotoCoreError) as error:
            raise self._refused(f"{error}") from None

    def receive(self, wait_seconds: int) -> list[Message]:
        """Some messages; empty if none arrived within `wait_seconds`."""
        wanted = {
            "QueueUrl": self._url,
            "MaxNumberOfMessages": _AT_ONCE,
            "WaitTimeSeconds": wait_seconds,
            "AttributeNames": ["SentTimestamp"],
        }
        answers = self._call("receive_message", [wanted] * self._receivers)
        return [
            Message(
                body=entry["Body"],
                receipt=entry["ReceiptHandle"],
                sent_ms=int(entry.get("Attributes", {}).get("SentTimestamp", 0)),
            )
            for answer in answers
            for entry in answer.get("Messages", ())
        ]

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages; one that cannot be deleted is received again."""
        wanted = [
            {
                "QueueUrl": self._url,
                "Entries": [
                    {"Id": str(number), "ReceiptHandle": message.receipt}
                    for number, message in enumerate(messages[start : start + _AT_ONCE])
                ],
            }
            for start in range(0, len(messages), _AT_ONCE)
        ]
        list(self._call("delete_message_batch", wanted))

    def _call(self, operation: str, requests: Sequence[dict[str, Any]]) -> Iterator[Any]:
        method = getattr(self._client, operation)
        try:
            with ThreadPoolExecutor(self._receivers, thread_name_prefix="file-queue") as pool:
                yield from pool.map(lambda request: method(**request), requests)
        except self._errors.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if status >= 500 or code in _TEMPORARY:
                raise QueueUnreachable(f"{code or status} from {self._url}") from None
            raise self._refused(f"{code}: {error.response['Error'].get('Message', '')}") from None
        except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
            kind = type(error).__name__
            raise QueueUnreachable(f"no response from {self._url} ({kind})") from None
        except self._errors.BotoCoreError as error:
            raise self._refused(f"{error}") from None

    def _refused(self, reason: str) -> ConnectorError:
        hint = "the flow needs sqs:ReceiveMessage and sqs:DeleteMessage for the queue"
        if "NonExistent" in reason or "NotExist" in reason:
            hint = "check `cloudFiles.queueUrl`; docs/autoloader.md has the commands of the setup"
        elif "redential" in reason:
            hint = "set `cloudFiles.awsAccessKey` and `cloudFiles.awsSecretKey`, or one of AWS's "
            hint += "default credentials"
        elif "region" in reason:
            hint = "set `cloudFiles.region`"
        return ConnectorError(
            "FILE_QUEUE_REFUSED", f"SQS refused the queue {self._url}: {reason}", hint=hint
        )
