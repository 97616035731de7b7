"""After Ctrl-C or SIGTERM, `.ci/test` waits until the tests have stopped their servers."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/usr/bin/env bash
trap 'echo stopping >>log; sleep 0.5; echo stopped >>log; exit 2' TERM
echo started >>log
for _ in {1..600}; do sleep 0.05; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_both_processes_of_tests_gracefully(
    tmp_path: Path, number: signal.Signals
) -> None:
    for folder in (".ci", ".venv/bin", "ui/node_modules"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "test", tmp_path / ".ci")
    python, log = tmp_path / ".venv" / "bin" / "python", tmp_path / "log"
    python.write_text(PYTHON)
    python.chmod(0o755)
    log.touch()
    run = subprocess.Popen([tmp_path / ".ci" / "test"], start_new_session=True)
    pause = threading.Event()
    try:
        for _ in range(600):
            if log.read_text().count("started") == 2:
                break
            pause.wait(0.05)
        os.killpg(run.pid, number)
        assert run.wait(30) == 128 + number
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    lines = log.read_text().splitlines()
    assert sorted(lines) == ["started"] * 2 + ["stopped"] * 2 + ["stopping"] * 2
