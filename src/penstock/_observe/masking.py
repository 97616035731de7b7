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
    # `secret-in-code` is a rule of lint, and its message follows.
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
# Text within a JSON string: characters and whole escapes, so that a match neither cuts an escape
# in two nor runs over the end of its string.
_UNIT = rb'(?:[^"\\]|\\.)'
# Quotes within a JSON string. An even number of backslashes before " would be text, and the " the
# end of the string.
_QUOTE = rb"(?:(?:\\\\)*\\\"|\\*')"
# JSON values other than strings: counts and offsets of columns and topics with such names.
_NO_TEXT = rb"[{\[]|(?:-?\d[\d.eE+\-]*|null|true|false|None|True|False)(?![\w.\-])"
# Only strings of a JSON member are masked, so the line stays JSON.
# Within a string: `key=value`, `key: value`, `"key": "value"`, at any depth of escaped quotes. A
# value in quotes ends at the same quotes, or with its string; a bare one at a space or the like.
# A name that nothing is assigned to is a match as well, and left as it is: a long text of such
# names would be gone through once for each of them otherwise.
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
# A password may be a word that is also a state or the name of a table. Origins have those, too.
_NAMES = frozenset(
    {
        *("status", "state", "dataset_type", "flow_type", "maintenance_type", "action"),
        *("output_dataset", "output_sink", "input_datasets", "dataset", "alert", "topic"),
        *("schema_json", "transformation"),
    }
)
# What stands before the @ of Azure's file systems is a container, unless it has a colon.
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
    for word in _HINTS:  # noqa: SIM110 - each event passes here, and `any` takes twice as long
        if word in lower:
            return True
    return False


def masked(line: bytes) -> bytes:
    """One line of JSON without credentials; still one line of JSON."""
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
    """Strings without remembered secrets; keys and identifying fields stay."""
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
