"""Masking of credentials in lines of JSON, without changes to other values."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_events import planning_information, stream_progress
from planted_secrets import PLANTED

from penstock._observe.events import EventOrigin
from penstock._observe.masking import masked, without_secrets

# Strings that match a part of a pattern, or almost match it.
_PIECES = st.sampled_from(
    [
        *("token", "password", "my.secret", "sasl.jaas.config", "signature", "_key", "count"),
        *(
            "=",
            ":",
            "=>",
            " ",
            '"',
            "'",
            "\\",
            "\\\\",
            "\n",
            ",",
            "{",
            "}",
            "[",
            "]",
            "null",
            "5",
            "-1.5e3",
        ),
        *(
            "Bearer ",
            "://",
            "@",
            "?sig=",
            "-----BEGIN PRIVATE KEY-----",
            "eyJ",
            "\u00e9",
            "[redacted]",
        ),
    ]
)
_STRINGS = st.lists(_PIECES, max_size=8).map("".join)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _STRINGS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_STRINGS, inner, max_size=3)
        | inner.map(lambda value: json.dumps({"token": value}))
    ),
    max_leaves=8,
)


@given(_JSON)
@settings(max_examples=1000, deadline=None)
def test_any_line_stays_json_and_only_strings_change(value):
    for line in (
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
        json.dumps(value).encode(),
    ):
        assert _same_except_strings(value, json.loads(masked(line)))


def _same_except_strings(before: Any, after: Any) -> bool:
    if isinstance(before, dict):
        return len(before) >= len(after) and isinstance(after, dict)
    if isinstance(before, list):
        return len(before) == len(after) and all(map(_same_except_strings, before, after))
    return isinstance(after, str) if isinstance(before, str) else bool(before == after)


@pytest.mark.parametrize(
    "body",
    [
        {"token": 5, "password": None, "secret": True, "signature": 1.5, "last": 1},
        {"columns": {"token": [[0, "token", "IDENTITY"]], "n": []}},
        {"token_topic": {"0": 12, "1": None}},
        {"offsets": json.dumps({"token": {"0": 12}, "secret-topic": {"0": -1}})},
        {"offsets": json.dumps({"in": json.dumps({"token": {"0": 12}, "secret": None})})},
        {"schema": {"fields": [{"name": "token", "type": "string", "nullable": True}]}},
    ],
)
def test_columns_and_topics_named_like_a_secret_are_not_masked(body):
    for separators in ((",", ":"), (", ", ": ")):
        line = json.dumps(body, separators=separators).encode()
        assert masked(line) == line


@pytest.mark.parametrize(
    "text", ["token=", 'it ends "token":', "token='", "token=\\", 'token="', "{token:", "token\\"]
)
def test_pattern_at_the_end_of_a_string_does_not_mask_the_next(text):
    body = {"message": text, "next": "kept", text: [text, "kept"]}
    line = masked(json.dumps(body, separators=(",", ":")).encode())
    values = [*json.loads(line).values()]
    assert values[1:] == ["kept", [values[0], "kept"]]
    assert values[0] in (text, text + "[redacted]")


def test_masking_is_idempotent():
    line = json.dumps({"token": "a", "text": "password=b; user=c", "deep": '{"secret": "d"}'})
    masked_line = masked(line.encode())
    assert json.loads(masked_line) == {
        "token": "[redacted]",
        "text": "password=[redacted]; user=c",
        "deep": '{"secret": "[redacted]"}',
    }
    assert masked(masked_line) == masked_line


def test_event_of_a_topic_named_token_is_unchanged():
    origin = EventOrigin(pipeline_name="shop", update_id="8c1f0190-5520-43ff-9066-b4b80ace2cb1")
    event = stream_progress(origin, {"sources": [{"endOffset": {"token": {"0": 12}}}]})
    assert without_secrets(event) is event


@pytest.mark.parametrize(
    "text",
    [
        "token" * 20_000,
        ("password." + "a-" * 200) * 250,
        "secret" + " " * 100_000,
        "token" + "\\" * 100_000,
        "api_key: '" * 10_000,
        "a://b" * 20_000,
        "-----BEGIN PRIVATE KEY-----" * 4_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_line_is_masked_within_two_seconds(text):
    line = json.dumps({"message": text, "last": "token: x1"}).encode()
    began = time.perf_counter()
    body = json.loads(masked(line))
    assert time.perf_counter() - began < 2.0
    assert body["last"] == "token: [redacted]"


@pytest.mark.parametrize("name", ["signature", "s.token", "c.s.access_key"])
def test_event_of_a_table_named_like_a_secret_is_unchanged(name):
    event = planning_information(EventOrigin(dataset_name=name), "NO_OP", "no source changed")
    assert without_secrets(event) is event
    assert event.message == f"NO_OP of {name} (no source changed)"


@pytest.mark.parametrize("text", PLANTED)
def test_a_line_stays_json_when_something_is_masked(text):
    line = json.dumps({"message": text, "deep": json.dumps({"again": text}), "last": 1}).encode()
    body = json.loads(masked(line))
    assert body["last"] == 1
    secret = PLANTED[text]
    if secret is not None:
        assert secret not in json.dumps(body)


@pytest.mark.parametrize(
    "text",
    [
        "order_id IS NOT NULL AND _corrupt_record IS NULL",
        "DeltaSource[file:/srv/demo/tables/orders]",
        "file:///srv/demo",
        "a row violated expect_or_fail positive_amount in batch 0",
        "customer_key > 3",
        "tokens were counted",
        "ExpiredToken: The provided token has expired.",
        "kafka orders",
        "abfss://orders@shop.dfs.core.windows.net/in",
    ],
)
def test_string_without_a_secret_is_unchanged(text):
    line = json.dumps({"message": text}).encode()
    assert masked(line) == line
