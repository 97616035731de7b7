"""Durations in readable form: `"5 seconds"`, `"1 minute"`."""

import re

_DURATION = re.compile(r"(?i)\s*(?:interval\s+)?'?\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*'?\s*")
_UNIT_SECONDS = {
    "millisecond": 0.001,
    "milli": 0.001,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 7 * 86400.0,
}


def parse_seconds(text: str) -> float | None:
    """Return a duration (a number and a unit) in seconds; `None` if it is not a duration."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    unit = match.group(2).lower()
    seconds = _UNIT_SECONDS.get(unit, _UNIT_SECONDS.get(unit.removesuffix("s")))
    return None if seconds is None else float(match.group(1)) * seconds
