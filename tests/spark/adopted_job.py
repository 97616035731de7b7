"""Runs a job, and its commands to continue as a pipeline."""

import json
import shlex
from pathlib import Path
from typing import Any

from penstock._cli.main import main


def run_and_adopt(job: str, spark: Any, capsys: Any) -> list[list[str]]:
    """The commands that let the flows of `job_pipeline.py` continue."""
    Path("job.py").write_text(job, encoding="utf-8")
    exec(job, {"spark": spark.newSession()})
    assert main(["adopt", "job.py", "--output", "json"]) == 0
    dry_run, *resets = json.loads(capsys.readouterr().out)["commands"]
    assert dry_run == "penstock dry-run job_pipeline.py"
    return [shlex.split(command)[1:] for command in resets]
