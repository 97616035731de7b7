"""Values that must never be shown, and how to take them out of a text.

Whoever resolves a secret reference remembers the value here; whoever shows, logs or stores a text
redacts it. The values live in this process only and are never part of a repr.
"""

import json
import re
import threading
from collections.abc import Mapping
from urllib.parse import quote

REDACTED = "[redacted]"
_SHORTEST_ANYWHERE = 4
_SHORTEST_NAMED = 6
_SECRET_NAME = re.compile(
    r"(?:passw(?:or)?d|passphrase|secret|token|credentials?|authorization|signature"
    r"|jaas[._-]?config|connection[._-]?string|(?:secret|api|access|account|shared|private)"
    r"[._-]?(?:access[._-]?)?key)$|account\.key\.|^PENSTOCK_SECRET_",
    re.IGNORECASE,
)
_INNER = (
    re.compile(r"(?i)password\s*=\s*[\"']?([^\"';&\s]+)"),
    re.compile(r"://[^/\s:@]*:([^@/\s]+)@"),
)
_WORD = re.compile(r"[a-z_.]+|[A-Z_]+|true|false|\d{1,5}|/[\w./-]*")

_lock = threading.Lock()
_spellings: set[str] = set()


def remember_secret(value: str) -> None:
    """Let `redact` take out this value from now on, in this process; a blank one is no secret."""
    if not value.strip():
        return
    spellings = {value, value.strip(), json.dumps(value)[1:-1], quote(value, safe="")}
    # Keys and certificates have many lines, and each may be shown alone.
    spellings.update(line for line in value.splitlines() if len(line) >= 2 * _SHORTEST_ANYWHERE)
    with _lock:
        _spellings.update(spellings)


def remember_named(values: Mapping[str, str]) -> None:
    """Remember the values whose names say that they are secrets: options, settings, environment.

    Also passwords within other values: in JAAS strings and in the user part of URLs. A value that
    could be an ordinary word is not remembered: it would be taken out of every text.
    """
    for name, value in values.items():
        found = [match for pattern in _INNER for match in pattern.findall(value)]
        if _SECRET_NAME.search(name):
            found.append(value)
        for one in found:
            if len(one) >= _SHORTEST_NAMED and not _WORD.fullmatch(one):
                remember_secret(one)


def redact(text: str) -> str:
    """Return the text without any remembered value.

    A value of fewer than four characters is taken out only where it stands alone: anywhere else it
    would mangle the text without hiding anything.
    """
    with _lock:
        known = sorted(_spellings, key=len, reverse=True)
    for spelling in known:
        if len(spelling) >= _SHORTEST_ANYWHERE:
            text = text.replace(spelling, REDACTED)
        elif spelling in text:
            text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", REDACTED, text)
    return text


def forget_secrets() -> None:
    """Forget all values."""
    with _lock:
        _spellings.clear()
