"""`penstock package` without pex: the packed files, and the arguments of the packed file."""

import os
import socket
import sys
import zipfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from penstock._cli import exit_codes, package, packed
from penstock._project import spec
from penstock._project.packed import PROJECT_FOLDER, packed_project, packed_python
from penstock._project.spec import load_settings
from penstock._spark import submit
from penstock.errors import SetupError, SpecError

SOURCE = "import penstock as dp\n\n\n@dp.table\ndef t():\n    return spark.readStream.table('a')\n"


def new_project(folder: Path, settings: str = "name: shop\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(settings, encoding="utf-8")
    (folder / "shop.py").write_text(SOURCE, encoding="utf-8")
    return folder


def packed_files(root: Path, target: Path) -> list[str]:
    load = partial(package._settings, pipeline=None, target=None)
    package._copy_project(load(root), target, root / "dist.py", load)
    return sorted(str(item.relative_to(target)) for item in target.rglob("*") if item.is_file())


def test_only_files_of_the_project_are_packed(tmp_path: Path) -> None:
    root = new_project(tmp_path / "shop", "name: shop\nstorage: out\n")
    for hidden in (".git/config", ".env", ".penstock/shop.py", "out/tables/a.parquet"):
        (root / hidden).parent.mkdir(parents=True, exist_ok=True)
        (root / hidden).write_text("x", encoding="utf-8")
    for folder, mark in (("env", "pyvenv.cfg"), ("table", "_delta_log"), ("__pycache__", "a.pyc")):
        (root / folder).mkdir()
        (root / folder / mark).write_text("x", encoding="utf-8")
    with zipfile.ZipFile(root / "old.py", "w") as old:
        old.writestr("__main__.py", "")
    (root / "dist.py").write_text("x", encoding="utf-8")
    (root / "gone.txt").symlink_to(root / "nowhere")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.relpath(root / "socket"))
    (root / "data" / "empty").mkdir(parents=True)
    (root / "data" / "names.csv").write_text("a", encoding="utf-8")
    assert packed_files(root, tmp_path / "copy") == ["data/names.csv", "pipeline.yaml", "shop.py"]
    listener.close()


@pytest.mark.parametrize("included", ["../other.py", ".hidden/source.py"])
def test_source_that_cannot_be_packed_is_an_error(included: str, tmp_path: Path) -> None:
    libraries = (
        f"libraries:\n  - glob:\n      include: {included}\n  - file:\n      path: shop.py\n"
    )
    root = new_project(tmp_path / "shop", f"name: shop\n{libraries}")
    source = (root / included).resolve()
    source.parent.mkdir(exist_ok=True)
    source.write_text(SOURCE.replace("def t", "def u"), encoding="utf-8")
    with pytest.raises(SpecError) as raised:
        packed_files(root, tmp_path / "copy")
    assert raised.value.condition in ("PROJECT_NOT_PACKABLE", "SOURCE_NOT_FOUND")


def test_environment_of_the_caller_is_not_packed(tmp_path: Path, monkeypatch) -> None:
    root = new_project(tmp_path / "shop")
    monkeypatch.setenv("PENSTOCK_STORAGE", str(tmp_path / "elsewhere"))
    assert package._settings(root, pipeline=None, target=None).storage == f"file://{root}/.penstock"


@pytest.mark.parametrize(
    ("settings", "injected"), [("name: shop\n", []), ("{}\n", ["PENSTOCK_NAME=store"])]
)
def test_packed_project_is_renamed_only_when_it_has_no_name(
    settings: str, injected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pex(*arguments: str, cwd: Path) -> None:
        options = dict(pairwise(arguments))
        Path(options["--output-file"]).write_text(options.get("--inject-env", ""), "utf-8")

    root = new_project(tmp_path / "store", settings)
    monkeypatch.setattr(package, "_pex", pex)
    monkeypatch.setattr(package.penstock, "__file__", str(root / "__init__.py"))
    monkeypatch.setattr(package, "_packages", lambda _file: [])
    monkeypatch.setattr(package, "import_extra", lambda *_, **_options: None)
    package.package(root, file=tmp_path / "store.py")
    assert (tmp_path / "store.py").read_text("utf-8").split() == injected


def test_requirements_exclude_spark(tmp_path: Path) -> None:
    root = new_project(tmp_path / "shop")
    (root / "requirements.txt").write_text("requests\n", encoding="utf-8")
    settings = package._settings(root, pipeline=None, target=None)
    words = list(package._requirements(settings, None))
    assert words[words.index("-r") + 1] == str(root / "requirements.txt")
    excluded = [words[number + 1] for number, word in enumerate(words) if word == "--exclude"]
    assert excluded == ["pyspark", "py4j"]
    assert not [word for word in words if word.startswith("pytest")]
    assert [word for word in words if word.startswith("deltalake")]


def test_a_packed_project_writes_to_the_folder_where_it_is_started(
    tmp_path: Path, monkeypatch
) -> None:
    root = new_project(tmp_path / "cache" / PROJECT_FOLDER, "name: shop\nstorage: data/out\n")
    monkeypatch.setattr(spec, "packed_project", lambda: root)
    start = tmp_path / "work"
    start.mkdir()
    settings = load_settings(start, source=root, environ={})
    assert settings.storage == f"file://{start}/data/out"
    assert settings.local_folder == f"{start}/.penstock"
    (root / "pipeline.yaml").write_text("name: shop\nstorage: s3a://lake/shop\n", encoding="utf-8")
    assert load_settings(start, source=root, environ={}).storage == "s3a://lake/shop"
    (root / "pipeline.yaml").write_text("name: shop\n", encoding="utf-8")
    assert load_settings(start, source=root, environ={}).storage == f"file://{start}/.penstock"
    assert packed_project() is None


@pytest.mark.parametrize("value", ["local", "/var/local", ""])
def test_local_folder_is_set_by_the_environment(value: str, tmp_path: Path) -> None:
    root = new_project(tmp_path / "shop")
    settings = load_settings(root, environ={"PENSTOCK_LOCAL_DIR": value})
    expected = str(root / (value or ".penstock"))
    assert settings.local_folder == expected
    assert settings.storage == f"file://{expected}"


def test_executor_python_is_a_link_to_the_packed_file(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "shop.py"
    file.write_text("x", encoding="utf-8")
    assert packed_python() is None
    monkeypatch.setattr("penstock._project.packed.packed_project", lambda: tmp_path)
    assert packed_python() is None
    monkeypatch.setenv("PEX", str(file))
    for _ in range(2):
        link = packed_python()
        assert link is not None
        assert link.resolve() == file
    assert sorted(p.name for p in tmp_path.iterdir()) == ["penstock-python", "shop.py"]


def test_only_settings_passed_to_spark_submit_are_kept() -> None:
    conf = {
        "spark.app.name": "shop.py",
        "spark.app.submitTime": "1",
        "spark.submit.deployMode": "client",
        "spark.master": "local[*]",
        "spark.files": "file:///a/shop.py,file:///a/names.csv",
        "spark.executor.memory": "2g",
    }
    expected = {"spark.files": "file:///a/names.csv", "spark.executor.memory": "2g"}
    assert submit._settings_of(conf, "/a/shop.py") == expected
    conf |= {"spark.app.name": "orders", "spark.master": "spark://m:7077", "spark.files": ""}
    assert submit._settings_of(conf, "/a/shop.py") == {
        "spark.app.name": "orders",
        "spark.master": "spark://m:7077",
        "spark.executor.memory": "2g",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["run", "--conf", "a=b=c"]),
        (("--continuous",), ["run", "--conf", "a=b=c", "--continuous"]),
        (("dry-run", "--target", "x"), ["dry-run", "--conf", "a=b=c", "--target", "x"]),
        (("status",), ["status"]),
        (("checkpoint", "list"), ["checkpoint", "list"]),
        (("checkpoint",), ["checkpoint"]),
        (("checkpoint", "reset", "f"), ["checkpoint", "reset", "--conf", "a=b=c", "f"]),
        (("--version",), ["--version"]),
    ],
)
def test_packed_file_runs_the_command_of_its_arguments(arguments, expected, monkeypatch) -> None:
    called = []
    monkeypatch.setattr(packed, "command_line", lambda words: called.append(words) or 0)
    monkeypatch.setattr(submit, "is_submitted", lambda: True)
    monkeypatch.setattr(submit, "join_submit", lambda _file: {"a": "b=c"})
    monkeypatch.setattr(sys, "argv", ["shop.py", *arguments])
    monkeypatch.setenv("PYSPARK_PYTHON", "other")
    assert packed.main() == exit_codes.OK
    assert called == [expected]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_packed_file_without_spark_is_an_error(monkeypatch, capsys) -> None:
    monkeypatch.setattr(packed, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["shop.py"])
    assert packed.main() == exit_codes.ENVIRONMENT
    assert "spark-submit" in capsys.readouterr().err


def test_output_folder_that_is_not_writable_is_an_error() -> None:
    with pytest.raises(SetupError) as raised:
        package._check_writable(Path("/proc/penstock"))
    assert raised.value.condition == "PACKAGE_FAILED"
