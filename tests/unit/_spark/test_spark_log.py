"""Secrets are redacted before Spark's log is written to its file."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from planted_secrets import planted

from penstock._model.redaction import forget_secrets, remember_secret
from penstock._spark.spark_log import SparkLog, masked_lines

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nqqqqqqqq==\n-----END RSA PRIVATE KEY-----"


@pytest.fixture
def secret():
    remember_secret("hunterhunter")
    yield "hunterhunter"
    forget_secrets()


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_secrets_are_redacted_across_block_boundaries(secret: str, size: int):
    texts, secrets = planted()
    text = "\n".join([*texts, f"login with {secret} refused", KEY, "at org.Trace(x.scala:1)"])
    data = text.encode()
    blocks = (data[at : at + size] for at in range(0, len(data), size))
    stored = "".join(masked_lines(blocks))
    assert [part for part in [*secrets, secret, "MIIEow", "qqqqqqqq"] if part in stored] == []
    assert stored.endswith("\nat org.Trace(x.scala:1)")
    assert stored.count("\n") == text.count("\n")


def test_long_line_is_not_cut_within_a_secret(secret: str):
    line = ("x" * ((1 << 20) - 6) + secret + "y" * (1 << 20)).encode()
    blocks = (line[at : at + (1 << 16)] for at in range(0, len(line), 1 << 16))
    first, rest = "".join(masked_lines(iter([*blocks, b"\nnext"]))).split("\n")
    assert first.endswith(" [cut]") and secret[:6] not in first
    assert len(first) <= 1 << 21
    assert rest == "next"


def test_log_has_the_end_of_the_process_and_is_readable_by_its_owner(tmp_path: Path, secret: str):
    path = tmp_path / "logs" / "spark.log"
    log = SparkLog(path)
    code = f"import os; os.write(2, b'pw {secret}\\nno memory left'); os.kill(os.getpid(), 9)"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=log.writer)
    log.started()
    assert process.wait() == -9
    assert log.tail() == f"\nlast lines of {path}:\npw [redacted]\nno memory left"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
