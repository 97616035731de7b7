"""The steps of the page `first-cluster.md`, run literally in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = ROOT / ".venv-double" / "bin"
INSTALLED = ("$ python -m venv", "$ . .venv/bin/activate", "$ pip install")
"""Lines of the page that the environment of the tests stands for."""


def script_of(page: str) -> str:
    """A shell script with the commands of a page, which also writes the files of the page."""
    lines = ["set -euo pipefail"]
    for name, language, text in re.findall(
        r"(?:`([\w./]+)`:\n\n(?:<!--.*?-->\n)?)?```(\w+)\n(.*?)```\n", page, re.S
    ):
        if language == "console":
            commands = [line for line in text.splitlines() if line.startswith("$ ")]
            lines += [line[2:] for line in commands if not line.startswith(INSTALLED)]
        else:
            assert name, f"no file is named for:\n{text}"
            lines.append(f'mkdir -p "$(dirname {name})"')
            lines.append(f"cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE")
    return "\n".join(lines) + "\n"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_steps_of_the_page_run_a_pipeline_on_a_cluster_with_tables_on_s3(tmp_path: Path) -> None:
    script = script_of((ROOT / "docs" / "first-cluster.md").read_text(encoding="utf-8"))
    assert "moto_server" in script
    programs = [str(Path(sys.executable).parent), str(DOUBLE), os.environ["PATH"]]
    # `kill %1` needs job control.
    done = subprocess.run(
        ["bash", "-m", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join(programs)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("COMPLETED") >= 2
    assert re.search(r"ann +│? *12\.5", done.stdout), done.stdout
    assert "positive" in done.stdout
    assert not (tmp_path / "tables").exists()
