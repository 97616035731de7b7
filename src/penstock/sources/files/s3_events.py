"""The files that an event of a bucket announces: from S3, through SNS, or from EventBridge."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus


@dataclass(frozen=True)
class CreatedFile:
    """An object that was written; its time in milliseconds since 1970."""

    bucket: str
    key: str
    size: int
    modified: int


def created_files(text: str) -> list[CreatedFile]:
    """The files of a message; empty for test events and for events of other kinds.

    Raises:
        ValueError: The message is not an event of a bucket.
    """
    try:
        message = json.loads(text)
        if message.get("Type") == "Notification":
            message = json.loads(message["Message"])
        if message.get("Event") == "s3:TestEvent":
            return []
        if message.get("source") == "aws.s3":
            if message["detail-type"] != "Object Created":
                return []
            detail = message["detail"]
            # EventBridge does not encode keys.
            return [_created(detail, message["time"], str(detail["object"]["key"]))]
        return [
            _created(record["s3"], record["eventTime"], unquote_plus(record["s3"]["object"]["key"]))
            for record in message["Records"]
            if record["eventName"].removeprefix("s3:").startswith("ObjectCreated:")
        ]
    except (AttributeError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _created(body: Any, at: str, key: str) -> CreatedFile:
    key.encode()  # JSON may have lone surrogates, which no path can have
    modified = round(datetime.fromisoformat(at).timestamp() * 1000)
    return CreatedFile(str(body["bucket"]["name"]), key, int(body["object"]["size"]), modified)
