import json
from typing import Any

import pytest

from penstock._formats.options import file_options
from penstock.errors import ConnectorError
from penstock.sources.files.discovery import Discovery, choose_discovery
from penstock.sources.files.listing import FileRoots
from penstock.sources.files.s3_events import CreatedFile, created_files

AT = "2026-11-26T10:00:00.500Z"
AT_MS = 1_795_687_200_500


def record(key: str, event: str = "ObjectCreated:Put") -> dict[str, Any]:
    # The documented format, with only the fields that are read.
    body = {"bucket": {"name": "b"}, "object": {"key": key, "size": 7, "sequencer": "00F"}}
    return {"eventSource": "aws:s3", "eventName": event, "eventTime": AT, "s3": body}


def bridge(key: str, kind: str = "Object Created") -> dict[str, Any]:
    detail = {"bucket": {"name": "b"}, "object": {"key": key, "size": 7}, "reason": "PutObject"}
    return {"source": "aws.s3", "detail-type": kind, "time": AT, "detail": detail}


def keys(message: Any) -> list[str]:
    return [file.key for file in created_files(json.dumps(message))]


def test_created_files_are_read_from_every_form_of_message():
    event = {"Records": [record("in/a+b%2B%C3%BC.json"), record("in/2", "ObjectRemoved:Delete")]}
    assert keys(event) == ["in/a b+ü.json"]
    assert keys({"Type": "Notification", "Message": json.dumps(event)}) == ["in/a b+ü.json"]
    assert created_files(json.dumps({"Records": [record("x", "s3:ObjectCreated:Copy")]})) == [
        CreatedFile("b", "x", 7, AT_MS)
    ]
    # EventBridge does not encode keys.
    assert keys(bridge("in/a+b%41")) == ["in/a+b%41"]
    assert keys(bridge("in/a", "Object Deleted")) == []
    assert keys({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"Records": 1}',
        '{"Records": [{}]}',
        "[" * 100_000,
        json.dumps({"Records": [record("\ud800")]}),
        json.dumps({"Records": [record("a")]}).replace(": 7", ": Infinity"),
        '{"Type": "Notification", "Message": "hello"}',
        '{"source": "aws.s3", "detail-type": "Object Created", "detail": {}}',
        json.dumps({"Records": [{**record("a"), "eventTime": "yesterday"}]}),
    ],
)
def test_other_messages_are_malformed(text):
    with pytest.raises(ValueError):
        created_files(text)


def test_path_relative_to_a_root():
    options = file_options({"format": "json"}, has_schema=True, streaming=True)
    roots = FileRoots(None, ["/landing/orders", "/one/x.json", "/days/2026*"], options)
    inside = {"/landing/orders/a": "/a", "/one/x.json": "", "/days/2026-01/a": "-01/a"}
    for path, below in inside.items():
        assert (roots.below(path), roots.below(f"file://{path}")) == (below, below), path
    roots = FileRoots(None, ["/landing/orders", "/one/x.json", "/data/*"], options)
    assert roots.below("/data/k=1/a") == "/k=1/a"


def test_root_includes_the_files_of_its_listing():
    options = file_options({"format": "json"}, has_schema=True, streaming=True)
    roots = FileRoots(None, ["s3a://b/in/", "file:/data/x.json"], options)
    for path in ("s3a://b/in/a", "s3a://b/in/k=1/_d=2/a b+%41", "file:///data/x.json"):
        assert roots.includes(path), path
    for path in ("s3a://b/inner/a", "s3a://c/in/a", "s3a://b/in/_tmp/a", "s3a://b/in/.a", "/data"):
        assert not roots.includes(path), path


def test_a_queue_is_required_unless_the_files_are_listed_anyway():
    def chosen(path: str, **more: str) -> Discovery:
        options = {"format": "json", "useNotifications": "true", **more}
        checked = file_options(options, has_schema=True, streaming=True)
        return choose_discovery(None, checked, FileRoots(None, [path], checked))

    with pytest.raises(ConnectorError, match="queueUrl is not set"):
        chosen("s3a://b/in")
    queue = {"queueUrl": "https://sqs.eu-central-1.amazonaws.com/1/q"}
    assert chosen("s3a://b/in", **queue) is Discovery.QUEUE
    assert chosen("s3a://b/in", modifiedBefore="2026-01-01", **queue) is Discovery.SPARK
    assert chosen("s3a://b/in", modifiedBefore="2026-01-01") is Discovery.SPARK
    assert chosen("/in") is Discovery.NAMES
