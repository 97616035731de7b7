"""SQL text that maps offsets to lines of the user's file."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from penstock._model.origin import SourceLocation

_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Edit:
    """A part of a string and its replacement."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SqlSource:
    """Text of a file, or a part of it, possibly with substituted values."""

    text: str
    file: str
    first_line: int
    breaks: tuple[int, ...]

    @classmethod
    def of(cls, text: str, *, file: str, first_line: int = 1) -> "SqlSource":
        breaks = tuple(match.end() - 1 for match in _BREAK.finditer(text))
        return cls(text, file, first_line, breaks)

    def line(self, offset: int) -> int:
        return self.first_line + bisect_left(self.breaks, offset)

    def column(self, offset: int) -> int:
        """Return the number of characters before an offset on its line."""
        before = bisect_left(self.breaks, offset)
        return offset - (self.breaks[before - 1] + 1 if before else 0)

    def origin(self, offset: int) -> SourceLocation:
        return SourceLocation(self.file, self.line(offset))

    def section(self, start: int, end: int) -> "SqlSource":
        first, last = bisect_left(self.breaks, start), bisect_left(self.breaks, end)
        breaks = tuple(position - start for position in self.breaks[first:last])
        return SqlSource(self.text[start:end], self.file, self.line(start), breaks)

    def replaced(self, edits: Sequence[Edit]) -> "SqlSource":
        """Return the text with edits applied; they are sorted by offset and do not overlap."""
        if not edits:
            return self
        pieces: list[str] = []
        breaks: list[int] = []
        position = shift = 0
        for edit in [*edits, Edit(len(self.text), len(self.text), "")]:
            kept = self.breaks[
                bisect_left(self.breaks, position) : bisect_left(self.breaks, edit.start)
            ]
            breaks += [offset + shift for offset in kept]
            pieces += [self.text[position : edit.start], edit.text]
            position = edit.end
            shift += len(edit.text) - (edit.end - edit.start)
            lost = bisect_left(self.breaks, edit.end) - bisect_left(self.breaks, edit.start)
            breaks += [max(edit.end + shift - 1, 0)] * lost
        return SqlSource("".join(pieces), self.file, self.first_line, tuple(breaks))
