"""Runs a job, then the commands that let a pipeline continue it."""

import json
import shlex
from pathlib import Path
from typing import Any

from penstock._cli.main import main


def run_and_adopt(job: str, spark: Any, capsys: Any) -> list[list[str]]:
    """Run and adopt a job; returns the commands that let its flows continue."""
    Path("job.py").write_text(job, encoding="utf-8")
    exec(job, {"spark": spark.newSession()})
    assert main(["adopt", "job.py", "--output", "json"]) == 0
    dry_run, *resets = json.loads(capsys.readouterr().out)["commands"]
    assert dry_run == "penstock dry-run job_pipeline.py"
    return [shlex.split(command)[1:] for command in resets]
