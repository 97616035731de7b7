"""Paths of a workspace in file functions of Python."""
# ruff: noqa: PTH110, PTH113, PTH123, PTH207, PTH208 - as users write it

import glob
import os
from pathlib import Path

from penstock._model.paths import PathMap
from penstock._project.mapped_files import mapped_files


def test_python_file_functions_use_mapped_paths(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.json").write_text("1", encoding="utf-8")
    # This path does not exist on the machine.
    where = f"/Volumes/{tmp_path.name}/{tmp_path.parent.name}"
    paths = PathMap({where: str(tmp_path / "raw"), "/mnt/far": "s3a://bucket/far"})
    before = (open, os.stat, os.scandir)
    with mapped_files(paths.map):
        with open(f"{where}/a.json", encoding="utf-8") as file:
            assert file.read() == "1"
        assert Path(where, "a.json").read_text(encoding="utf-8") == "1"
        assert os.listdir(f"/dbfs{where}") == os.listdir(path=where) == ["a.json"]
        with open(file=f"{where}/a.json", encoding="utf-8") as file:
            assert file.read() == "1"
        assert os.path.isfile(f"{where}/a.json")
        assert not Path(where, "b.json").exists()
        assert [Path(name).name for name in glob.glob(f"{where}/*.json")] == ["a.json"]
        with open(Path(where) / "b.json", "w", encoding="utf-8") as file:
            file.write("2")
        assert not os.path.exists("/mnt/far/x")
        assert os.listdir(tmp_path) == ["raw"]
    assert (tmp_path / "raw/b.json").read_text(encoding="utf-8") == "2"
    assert (open, os.stat, os.scandir) == before
    assert not os.path.exists(where)
