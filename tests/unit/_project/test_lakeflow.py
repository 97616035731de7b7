import json

import pytest

from penstock._project.sources import find_sources
from penstock._project.spec import load_settings
from penstock.errors import SpecError

EXPORTED = {
    "id": "f9f4276d-187d-4208-8b18-06f57d6aaa6f",
    "pipeline_type": "WORKSPACE",
    "clusters": [
        {
            "label": "default",
            "spark_conf": {
                "spark.sql.shuffle.partitions": "8",
                "shop.topic": "cluster",
                "spark.master": "local[*, 4]",
                "fs.key": "{{secrets/azure/account-key}}",
            },
            "autoscale": {"min_workers": 1, "max_workers": 5, "mode": "ENHANCED"},
        },
        {"label": "maintenance", "spark_conf": {"x": "y"}},
    ],
    "development": True,
    "continuous": False,
    "channel": "CURRENT",
    "photon": False,
    "libraries": [
        {"notebook": {"path": "/Repos/me@example.com/shop/notebooks/bronze"}},
        {"file": {"path": "/Workspace/Users/me@example.com/shop/silver.sql"}},
        {"glob": {"include": "/Workspace/Users/me@example.com/shop/transformations/**"}},
        {"maven": {"coordinates": "a:b:1"}},
        {"pypi": {"package": "requests==2.32.0"}},
        {"whl": "dbfs:/libs/x.whl"},
    ],
    "name": "Shop / orders",
    "serverless": False,
    "edition": "ADVANCED",
    "storage": "dbfs:/pipelines/f9f4276d",
    "configuration": {
        "shop.topic": "orders",
        "retries": 3,
        "share": 0.10,
        "dry": True,
        "nothing": None,
        "pipelines.reset.allowed": "false",
        "emoji": "\U0001f600",
    },
    "parameters": {"day": "2026-01-31"},
    "target": "sales",
    "root_path": "/Workspace/Users/me@example.com/shop",
    "environment": {"dependencies": ["pandas", "-r ./requirements.txt"]},
    "notifications": [],
    "event_log": {"name": "log"},
    "restart_window": None,
    "data_sampling": False,
    "brand_new": {"a": 1},
}


@pytest.fixture
def shop(project):
    project.write("notebooks/bronze.py")
    project.write("silver.sql")
    project.write("transformations/a.py")
    return project


def _load(start, **arguments):
    return load_settings(start, environ=arguments.pop("environ", {}), **arguments)


def _error(start, **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(start, **arguments)
    return caught.value


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_exported_settings_are_read(shop, indent):
    shop.write("pipeline.json", json.dumps(EXPORTED, indent=indent))
    settings = _load(shop.root)
    assert settings.name == "Shop - orders"
    assert settings.storage == f"file://{shop.root}/.penstock"
    assert (settings.catalog, settings.schema) == ("spark_catalog", "sales")
    assert (settings.continuous, settings.development) == (False, True)
    assert dict(settings.parameters) == {"day": "2026-01-31"}
    assert settings.source_patterns == ("notebooks/bronze.py", "silver.sql", "transformations/**")
    assert settings.dependencies == (
        "requests==2.32.0",
        "pandas",
        f"-r {shop.root}/requirements.txt",
    )
    assert dict(settings.configuration) == {
        "spark.sql.shuffle.partitions": "8",
        "fs.key": "${secret:azure/account-key}",
        "shop.topic": "orders",
        "retries": "3",
        "share": "0.1",
        "dry": "true",
        "pipelines.reset.allowed": "false",
        "emoji": "\U0001f600",
    }


def test_notes_name_each_key_without_effect_once(shop):
    shop.write("pipeline.json", json.dumps(EXPORTED))
    notes = _load(shop.root).notes
    assert [note for note in notes if note.startswith("`clusters`, `edition`, `channel`: ")]
    assert [note for note in notes if note.startswith("`event_log`")]
    assert [note for note in notes if note.startswith("`maven`, `whl` in `libraries`")]
    assert [note for note in notes if note.startswith("`brand_new`")]
    assert [note for note in notes if "dbfs:/pipelines/f9f4276d" in note]
    assert [note for note in notes if note.startswith("`root_path`")]
    assert len(notes) == 6


def test_settings_are_read_from_a_response_of_the_rest_api(shop):
    answer = {"pipeline_id": "1", "state": "IDLE", "spec": EXPORTED, "latest_updates": []}
    shop.write("dev.json", json.dumps(answer))
    assert _load(shop.root.parent, spec=shop.root / "dev.json").schema == "sales"


@pytest.mark.parametrize("name", ["pipeline.yaml", "shop.pipeline.yml", "any.json", "any.yaml"])
def test_file_with_databricks_keys_is_read_as_an_export(project, name):
    project.write(name, '{"name": "x", "channel": "PREVIEW", "libraries": [], "new": 1}')
    settings = _load(project.root, spec=project.root / name)
    assert settings.name == "x"
    assert [note for note in settings.notes if note.startswith("`new`")]


def test_file_with_a_penstock_key_is_validated_strictly(project):
    text = "quarantine: false\nchannel: PREVIEW\nclusters: [{spark_conf: {a: b}}]\nstorage: here\n"
    project.write("pipeline.yaml", text)
    settings = _load(project.root)
    assert settings.quarantine is False
    assert settings.storage == f"file://{project.root}/here"
    assert dict(settings.configuration) == {"a": "b"}
    assert [note for note in settings.notes if note.startswith("`clusters`, `channel`")]
    project.write("pipeline.yaml", text + "new: 1\n")
    assert _error(project.root).condition == "SPEC_INVALID"


@pytest.mark.parametrize(
    ("text", "catalog", "schema"),
    [
        ("id: 1\nschema: a\ntarget: b\ndatabase: c", "spark_catalog", "a"),
        ("id: 1\ntarget: b\ndatabase: c", "spark_catalog", "b"),
        ("id: 1\ndatabase: c", "spark_catalog", "c"),
        ("id: 1\ntarget: main.b", "main", "b"),
        ("id: 1\ncatalog: x\ntarget: main.b", "x", "main.b"),
        ("id: 1\ncatalog:\ntarget: ''", "spark_catalog", "default"),
        ("id: 1\ncontinuous: 'true'", "spark_catalog", "default"),
    ],
)
def test_schema_has_several_spellings(project, text, catalog, schema):
    project.write("p.pipeline.yml", f"{text}\nlibraries: []\n")
    settings = _load(project.root)
    assert (settings.catalog, settings.schema) == (catalog, schema)
    assert settings.continuous is ("continuous" in text)


WRONG = [
    ("name: [a]", 2, "`name` must be a string"),
    ("configuration: a", 2, "`configuration` must be a mapping"),
    ("configuration:\n  a: {b: c}", 3, "`configuration.a` must be a string"),
    ("libraries: a.py", 2, "`libraries` must be a list"),
    ("libraries:\n  - a.py", 3, "must be a mapping"),
    ("libraries:\n  - file: {}", 3, "needs `path`"),
    ("libraries:\n  - glob:\n      include: ''", 3, "needs `include`"),
    ("continuous: often", 2, "must be true or false"),
    ("clusters: {}", 2, "`clusters` must be a list"),
    ("environment: {dependencies: pandas}", 2, "`dependencies` must be a list"),
]


@pytest.mark.parametrize(("text", "line", "expected"), WRONG)
def test_error_names_the_line_of_a_value_of_the_wrong_type(project, text, line, expected):
    path = project.write("settings.yaml", f"id: 1\n{text}\n")
    error = _error(project.root, spec=path)
    assert error.condition == "SPEC_INVALID"
    assert expected in error.message
    assert error.origin.line == line


@pytest.mark.parametrize("key", ["ingestion_definition", "gateway_definition"])
@pytest.mark.parametrize("name", ["pipeline.yaml", "pipeline.json", "spark-pipeline.yml"])
def test_ingestion_and_gateway_pipelines_are_refused(project, key, name):
    project.write(name, f'{{"name": "x",\n "{key}": {{"connection_name": "c"}}}}')
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("PIPELINE_NOT_SUPPORTED", 2)


def test_error_names_the_line_of_malformed_json(project):
    path = project.write("pipeline.json", '{"libraries": [],\n\t"name": "x"\n\t"id": "1"}')
    error = _error(project.root)
    assert error.condition == "SPEC_SYNTAX"
    assert "not valid JSON" in error.message
    assert (error.origin.file, error.origin.line) == (str(path), 3)


@pytest.mark.parametrize("text", ["[]", "3", '"x"'])
def test_file_is_refused_when_it_is_not_a_mapping(project, text):
    path = project.write("x.json", text)
    assert _error(project.root, spec=path).condition == "SPEC_INVALID"


def test_pipeline_and_target_are_refused_when_the_file_is_not_a_bundle(project):
    project.write("pipeline.json", '{"libraries": []}')
    assert _error(project.root, pipeline="x").condition == "UNKNOWN_PIPELINE"
    assert _error(project.root, target="x").condition == "UNKNOWN_TARGET"
    project.write("pipeline.yaml", "name: x\n")
    assert _error(project.root, pipeline="x").condition == "UNKNOWN_PIPELINE"
    environ = {"PENSTOCK_PIPELINE": "p", "PENSTOCK_TARGET": "t"}
    assert _load(project.root, environ=environ).name == "x"


# -- files of a workspace -------------------------------------------------------------------------


def _sources(project, *libraries):
    project.write("pipeline.json", json.dumps({"id": "1", "libraries": list(libraries)}))
    return _load(project.root).source_patterns


def _notebook(path):
    return {"notebook": {"path": path}}


def test_longest_matching_path_suffix_wins(project):
    for name in ("x/a.py", "x/y/a.py", "y/a.py", "a.py", "z/y/a.ipynb"):
        project.write(name)
    assert _sources(project, _notebook("/Repos/me/repo/x/y/a")) == ("x/y/a.py",)
    assert _sources(project, _notebook("/Repos/me/z/y/a")) == ("z/y/a.ipynb",)
    assert _sources(project, _notebook("/Users/me/other/a")) == ("a.py",)
    assert _sources(project, _notebook("/Repos/q/y/a")) == ("y/a.py",)


def test_source_is_ambiguous_when_two_files_match_equally(project):
    project.write("x/a.py")
    project.write("y/a.py")
    project.write("pipeline.json", json.dumps({"id": "1", "libraries": [_notebook("/Repos/q/a")]}))
    error = _error(project.root)
    assert error.condition == "SOURCE_AMBIGUOUS"
    assert "`x/a.py`, `y/a.py`" in error.message


@pytest.mark.parametrize("extension", ["", ".py", ".ipynb", ".sql", ".scala", ".r", ".R"])
def test_notebook_path_can_omit_the_extension(project, extension):
    project.write(f"n/my.notebook{extension}")
    assert _sources(project, _notebook("n/my.notebook")) == (f"n/my.notebook{extension}",)
    assert _sources(project, _notebook("/Repos/x/n/my.notebook")) == (f"n/my.notebook{extension}",)


def test_python_wins_when_a_notebook_has_several_extensions(project):
    project.write("n.sql")
    project.write("n.py")
    assert _sources(project, _notebook("./n"), {"file": {"path": "n.sql"}}) == ("n.py", "n.sql")


def test_folder_is_found_by_each_form_of_glob(project):
    project.write("src/parts/a.py")
    for include in (
        "src/parts/**",
        "./src/parts/**",
        "/Workspace/Users/me/x/src/parts/**",
        "/Workspace/Users/me/parts",
        "src/parts",
    ):
        assert _sources(project, {"glob": {"include": include}}) == ("src/parts/**",)
    assert _sources(project, {"glob": {"include": "/Repos/x/parts/*.py"}}) == ("src/parts/*.py",)
    assert _sources(project, {"glob": {"include": "/Repos/x/a.py"}}) == ("src/parts/a.py",)
    assert _sources(project, {"glob": {"include": "**"}}) == ("./**",)


def test_files_are_searched_in_the_whole_repository(project):
    (project.root / ".git").mkdir()
    project.write("notebooks/bronze.py")
    project.write("parts/a.py")
    libraries = [_notebook("/Repos/me/repo/notebooks/bronze"), {"glob": {"include": "/x/parts/**"}}]
    path = project.write("conf/dev.json", json.dumps({"id": "1", "libraries": libraries}))
    settings = _load(project.root, spec=path)
    assert settings.root == str(project.root / "conf")
    assert settings.source_patterns == ("../notebooks/bronze.py", "../parts/**")


@pytest.mark.parametrize("hidden", [".git", "__pycache__", "venv", "node_modules"])
def test_files_in_hidden_and_dependency_folders_are_not_searched(project, hidden):
    project.write("venv/pyvenv.cfg")
    project.write(f"{hidden}/bronze.py")
    project.write("pipeline.json", json.dumps({"id": 1, "libraries": [_notebook("/x/bronze")]}))
    assert _error(project.root).condition == "SOURCE_NOT_FOUND"


def test_error_suggests_similar_files_when_a_file_does_not_exist(project):
    project.write("notebooks/bronze_orders.py")
    project.write(
        "pipeline.json", json.dumps({"id": "1", "libraries": [_notebook("/x/bronze_order")]})
    )
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("SOURCE_NOT_FOUND", 1)
    assert "notebooks/bronze_orders.py" in error.hint
    project.write("pipeline.json", '{"id": 1, "libraries": [{"glob": {"include": "/x/y/**"}}]}')
    assert _error(project.root).condition == "SOURCE_NOT_FOUND"


def test_root_path_is_an_import_root_when_it_exists_locally(project):
    project.write("app/a.py")
    project.write("pipeline.json", '{"id": 1, "root_path": "/Workspace/x/app", "libraries": []}')
    settings = _load(project.root)
    assert settings.import_roots == (str(project.root / "app"),)
    assert settings.notes == ()


def test_declaring_files_are_used_when_no_listed_file_exists(project):
    project.write("notebooks/a.py", "import dlt\n@dlt.table\ndef a(): ...\n")
    project.write("notebooks/helper.py", "X = 1\n")
    listed = [{"glob": {"include": "/Workspace/Users/me@example.com/etl/transformations/**"}}]
    project.write("pipeline.json", json.dumps({"id": "1", "name": "p", "libraries": listed}))
    settings = _load(project.root)
    assert settings.source_patterns == ()
    assert [path.name for path in find_sources(settings)] == ["a.py"]
    assert "instead of those in `libraries`" in settings.notes[-1]
    project.write("silver.sql")
    listed.append({"file": {"path": "/Workspace/Users/me@example.com/etl/silver.sql"}})
    project.write("pipeline.json", json.dumps({"id": "1", "name": "p", "libraries": listed}))
    assert _error(project.root).condition == "SOURCE_NOT_FOUND"
    named = _load(project.root, source=project.root / "notebooks")
    assert (named.name, named.source_patterns) == ("p", ("notebooks/a.py",))


def test_shuffle_manager_of_databricks_is_removed(project):
    manager = "org.apache.spark.shuffle.streaming.MultiShuffleManager"
    project.write("t/a.py", "import dlt\n")
    exported = {
        "id": "1",
        "libraries": [{"glob": {"include": "t/**"}}],
        "configuration": {"spark.shuffle.manager": manager, "spark.sql.ansi.enabled": "false"},
    }
    project.write("pipeline.json", json.dumps(exported))
    settings = _load(project.root)
    assert settings.configuration == {"spark.sql.ansi.enabled": "false"}
    assert manager in settings.notes[-1]
