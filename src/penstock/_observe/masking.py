"""Masks credentials in events before they leave the process.

Events may quote the code of a project or the output of a library, and logs may come from an older
version. Remembered secrets and anything that looks like a credential are masked here.
"""

import json
import re
from dataclasses import replace
from typing import Any

from penstock._model.redaction import redact
from penstock._observe.codec import body_of, details_of, encode
from penstock._observe.events import Event

_MASK = rb"[redacted]"
_KEY = (
    # `secret-in-code` is a lint rule; the value after its name is a message.
    rb"(?:password|passwd|passphrase|secret(?!-in-code)|token|api[._\-]?key|access[._\-]?key"
    rb"|account[._\-]?key|shared[._\-]?key|private[._\-]?key|credentials?|authorization"
    rb"|signature|jaas[._\-]?config)[\w.\-]*+"
)
# Most lines contain none of these words, and searching for words is faster than for patterns.
_HINTS = (
    *(b"passw", b"passphrase", b"secret", b"token", b"_key", b"-key", b".key", b"apikey"),
    *(b"accesskey", b"accountkey", b"sharedkey", b"credential", b"authorization", b"signature"),
    *(b"jaas", b"://", b"akia", b"asia", b"eyj", b"dapi", b"ghp_", b"gho_", b"ghu_", b"ghs_"),
    *(b"ghr_", b"xox", b"sig=", b"x-amz", b"bearer", b"basic", b"private"),
)
# Text within a JSON string: characters and whole escapes, so that a match neither splits an escape
# nor extends beyond the end of the string.
_UNIT = rb'(?:[^"\\]|\\.)'
# Quotes within a JSON string: after an even number of backslashes, a " would end the string.
_QUOTE = rb"(?:(?:\\\\)*\\\"|\\*')"
# JSON values other than strings: counts and offsets of columns and topics with names like `_KEY`.
_NO_TEXT = rb"[{\[]|(?:-?\d[\d.eE+\-]*|null|true|false|None|True|False)(?![\w.\-])"
# The value of a JSON member is masked only if it is a string, so the line stays valid JSON.
# Within a string: `key=value`, `key: value`, `"key": "value"`, at any depth of escaped quotes. A
# quoted value ends at the same quotes or with its string, an unquoted one at a space or similar.
# A name without a value also matches, but is not changed: otherwise a long sequence of such names
# would be scanned once per name.
_ASSIGNED = re.compile(
    rb"(?P<key>" + _KEY + rb")"
    rb'(?:(?P<member>"\s*:\s*)"' + _UNIT + rb'*"'
    rb"|(?P<sign>(?P<around>" + _QUOTE + rb")?\s*(?:=>|[:=])\s*)"
    rb"(?:(?P<quote>" + _QUOTE + rb")(?:(?!(?<!\\)(?P=quote))" + _UNIT + rb")*"
    rb"(?P<close>(?P=quote))?"
    # `ExpiredToken: The provided token has expired` is an error code with its message.
    rb"|(?(around)(?!" + _NO_TEXT + rb")|(?!\[redacted\]|The\s))"
    rb"(?:(?:Bearer|Basic)\s+)?[^\s\"'\\,;&)}\]>]+))?",
    re.IGNORECASE,
)
_START = rb"(?:\b|(?<=\\[nrt]))"
# Fields in which remembered secrets are not masked: a password may be a word that is also a state
# or the name of a table. Origins contain such names as well.
_NAMES = frozenset(
    {
        *("status", "state", "dataset_type", "flow_type", "maintenance_type", "action"),
        *("output_dataset", "output_sink", "input_datasets", "dataset", "alert", "topic"),
        *("schema_json", "transformation"),
    }
)
# In URLs of Azure's file systems, the part before the @ is a container unless it has a colon.
_USER_INFO = re.compile(
    rb"(?P<scheme>(?<![\w+.\-])(?!(?:abfss?|wasbs?)://[\w$.\-]+@)[A-Za-z][\w+.\-]*://)"
    rb"[^\s/\"'\\]+@(?=[^\s\"'\\])"
)
_SIGNED = re.compile(rb"(?P<key>[?&;](?:sig|X-Amz-\w+|code)=)[^&\s\"'\\]+", re.IGNORECASE)
_BEARER = re.compile(_START + rb"(?P<key>Bearer|Basic)\s+[A-Za-z0-9+/_.=\-]{8,}")
_SHAPES = re.compile(
    _START + rb"(?:A(?:KIA|SIA)[A-Z0-9]{16}|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*"
    rb"|dapi[0-9a-f]{32}[\-0-9]*|gh[pousr]_[A-Za-z0-9]{30,}|xox[abprs]-[\w\-]{10,})"
)
_PEM = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    + _UNIT
    + rb"*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\"))"
)


def _has_hint(lower: bytes) -> bool:
    for word in _HINTS:  # noqa: SIM110 - runs for each event, and `any` takes twice as long
        if word in lower:
            return True
    return False


def masked(line: bytes) -> bytes:
    """One line of JSON with credentials masked, which is still valid JSON."""
    if not _has_hint(line.lower()):
        return line
    line = _PEM.sub(_MASK, line)
    line = _ASSIGNED.sub(_masked_assignment, line)
    line = _USER_INFO.sub(rb"\g<scheme>" + _MASK + rb"@", line)
    line = _SIGNED.sub(rb"\g<key>" + _MASK, line)
    line = _BEARER.sub(rb"\g<key> " + _MASK, line)
    return _SHAPES.sub(_MASK, line)


def _masked_assignment(match: re.Match[bytes]) -> bytes:
    if match["member"] is not None:
        return match["key"] + match["member"] + b'"' + _MASK + b'"'
    if match["sign"] is None:
        return match[0]
    quote, close = match["quote"] or b"", match["close"] or b""
    return match["key"] + match["sign"] + quote + _MASK + close


def without_secrets(event: Event) -> Event:
    """The event with credentials masked; the same object if there are none."""
    error = event.error
    body = {
        "message": event.message,
        "details": details_of(event.body),
        "error": None if error is None else error.message,
    }
    line = encode(body)
    clean = masked(line)
    text = line.decode()
    if clean == line and redact(text) == text:
        return event
    redacted = _redacted(json.loads(clean))
    return replace(
        event,
        message=redacted["message"],
        body=body_of(event.event_type, redacted["details"]),
        error=None if error is None else replace(error, message=redacted["error"]),
    )


def _redacted(value: Any) -> Any:
    """A JSON value without remembered secrets; keys and identifying fields are kept."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: item if key in _NAMES else _redacted(item) for key, item in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list) else value


def masked_values(values: dict[str, Any]) -> dict[str, Any]:
    """Nested values with credentials masked, by key or form; unknown types become strings."""
    body: dict[str, Any] = json.loads(masked(encode(values)))
    return {key: _redacted(value) for key, value in body.items()}


def shown(text: str) -> str:
    """A string without remembered secrets and without anything that looks like a credential."""
    text = redact(text)
    if not _has_hint(text.lower().encode("utf-8", "surrogatepass")):
        return text
    line = json.dumps(text, ensure_ascii=False)
    result: str = json.loads(
        masked(line.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    )
    return result
