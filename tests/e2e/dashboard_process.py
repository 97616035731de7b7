"""`penstock ui` in a separate process."""

import re
import signal
import subprocess
import sys


class Served:
    """A running `penstock ui`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "ui", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        match = None
        for line in self.process.stdout:
            if match := re.search(r"http://\S+", line):
                break
        assert match, "the dashboard ended before it said where it is"
        self.address = match[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(10)
