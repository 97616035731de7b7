"""After `jars sync`: a class-data archive, which halves the start of Spark's JVM.

The JVM writes it at the end of a training run of the `penstock init` project, once per machine,
Java and set of jars. Every failure is only a warning.
"""

import sys
import tempfile
from pathlib import Path

from penstock._cli.scaffold import write_project
from penstock.errors import SetupError


def prepare_fast_start(*, quiet: bool) -> None:
    """Build the archive if it is missing; takes as long as a small update."""
    from penstock._local import cds
    from penstock._local.jars import SPARK_JAR_SETS, class_path

    try:
        jars = class_path(SPARK_JAR_SETS)
        if cds.is_ready(jars):
            return
        if not quiet:
            print("preparing faster starts of Spark by one training run ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="penstock-training-") as scratch:
            write_project(Path(scratch), "training")
            project = str(Path(scratch) / "training")
            command = [sys.executable, "-m", "penstock", "run", project, "--quiet"]
            archive = cds.build(command, jars)
        if not quiet:
            print(f"class-data archive ready: {archive}")
    except SetupError as error:
        if error.condition != "JARS_MISSING":
            print(f"warning: {error}", file=sys.stderr)
