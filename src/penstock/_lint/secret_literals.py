"""Detects literals that are secrets by their form or name. Values are never shown."""

import re

BY_NAME = "a secret"

_FORMS = (
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")),
    ("a shared access key", re.compile(r"\bSharedAccessKey=[^;\"'{}$\s]{4,}")),
    ("an account key", re.compile(r"\bAccountKey=[^;\"'{}$\s]{4,}")),
    ("a SAS token", re.compile(r"[?&]sig=[A-Za-z0-9%/+=_\-]{16,}")),
    ("a Databricks token", re.compile(r"\bdapi[0-9a-f]{32}\b")),
    ("a GitHub token", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}\b")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("a Slack webhook", re.compile(r"hooks\.slack\.com/services/\w+/\w+/\w+")),
    ("a signed web token", re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}")),
    ("a password in a URL", re.compile(r"\b[a-z][a-z0-9+.:-]*://[^/\s:@{}$]+:[^/\s:@{}$]+@", re.I)),
    ("a password in a URL", re.compile(r"\bjdbc:\S*[?;&]password=[^;&{}$\s]+", re.I)),
    (
        "a password of a login module",
        re.compile(r"LoginModule\b.*\bpassword\s*=\s*\\?[\"'](?!\$)[^\"'{}$]+", re.I | re.S),
    ),
)
_SAMPLE = re.compile(r"<[^<>]*>|\byour[_-][\w-]+", re.I)
_NAMES = re.compile(
    r"(?:pass(?:word|wd|phrase)|pwd|secret|api[_.-]?key|access[_.-]?key|account[_.-]?key"
    r"|shared[_.-]?key|secret[_.-]?key|private[_.-]?key|client[_.-]?secret|sas[_.-]?token"
    r"|auth[_.-]?token|session[_.-]?token|access[_.-]?token|bearer[_.-]?token|api[_.-]?token|connection[_.-]?string)$",
    re.I,
)
_NAMED_IN_THE_MIDDLE = re.compile(r"(?:fs\.azure\.account\.key\.|fs\.s3a\.secret\.key)", re.I)
_PLACEHOLDER = re.compile(
    r"\s*(?:|<.*>|your[_-].*|\*+|x+|\.{3}|none|null|\$.*|.*\{.*\}.*"
    r"|string|varchar(?:\(\d+\))?|binary|(?:big)?int)\s*",  # in a schema
    re.I | re.S,
)


def secret_form(text: str) -> str | None:
    """The kind of secret that a string contains, by its form; `None` if it contains none."""
    text = _SAMPLE.sub("", text)
    for kind, pattern in _FORMS:
        if pattern.search(text):
            return kind
    return None


def secret_kind(name: str, value: str) -> str | None:
    """The kind of a secret by its form, or `BY_NAME` by its name; `None` if it is not a secret.

    Placeholders (a blank value, `<password>`, `YOUR_KEY`, `${secret:a/b}`) and types are not
    secrets.
    """
    if (kind := secret_form(value)) is not None:
        return kind
    is_named = _NAMES.search(name) or _NAMED_IN_THE_MIDDLE.search(name)
    return BY_NAME if is_named and not _PLACEHOLDER.fullmatch(value) else None
