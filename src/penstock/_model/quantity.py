"""Sizes and counts in readable form: `"10mb"`, `"1.5 g"`; a kilobyte has 1024 bytes."""

import re
from decimal import Decimal

_SIZE = re.compile(r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*")
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(text: str) -> int:
    """Return a size (a number and a unit) in bytes; raises `ValueError` if it is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(Decimal(match[1]) * _UNIT_BYTES[match[2].lower()])


def plural(number: int, noun: str) -> str:
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"
