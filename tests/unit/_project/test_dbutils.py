import copy
import json
from pathlib import Path

import pytest

from penstock._project.databricks.dbutils import Dbutils
from penstock.errors import DefinitionError, SpecError


@pytest.fixture
def dbutils(project):
    return Dbutils(name="shop", root=project.root, configuration={"env": "prod"})


def _mapped(project):
    lake = project.root / "lake"
    return Dbutils(
        name="shop",
        root=project.root,
        configuration={},
        map_path=lambda path: path.replace("dbfs:", "").replace("/Volumes", f"{lake}/Volumes"),
    )


# -- secrets


def test_secret_is_read_from_the_environment(dbutils, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SECRET_KAFKA_PASSWORD", "hunter2")
    assert dbutils.secrets.get("kafka", "password") == "hunter2"
    assert dbutils.secrets.getBytes(scope="kafka", key="password") == b"hunter2"


def test_error_names_the_file_when_a_secret_is_missing(dbutils):
    with pytest.raises(SpecError) as caught:
        dbutils.secrets.get(scope="kafka", key="none")
    assert caught.value.condition == "SECRET_NOT_FOUND"
    assert caught.value.origin.file.endswith("test_dbutils.py")


def test_secrets_of_the_folder_are_listed(dbutils, project):
    assert dbutils.secrets.listScopes() == []
    assert dbutils.secrets.list("kafka") == []
    project.write(".secrets/kafka/user", "me")
    assert [scope.getName() for scope in dbutils.secrets.listScopes()] == ["kafka"]
    assert [secret.key for secret in dbutils.secrets.list("kafka")] == ["user"]


# -- widgets


def test_configured_value_overrides_the_default_of_a_widget(dbutils):
    dbutils.widgets.text("env", "dev", "Environment")
    dbutils.widgets.dropdown("size", "s", ["s", "m"])
    dbutils.widgets.multiselect(name="all", defaultValue="a,b", choices=["a", "b"], label="x")
    dbutils.widgets.combobox("empty", "", [])
    assert dbutils.widgets.get("env") == "prod"
    assert dbutils.widgets.getAll() == {"env": "prod", "size": "s", "all": "a,b", "empty": ""}
    dbutils.widgets.remove("size")
    dbutils.widgets.remove("size")
    with pytest.raises(DefinitionError) as caught:
        dbutils.widgets.get("size")
    assert (caught.value.condition, "--conf size=VALUE" in caught.value.hint) == (
        "WIDGET_NOT_FOUND",
        True,
    )
    assert dbutils.widgets.getArgument("size", "x") == "x"
    dbutils.widgets.removeAll()
    assert dbutils.widgets.get("env") == "prod"


# -- fs


def test_mapped_folder_is_listed_as_on_databricks(project):
    project.write("lake/Volumes/raw/b.json", "{}")
    project.write("lake/Volumes/raw/a/x.json", "{}")
    fs = _mapped(project).fs
    folder, file = fs.ls("/Volumes/raw")
    assert (folder.path, folder.name, folder.size) == ("dbfs:/Volumes/raw/a/", "a/", 0)
    assert (folder.isDir(), folder.isFile()) == (True, False)
    assert (file.path, file.name, file.size) == ("dbfs:/Volumes/raw/b.json", "b.json", 2)
    assert (file.isDir(), file.isFile()) == (False, True)
    assert abs(file.modificationTime / 1000 - (project.root / "lake").stat().st_mtime) < 60
    assert fs.ls(file.path) == [file]
    assert [entry.name for entry in fs.ls(folder.path)] == ["x.json"]


def test_unmapped_paths_are_unchanged(dbutils, project):
    project.write("data/x.json", "{}")
    assert dbutils.fs.ls("data")[0].path == "data/x.json"
    uri = f"file://{project.root}/data/"
    assert dbutils.fs.ls(uri)[0].path == f"{uri}x.json"


def test_files_of_the_project_can_be_changed(dbutils, project):
    fs = dbutils.fs
    assert fs.put("out/deep/a.txt", "häuser\n") is True
    with pytest.raises(FileExistsError, match="FileAlreadyExistsException"):
        fs.put("out/deep/a.txt", "x")
    fs.put("out/deep/a.txt", "häuser!\n", True)
    assert fs.head("out/deep/a.txt") == "häuser!\n"
    assert fs.head("out/deep/a.txt", 1) == "h"
    assert fs.cp("out/deep/a.txt", "out/b.txt") is True
    assert fs.cp("out/deep", "copy", recurse=True) is True
    assert fs.mv("out/b.txt", "copy") is True
    assert sorted(path.name for path in (project.root / "copy").iterdir()) == ["a.txt", "b.txt"]
    with pytest.raises(IsADirectoryError):
        fs.cp("out/deep", "copy2")
    with pytest.raises(IsADirectoryError):
        fs.head("out")
    with pytest.raises(OSError, match="not empty"):
        fs.rm("copy")
    assert (fs.rm("copy", True), fs.rm("copy", True)) == (True, False)
    assert fs.mkdirs("new/er") is True
    assert fs.mkdirs("new/er") is True


@pytest.mark.parametrize("call", ["ls", "head"])
def test_missing_file_error_has_the_java_class_name(dbutils, call):
    with pytest.raises(FileNotFoundError, match=r"java\.io\.FileNotFoundException.*no/such"):
        getattr(dbutils.fs, call)("no/such")


@pytest.mark.parametrize("path", ["/", "/tmp", "file:/", ".", "..", "", "~/..", str(Path.home())])
def test_root_home_and_project_folders_cannot_be_removed(dbutils, project, path):
    if path == "~/..":
        path = str(Path.home().parent)
    with pytest.raises(DefinitionError) as caught:
        dbutils.fs.rm(path, True)
    assert caught.value.condition == "DBUTILS_NOT_AVAILABLE"
    assert project.root.exists()


@pytest.mark.parametrize("path", ["s3a://bucket/x", "dbfs:/x", "abfss://c@a.net/x"])
def test_unmapped_object_store_paths_are_refused(dbutils, path):
    with pytest.raises(DefinitionError) as caught:
        dbutils.fs.ls(path)
    assert path in caught.value.message


def test_mounts_have_no_effect(dbutils):
    assert dbutils.fs.mounts() == []
    assert dbutils.fs.mount(source="wasbs://x", mount_point="/mnt/x", extra_configs={}) is True
    assert dbutils.fs.unmount("/mnt/x") is True
    assert dbutils.fs.refreshMounts() is True


# -- notebook and other functions


def test_notebook_context_has_path_and_user(dbutils):
    assert dbutils.entry_point is dbutils.notebook.entry_point
    context = dbutils.entry_point.getDbutils().notebook().getContext()
    path = str(Path(__file__).with_suffix(""))
    assert context.notebookPath().get() == path
    assert context.tags().get("notebookPath").get() == path
    assert context.tags().get("user").isDefined()
    assert isinstance(context.tags().apply("user"), str)
    assert context.browserHostName().getOrElse("none") == "none"
    assert context.currentRunId().toString() == ""
    assert context.clusterId().isDefined() is False
    assert context.apiToken().get() is None
    assert json.loads(context.toJson())["extraContext"]["notebook_path"] == path
    assert json.loads(dbutils.notebook.getContext().safeToJson())["tags"]["pipelineName"] == "shop"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda d: d.notebook.run("./x", 60), "%run"),
        (lambda d: d.credentials.assumeRole("x"), "credentials.assumeRole"),
        (lambda d: d.jobs.taskValues.get("task", "key"), "debugValue"),
        (lambda d: d.nonsense, "widgets"),
        (lambda d: d.fs.nonsense("x"), "refreshMounts"),
        (lambda d: d.secrets.put("x"), "getBytes"),
        (lambda d: d.widgets.slider("x"), "dropdown"),
        (lambda d: d.jobs.submit(), "taskValues"),
        (lambda d: d.library.restart(), "restartPython"),
        (lambda d: d.data.plot(), "summarize"),
        (lambda d: d.preview.x, "dbutils.preview"),
    ],
)
def test_error_names_alternatives_for_an_unavailable_function(dbutils, call, expected):
    with pytest.raises(DefinitionError) as caught:
        call(dbutils)
    assert caught.value.condition == "DBUTILS_NOT_AVAILABLE"
    assert expected in str(caught.value)
    assert caught.value.origin.file.endswith("test_dbutils.py")
    assert isinstance(caught.value, AttributeError)


def test_hasattr_and_copy_work_on_dbutils(dbutils):
    assert not hasattr(dbutils, "nonsense")
    assert not hasattr(dbutils.fs, "_ipython_display_")
    assert copy.copy(dbutils).widgets is dbutils.widgets


def test_unsupported_calls_without_effect_are_ignored(dbutils):
    assert dbutils.library.restartPython() is None
    assert dbutils.library.installPyPI("x", version="1") is None
    assert dbutils.data.summarize(object()) is None
    assert dbutils.jobs.taskValues.set("k", 1) is None
    assert dbutils.jobs.taskValues.get("t", "k", default=1, debugValue=2) == 2
    assert dbutils.jobs.taskValues.get(taskKey="t", key="k", default=0) == 0
    assert dbutils.help() is None


def test_notebook_exit_is_refused_outside_a_notebook(dbutils):
    with pytest.raises(DefinitionError) as caught:
        dbutils.notebook.exit("x")
    assert caught.value.condition == "OUTSIDE_PIPELINE"
