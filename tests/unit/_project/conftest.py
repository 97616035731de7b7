from pathlib import Path

import pytest


class Project:
    """A project folder to which tests write files."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "orders"
    root.mkdir()
    return Project(root.resolve())
