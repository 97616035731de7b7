"""Spark's log: the output of the JVM goes through a pipe that masks secrets.

It is masked in this process rather than in the JVM: secrets become known here while the pipeline
runs, and not all output of a JVM goes through log4j. The JVM never blocks on a closed reader: it
ignores SIGPIPE, and writing to a pipe without a reader fails at once.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from penstock._observe.masking import shown

_BLOCK = 1 << 16
_PIPE_BYTES = 1 << 20
_LONGEST_LINE = 1 << 20
# Removed from the end of a truncated line: half a secret is not recognized.
_CUT_MARGIN = 1 << 12
_KEY_BEGIN, _KEY_END = "-----BEGIN ", "-----END "
_MOST_KEY_LINES = 128
_END_SECONDS = 5.0


class SparkLog:
    """The log file of one JVM, which only its owner may read, and the pipe into it.

    Existing content is kept. `writer` is the file descriptor for the output of the JVM, until
    `started`.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with contextlib.suppress(OSError):  # a file of another owner
            os.fchmod(self._file, 0o600)
        self._reader, self.writer = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # Linux only; for a busy interpreter
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._copy, name="Spark log", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Close our end of the pipe, so that it ends with the JVM."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def finish(self) -> None:
        """Wait until all output is in the file; only after the end of the JVM."""
        self.started()
        self._thread.join(_END_SECONDS)

    def tail(self, lines: int = 12) -> str:
        """The last lines of the file, for a message; only after the end of the JVM."""
        self.finish()
        text = self.path.read_text(encoding="utf-8", errors="replace")
        last = text.splitlines()[-lines:]
        return f"\nlast lines of {self.path}:\n" + "\n".join(last) if last else ""

    def _copy(self) -> None:
        for text in masked_lines(iter(lambda: os.read(self._reader, _BLOCK), b"")):
            # A full disk loses lines, but must not stop the reader: the JVM would block.
            with contextlib.suppress(OSError):
                data = text.encode("utf-8", "surrogateescape")
                while data:
                    data = data[os.write(self._file, data) :]
        os.close(self._file)
        os.close(self._reader)


def masked_lines(blocks: Iterator[bytes]) -> Iterator[str]:
    """Masked text of blocks of any size.

    Whole lines are masked, so that no secret is split between blocks. A line of more than a
    megabyte is truncated.
    """
    mask = _LineMask()
    line, size, is_cut = [b""], 0, False
    for block in blocks:
        *whole, rest = block.split(b"\n")
        done = []
        for piece in whole:
            done.append("\n" if is_cut else mask(b"".join([*line, piece])) + "\n")
            line, size, is_cut = [b""], 0, False
        if done:
            yield "".join(done)
        if not is_cut:
            line.append(rest)
            size += len(rest)
        if size > _LONGEST_LINE:
            yield mask(b"".join(line))[:-_CUT_MARGIN] + " [cut]"
            line, size, is_cut = [b""], 0, True
    last = b"".join(line)
    if last:
        yield mask(last)


class _LineMask:
    """Masks line by line, and all lines of a private key."""

    def __init__(self) -> None:
        self._key_lines = 0

    def __call__(self, line: bytes) -> str:
        text = line.decode("utf-8", "surrogateescape")
        try:
            return self._masked(text)
        except Exception as error:  # the reader must continue, or the JVM would block
            return f"[a line that could not be masked: {type(error).__name__}]"

    def _masked(self, text: str) -> str:
        if self._key_lines:
            is_last = _KEY_END in text
            self._key_lines = 0 if is_last else self._key_lines - 1
            return "[redacted]"
        head, begin, rest = text.partition(_KEY_BEGIN)
        if begin and "PRIVATE KEY" in rest and _KEY_END not in rest:
            self._key_lines = _MOST_KEY_LINES
            return shown(head) + "[redacted]"
        return shown(text)
