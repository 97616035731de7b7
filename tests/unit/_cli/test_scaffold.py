import ast
import json
from pathlib import Path

import pytest
import yaml

from penstock._cli.scaffold import write_project
from penstock._project.spec import load_settings
from penstock.errors import SetupError, SpecError


def test_new_project_has_its_files_and_data(tmp_path: Path) -> None:
    written = write_project(tmp_path, "shop")
    folder = tmp_path / "shop"
    assert {str(path.relative_to(folder)) for path in written} == {
        ".gitignore",
        "README.md",
        "pipeline.yaml",
        "tests/test_orders.py",
        "transformations/orders.py",
        "data/orders/2026-01-05.json",
        "data/orders/2026-01-06.json",
        "data/orders/2026-01-07.json",
    }
    source = (folder / "transformations" / "orders.py").read_text()
    names = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert names == {"bronze", "silver", "revenue"}
    assert yaml.safe_load((folder / "pipeline.yaml").read_text())["name"] == "shop"
    assert "# shop\n" in (folder / "README.md").read_text()

    rows = [
        json.loads(line)
        for file in sorted((folder / "data" / "orders").iterdir())
        for line in file.read_text().splitlines()
    ]
    assert len({row["order_id"] for row in rows}) == 30
    assert sum(row["amount"] <= 0 for row in rows) == 3  # the number in the README


def test_settings_of_a_new_project_load(tmp_path: Path) -> None:
    write_project(tmp_path, "shop")
    settings = load_settings(tmp_path / "shop", environ={})
    assert settings.name == "shop"
    assert settings.storage == f"file://{tmp_path}/shop/storage"
    assert settings.source_patterns == ("transformations/**",)


@pytest.mark.parametrize(
    "name", ["", "9lives", "a b", "../up", "a/b", "/abs", ".", "-x", "naïve", "a" * 64, "a\n"]
)
def test_no_file_is_written_when_the_project_name_is_invalid(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="INVALID_PROJECT_NAME"):
        write_project(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_used_only_when_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    write_project(tmp_path, "shop")
    (tmp_path / "shop" / "README.md").write_text("mine")
    with pytest.raises(SpecError, match="PROJECT_EXISTS"):
        write_project(tmp_path, "shop")
    assert (tmp_path / "shop" / "README.md").read_text() == "mine"
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="PROJECT_EXISTS"):
        write_project(tmp_path, "file")


def test_setup_error_is_raised_when_the_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SetupError, match="PROJECT_NOT_WRITABLE"):
        write_project(tmp_path / "file", "shop")
