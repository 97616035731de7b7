"""Spark does not start: the error has the reason."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

# All sessions fail, so one process can start them one after the other.
SCRIPT = """
import json, sys
from penstock._spark.session import SessionOptions, build_session
from penstock.errors import SetupError

for number, conf in enumerate(json.loads(sys.argv[1])):
    log = f"{sys.argv[2]}/{number}.log"
    try:
        names = {"app_name": "p", "storage_root": "file:/tmp", "log_file": log}
        build_session(SessionOptions(configuration=conf, **names))
    except SetupError as error:
        print(json.dumps([error.condition, error.message, error.hint]), flush=True)
"""


def test_error_has_the_reason_why_spark_did_not_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = {"spark.driver.port": str(taken.getsockname()[1]), "spark.port.maxRetries": "0"}
        cases = [
            # Spark lets Java ignore options that it does not know, but not wrong values.
            (
                {"spark.driver.extraJavaOptions": "-XX:MaxMetaspaceSize=bad"},
                "JVM_START_FAILED",
                "Improperly specified VM option 'MaxMetaspaceSize=bad'",
            ),
            ({"spark.driver.memory": "2x"}, "JVM_START_FAILED", "maximum heap size: -Xmx2x"),
            ({"spark.driver.memory": "1m"}, "JVM_START_FAILED", "Too small maximum heap"),
            ({"spark.driver.memory": "64m"}, "SPARK_START_FAILED", "INVALID_DRIVER_MEMORY"),
            (
                {"spark.sql.shuffle.partitions": "many"},
                "SPARK_START_FAILED",
                "INVALID_CONF_VALUE",
            ),
            (port, "SPARK_START_FAILED", "BindException: "),
            ({"spark.master": "lokal"}, "JVM_START_FAILED", "Master must either be yarn or"),
            (
                {"spark.serializer": "no.Such"},
                "SPARK_START_FAILED",
                "ClassNotFoundException: no.Such",
            ),
        ]
        answer = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps([conf for conf, _, _ in cases]), tmp_path],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr
    errors = [json.loads(line) for line in answer.stdout.splitlines()]
    print("\n".join(f"{condition}: {message}\n  {hint}" for condition, message, hint in errors))
    assert [error[0] for error in errors] == [condition for _, condition, _ in cases]
    for (_, condition, words), (_, message, _) in zip(cases, errors, strict=True):
        # If the JVM has started, the reason is in the first line, not only in the log.
        assert words in (message.partition("\n")[0] if condition.startswith("SPARK") else message)
        assert "last lines of" in message
