"""Recorded event logs of the demo, and of a project whose second update violated a rule."""

import shutil
from pathlib import Path

import pytest

from penstock._ui.recording import Recording

LOGS = Path(__file__).parent / "logs"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A copy of the logs `demo` and `shop` that a test may change."""
    return Path(shutil.copytree(LOGS, tmp_path / "logs"))


@pytest.fixture
def demo(logs: Path) -> Recording:
    return Recording(key="orders-demo", label="orders-demo", directory=logs / "demo")


@pytest.fixture
def shop(logs: Path) -> Recording:
    return Recording(key="shop", label="shop", directory=logs / "shop")
