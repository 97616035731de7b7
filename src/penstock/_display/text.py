"""Formats figures and durations for people; all widths are bounded."""

import re
from typing import TYPE_CHECKING

from penstock._model.quantity import plural

if TYPE_CHECKING:
    from penstock._observe.events import ErrorInfo

_UNITS = ((1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"))

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """A string with control characters escaped, so that data cannot control the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def count(number: int | None) -> str:
    """`1,234`; from ten million on `12.3M`; `-` when not known. At most 9 characters."""
    if number is None:
        return "-"
    if abs(number) < 10_000_000:
        return f"{number:,}"
    size, unit = next(each for each in _UNITS if abs(number) >= each[0])
    return f"{number / size:,.1f}{unit}"


def rows_text(number: int | None) -> str:
    """`1 row`; `uncounted rows` when the number is not known."""
    return "uncounted rows" if number is None else plural(number, "row")


def rate(per_second: float | None) -> str:
    """Rows per second: `3.4`, `1,234`, or `-` when not known."""
    if per_second is None:
        return "-"
    return f"{per_second:.1f}" if 0 < per_second < 10 else count(round(per_second))


def seconds(duration: float | None) -> str:
    """`0.42s`, `3.2s`, `2m05s`, `1h02m`, `3d04h`, or `-` when not known."""
    if duration is None:
        return "-"
    if duration < 0.995:
        return f"{max(0.0, duration):.2f}s"
    if duration < 59.95:
        return f"{duration:.1f}s"
    whole = round(duration)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"


def size(number: int) -> str:
    """Bytes as `12.3 MB`, in powers of ten."""
    if number < 1_000_000:
        return f"{number / 1e3:.1f} kB"
    return f"{number / 1e6:.1f} MB"


def error_line(error: "ErrorInfo") -> str:
    first = printable(error.message.strip().partition("\n")[0])
    return f"[{error.condition}] {first}"
