import tomllib
from pathlib import Path

import penstock


def test_version_matches_pyproject():
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    assert penstock.__version__ == tomllib.loads(pyproject.read_text())["project"]["version"]
