"""Runs a job, and its commands to continue as a pipeline."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock._cli.main import main


@pytest.fixture(autouse=True)
def delta_settings(spark: Any) -> Iterator[None]:
    """Delta enables these settings in the active session when it reads a stream."""
    yield
    for access in ("read", "write"):
        spark.conf.unset(f"spark.sql.parquet.fieldId.{access}.enabled")


def run_and_adopt(job: str, spark: Any, capsys: Any) -> list[list[str]]:
    """The commands that let the flows of `job_pipeline.py` continue."""
    Path("job.py").write_text(job, encoding="utf-8")
    exec(job, {"spark": spark.newSession()})
    assert main(["adopt", "job.py", "--output", "json"]) == 0
    dry_run, *resets = json.loads(capsys.readouterr().out)["commands"]
    assert dry_run == "penstock dry-run job_pipeline.py"
    return [shlex.split(command)[1:] for command in resets]
