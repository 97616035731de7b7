"""Values that must never be shown, and how to take them out of a text.

Whoever resolves a secret reference remembers the value here; whoever shows, logs or stores a text
redacts it. The values live in this process only and are never part of a repr.
"""

import json
import re
import threading
from urllib.parse import quote

REDACTED = "[redacted]"
_SHORTEST_ANYWHERE = 4

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
