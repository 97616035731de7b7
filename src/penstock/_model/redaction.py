"""Secret values that must never be shown, and their removal from strings.

Code that resolves a secret reference registers the value here; code that shows, logs or stores a
string redacts it. The values are kept in this process only and are never part of a repr.
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
    r"[._-]?(?:access[._-]?)?key|external[._-]?id|\bpwd)$"
    r"|fs\.azure\.(?:.*\.)?(?:account\.key|client\.secret|sas|token)\.(?!.*provider)"
    r"|^PENSTOCK_SECRET_",
    re.IGNORECASE,
)
_INNER = (
    re.compile(r"(?i)(?:password|(?:account|shared\s*access|secret)key)\s*=\s*[\"']?([^\"';&\s]+)"),
    re.compile(r"(?:^|[?&;])sig=([^&;\s]+)"),
    # A password may contain an @, or the text another @ after the URL.
    re.compile(r"://[^/\s:@]*:([^@/\s]+)@"),
    re.compile(r"://[^/\s:@]*:([^/\s\"']+)@"),
)
# These name a file that holds the secret, and the working directory of the shell.
_PATH_NAMES = frozenset({"GOOGLE_APPLICATION_CREDENTIALS", "PWD"})

_lock = threading.Lock()
_spellings: tuple[str, ...] = ()  # longest first


def remember_secret(value: str) -> None:
    """Register a value that `redact` removes in this process; blank values are ignored."""
    if not value.strip():
        return
    global _spellings
    escaped = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    spellings = {value, value.strip(), quote(value, safe=""), *escaped}
    # Keys and certificates have many lines, each of which may be shown alone.
    spellings.update(line for line in value.splitlines() if len(line) >= 2 * _SHORTEST_ANYWHERE)
    with _lock:
        if not spellings.issubset(_spellings):
            _spellings = tuple(sorted(spellings.union(_spellings), key=len, reverse=True))


def remember_named(values: Mapping[str, str]) -> None:
    """Register the values of options, settings or variables with names of secrets.

    Passwords within other values (JAAS strings, URLs and connection strings) are registered, too.
    Values of fewer than six characters are not: `redact` would replace them in unrelated text.
    """
    for name, value in values.items():
        secrets = [match for pattern in _INNER for match in pattern.findall(value)]
        if _SECRET_NAME.search(name) and name not in _PATH_NAMES:
            secrets.append(value)
        for secret in secrets:
            if len(secret) >= _SHORTEST_NAMED:
                remember_secret(secret)


def redact(text: str) -> str:
    """Return the text without any registered value.

    A value of fewer than four characters is only removed where it is a separate word; elsewhere it
    would mangle the text without hiding anything.
    """
    for spelling in _spellings:
        if len(spelling) >= _SHORTEST_ANYWHERE:
            text = text.replace(spelling, REDACTED)
        elif spelling in text:
            text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", REDACTED, text)
    return text


def forget_secrets() -> None:
    global _spellings
    with _lock:
        _spellings = ()
