"""Values that are not set: an error, or an assumed value when a project is only checked."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_VALUES = (
    (r"path|dir|folder|location|volume|root|landing", "/penstock/assumed"),
    (r"server|host|broker|endpoint|url", "localhost:9092"),
    (r"date|since|until", "2026-01-01"),
    (r"enable|flag|^is_|debug|^use_|full_?refresh", "false"),
    (
        r"num|count|size|days?$|hours?$|minutes?$|seconds?$|max|min|limit|threshold|port"
        r"|retries|interval|batch|partitions",
        "1",
    ),
)

_assume: ContextVar[Callable[[str], str] | None] = ContextVar("penstock_assume", default=None)


@contextmanager
def missing_values_assumed(assume: Callable[[str], str]) -> Iterator[None]:
    """Assume values for settings, parameters and variables that are not set."""
    token = _assume.set(assume)
    try:
        yield
    finally:
        _assume.reset(token)


def assumed_value(key: str) -> str | None:
    """The value to assume for a key that is not set; `None` if that is an error."""
    assume = _assume.get()
    return None if assume is None else assume(key)


def plausible_value(key: str) -> str:
    """A name, a number or a path that fits the key."""
    word = re.split(r"[.:/]", key)[-1].lower()
    fitting = [value for sound, value in _VALUES if re.search(sound, word)]
    return fitting[0] if fitting else re.sub(r"\W", "_", word) or "value"
