"""A Hive metastore on PostgreSQL that `penstock run` and another engine use concurrently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PASSWORD, USER, PostgresServer

from penstock._local.jars import class_path

READER = Path(__file__).parents[1] / "spark" / "hive_reader.py"
SOURCE = """
import penstock as dp

@dp.table(comment="numbers")
@dp.expect("small", "id < 2")
def numbers():
    return spark.readStream.schema("id BIGINT").json("data")
"""


@pytest.mark.long
def test_tables_are_registered_in_a_metastore_on_postgresql(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    options = {
        # With constraints, Hive's client waits for a lock that its second connection holds.
        "datanucleus.schema.autoCreateTables": "true",
        "datanucleus.schema.autoCreateColumns": "true",
        "hive.metastore.schema.verification": "false",
        "javax.jdo.option.ConnectionURL": postgres_server.url,
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionUserName": USER,
        "javax.jdo.option.ConnectionPassword": "${secret:METASTORE}",
    }
    catalog = {"type": "hive", "options": options}
    (tmp_path / "penstock.yaml").write_text(json.dumps({"storage": "store", "catalog": catalog}))
    (tmp_path / "pipeline.py").write_text(SOURCE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.json").write_text('{"id": 1}\n{"id": 2}')
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=140,
        env={**os.environ, "METASTORE": PASSWORD},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "store" / "metastore").exists()
    for log in (tmp_path / "store").rglob("*.log"):
        assert PASSWORD not in log.read_text(errors="replace")

    settings = [f"spark.hadoop.{key}={value}" for key, value in options.items()]
    settings = [text.replace("${secret:METASTORE}", PASSWORD) for text in settings]
    jars = os.pathsep.join(str(jar) for jar in class_path(["delta", "postgresql"]))
    read = subprocess.run(
        [sys.executable, str(READER), jars, *settings, "--", "default.numbers"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=140,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr[-5000:]
    tables = json.loads(read.stdout.splitlines()[-1])
    assert tables["tables"] == ["numbers"]
    assert tables["default.numbers"]["rows"] == [[1], [2]]
    assert tables["default.numbers"]["comment"] == "numbers"
