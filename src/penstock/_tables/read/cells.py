"""Values of rows as text for the cells of a table, of limited size, with secrets masked."""

import json
import math
from collections.abc import Mapping
from typing import Any

from penstock._observe.masking import masked_values

MAX_CELL = 400
"""Maximum length of a cell in characters."""
MAX_READ = 64_000
"""Maximum length of the part of a value that is read, in characters."""
_MAX_DEPTH = 12
_MAX_ITEMS = 500
# Greater integers are not exact in JavaScript.
_EXACT = 1 << 53


def cells_of(values: Mapping[str, Any]) -> list[str | None]:
    """The cells of a row: strings or null."""
    plain = {name: _plain(value, 0) for name, value in values.items()}
    return [_cell(value) for value in masked_values(plain).values()]


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row for JSON: numbers stay numbers, nested values become JSON text."""
    plain = masked_values({name: _plain(value, 0) for name, value in values.items()})
    return {n: v if isinstance(v, bool | int | float) else _cell(v) for n, v in plain.items()}


def _plain(value: Any, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return value if -_EXACT <= value <= _EXACT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value[:MAX_READ]
        case bytes():
            return _bytes_text(value[:MAX_READ])
        case _ if depth >= _MAX_DEPTH:
            return "…"
        case dict():
            return {
                str(key): _plain(item, depth + 1)
                for _, (key, item) in zip(range(_MAX_ITEMS), value.items(), strict=False)
            }
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _bytes_text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() or text.isspace() else "0x" + value.hex()


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", ""))
