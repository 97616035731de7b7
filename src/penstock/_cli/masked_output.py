"""Standard output and error with secrets masked."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_LONGEST_LINE = 1 << 16


class MaskedStream:
    """A text stream that masks complete lines; an incomplete line is written by a flush."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._lock:
            self._line += text
            end = self._line.rfind("\n") + 1
            if len(self._line) - end > _LONGEST_LINE:
                end = len(self._line)
            whole, self._line = self._line[:end], self._line[end:]
            self._put(whole)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def write_as_is(self, text: str) -> None:
        """Write text that is already masked, or must not be masked: the dashboard's address."""
        with self._lock:
            self._put(self._line)
            self._line = ""
            self._stream.write(text)

    def flush(self) -> None:
        with self._lock:
            line, self._line = self._line, ""
            self._put(line)
            self._stream.flush()

    def _put(self, text: str) -> None:
        if text:
            from penstock._observe.masking import shown

            self._stream.write(shown(text))


@contextmanager
def masked_output() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    streams = [stream or _discarded() for stream in before]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the encoding may lack characters
    masked = MaskedStream(streams[0]), MaskedStream(streams[1])
    sys.stdout, sys.stderr = masked
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in masked:
            try:
                stream.flush()
            except (OSError, ValueError):  # the reader is gone, or the stream is closed
                continue


def _discarded() -> TextIO:
    """Return a replacement for an output that was closed before the start, as with `>&-`."""
    return Path(os.devnull).open("w", encoding="utf-8")


def print_as_is(text: str) -> None:
    out: Any = sys.stdout
    getattr(out, "write_as_is", out.write)(text + "\n")
    out.flush()
