"""Notifications about rows, as plain text and for Slack."""

import json
import smtplib
import urllib.error
from email.message import Message as Headers
from typing import Any

import pytest

from penstock._observe.transport import is_permanent
from penstock.sinks.notification.message import Message


def message(rows: list[dict[str, Any]], count: int, **more: Any) -> Message:
    body = {"pipeline": "shop", "sink": "alerts", "flow": "f", "batch_id": 3}
    body |= {"idempotency_key": "k1", "rows": rows, "row_count": count}
    return Message({**body, "earlier_rows": 0, "earlier_since": None, **more})


def test_message_has_rows_and_the_number_of_omitted_rows():
    text = message([{"id": 1, "name": None}], 1).text()
    assert text == '{"id": 1, "name": null}\nflow f, batch 3, message k1\n'
    summed = message([{"id": 1}], 3, earlier_rows=142, earlier_since="2026-11-26T10:15:00.000Z")
    assert summed.subject == "[shop] alerts: 145 rows"
    assert summed.text().splitlines()[1:3] == [
        "2 more rows in this batch",
        "142 more rows since 2026-11-26T10:15:00.000Z",
    ]
    assert message([], 0, earlier_rows=1, earlier_since="x").text().startswith("1 more row since x")


def test_slack_message_is_escaped_and_limited_in_length():
    rows = [{"text": f"{number} <!channel> ```*b* & @here \n"} for number in range(1000)]
    form = message(rows, 1000, sink="a<b").slack()
    (block,) = form["blocks"]
    shown = block["text"]["text"]
    assert len(shown) <= 3000
    assert shown.count("```") == 2
    assert shown.endswith("```")
    assert "<" not in shown + form["text"]
    lines = shown.splitlines()
    assert json.loads(lines[2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    listed = sum(line.startswith("{") for line in lines)
    assert 0 < listed < 1000
    assert f"{1000 - listed} more rows in this batch" in lines
    assert (
        "1 more row in this batch"
        in message([{"x": "<" * 3000}], 1).slack()["blocks"][0]["text"]["text"]
    )


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (urllib.error.HTTPError("u", 404, "gone", Headers(), None), True),
        (urllib.error.HTTPError("u", 302, "moved", Headers(), None), True),
        (urllib.error.HTTPError("u", 429, "slower", Headers(), None), False),
        (urllib.error.HTTPError("u", 503, "later", Headers(), None), False),
        (urllib.error.URLError("no route"), False),
        (smtplib.SMTPAuthenticationError(535, b"no"), True),
        (smtplib.SMTPSenderRefused(451, b"later", "a"), False),
        (smtplib.SMTPRecipientsRefused({"a": (550, b"no"), "b": (450, b"later")}), False),
        (smtplib.SMTPRecipientsRefused({"a": (550, b"no")}), True),
        (TimeoutError(), False),
    ],
)
def test_only_temporary_errors_of_the_receiver_are_retried(error: Exception, permanent: bool):
    assert is_permanent(error) == permanent
