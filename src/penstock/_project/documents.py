"""Parsed settings files as trees; each part has its file and line.

Parts of several files are merged; errors and relative paths still need the origin of each part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock._model.origin import SourceLocation, source_location
from penstock.errors import SpecError

KeyPath = tuple[str | int, ...]

_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})


@dataclass(frozen=True)
class Node:
    """A part of a document: a scalar, or the parts inside; `line` is that of its key."""

    value: "dict[str, Node] | list[Node] | str | bool | None"
    file: Path
    line: int

    @property
    def origin(self) -> SourceLocation:
        return source_location(str(self.file), self.line)

    def get(self, *keys: str) -> "Node | None":
        """Return the part at a path of keys, or `None` if there is none or it is null.

        For a list, a key is the index of an entry.
        """
        node = self
        for key in keys:
            inside = None
            if isinstance(node.value, dict):
                inside = node.value.get(key)
            elif isinstance(node.value, list) and key.isdecimal() and int(key) < len(node.value):
                inside = node.value[int(key)]
            if inside is None or inside.value is None:
                return None
            node = inside
        return node

    def items(self) -> "Iterator[tuple[str, Node]]":
        """The non-null entries of a mapping; nothing for other parts."""
        if isinstance(self.value, dict):
            yield from ((key, part) for key, part in self.value.items() if part.value is not None)

    def at(self, path: KeyPath) -> "Node":
        """Return the part at a path, or the nearest one around it."""
        node = self
        for key in path:
            match node.value, key:
                case dict(inside), str() if key in inside:
                    node = inside[key]
                case list(entries), int() if key < len(entries):
                    node = entries[key]
                case _:
                    break
        return node

    def plain(self) -> object:
        if isinstance(self.value, dict):
            return {key: part.plain() for key, part in self.value.items()}
        if isinstance(self.value, list):
            return [part.plain() for part in self.value]
        return self.value

    def over(self, base: "Node") -> "Node":
        """Merge this over another part: mappings by key, lists by concatenation."""
        if self.value is None:
            return base
        if isinstance(self.value, dict) and isinstance(base.value, dict):
            merged = dict(base.value)
            for key, part in self.value.items():
                merged[key] = part.over(merged[key]) if key in merged else part
            return Node(merged, self.file, self.line)
        if isinstance(self.value, list) and isinstance(base.value, list):
            return Node([*base.value, *self.value], self.file, self.line)
        return self

    def error(self, message: str, *, hint: str | None = None) -> SpecError:
        """An error about this part, for the caller to raise."""
        return SpecError(
            "SPEC_INVALID", f"{self.origin.file}: {message}", origin=self.origin, hint=hint
        )


def text_of(part: Node | None, key: str) -> str | None:
    """Return a string; `None` if it is missing or blank."""
    if part is None or part.value is None:
        return None
    if isinstance(part.value, bool):
        return "true" if part.value else "false"
    if not isinstance(part.value, str):
        raise part.error(f"`{key}` must be a string")
    return part.value.strip() or None


def truth_of(part: Node | None, key: str) -> bool | None:
    """Return a boolean, which may be written as a string; `None` if it is missing."""
    if part is None or part.value is None:
        return None
    value = as_truth(part.value)
    if isinstance(value, bool):
        return value
    raise part.error(f"`{key}` must be true or false")


def as_truth(value: object) -> object:
    """Return the boolean that a string such as `yes` means; any other value unchanged."""
    word = value.strip().lower() if isinstance(value, str) else ""
    return word in _TRUE if word in _TRUE | _FALSE else value


def texts_of(part: Node | None, key: str) -> dict[str, str]:
    """Return a mapping of strings; booleans become strings, null values are left out."""
    if part is None or part.value is None:
        return {}
    if not isinstance(part.value, dict):
        raise part.error(f"`{key}` must be a mapping of keys to values")
    texts = {}
    for name, value in part.items():
        if isinstance(value.value, bool):
            texts[name] = "true" if value.value else "false"
        elif isinstance(value.value, str):
            texts[name] = value.value
        else:
            raise value.error(f"`{key}.{name}` must be a string")
    return texts


def list_of(part: Node | None, key: str) -> list[Node]:
    """Return the non-null parts of a list; nothing if it is missing."""
    if part is None or part.value is None:
        return []
    if not isinstance(part.value, list):
        raise part.error(f"`{key}` must be a list")
    return [entry for entry in part.value if entry.value is not None]
