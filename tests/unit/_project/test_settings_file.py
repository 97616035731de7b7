from pathlib import Path

import pytest

from penstock._model.paths import PathMap
from penstock._model.pipeline import ExternalTable
from penstock._project.spec import load_settings
from penstock.errors import SpecError


def _load(start, **arguments):
    return load_settings(start, environ=arguments.pop("environ", {}), **arguments)


def _error(start, **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(start, **arguments)
    return caught.value


# -- choice of file -------------------------------------------------------------------------------

FILES = {
    "pipeline.yaml": "name: own\n",
    "spark-pipeline.yml": "name: open\n",
    "databricks.yml": "bundle: {name: b}\nresources: {pipelines: {p: {name: bundle}}}\n",
    "x.pipeline.yml": "name: lakeflow\nlibraries: []\n",
    "penstock.yaml": "schema: overlay\n",
}


@pytest.mark.parametrize(
    ("present", "name"),
    [
        (("pipeline.yaml", "databricks.yml", "x.pipeline.yml"), "own"),
        (("spark-pipeline.yml", "databricks.yml", "x.pipeline.yml"), "open"),
        (("databricks.yml", "x.pipeline.yml"), "bundle"),
        (("x.pipeline.yml",), "lakeflow"),
        (("penstock.yaml",), "orders"),
        (("penstock.yaml", "x.pipeline.yml"), "lakeflow"),
        (("penstock.yaml", "databricks.yml"), "bundle"),
        (("penstock.yaml", "spark-pipeline.yml"), "open"),
        (("penstock.yaml", "pipeline.yaml"), "own"),
    ],
)
def test_spec_files_have_a_precedence(project, present, name):
    for file in present:
        project.write(file, FILES[file])
    (project.root / "deep").mkdir()
    settings = _load(project.root / "deep")
    assert settings.name == name
    assert settings.root == str(project.root)
    assert settings.schema == ("overlay" if "penstock.yaml" in present else "default")


@pytest.mark.parametrize(
    "names",
    [
        ("databricks.yml", "databricks.yaml"),
        ("a.pipeline.yml", "b.pipeline.json"),
        ("pipeline.json", "x.pipeline.yaml"),
        ("penstock.yaml", "penstock.yml"),
    ],
)
def test_spec_is_ambiguous_when_a_folder_has_two_files_of_one_kind(project, names):
    for name in names:
        project.write(name, '{"libraries": []}')
    for arguments in ({}, {"spec": project.root}):
        error = _error(project.root, **arguments)
        assert error.condition == "SPEC_AMBIGUOUS"
        assert all(name in error.message for name in names)


def test_pipeline_file_of_another_tool_is_ignored(project):
    project.write("azure.pipeline.yml", "trigger: [main]\nsteps: []\n")
    assert _load(project.root).name == "orders"


def test_settings_file_as_the_source_is_the_spec(project):
    project.write("pipeline.yaml", "name: a\n")
    project.write("env/other.yaml", "name: b\n")
    assert _load(project.root, source=Path("env/other.yaml")).name == "b"
    assert _load(project.root / "env/other.yaml").name == "b"


def test_folder_without_a_spec_file_is_refused(project):
    assert _error(project.root, spec=project.root).condition == "SPEC_NOT_FOUND"


# -- overlay and extends --------------------------------------------------------------------------

BASE = """
bundle: {name: b}
targets: {dev: {default: true}, prod: {}}
resources:
  pipelines:
    one: {name: one, catalog: c, schema: "s_${bundle.target}", configuration: {a: 1, b: 1}}
    two: {name: two}
"""
OVERLAY = """
storage: data
schema: mine
quarantine: false
configuration: {b: 2, c: 2}
paths: {"/Volumes/main": ./volumes, "dbfs:/": "s3a://bucket/dbfs/"}
tables: {samples.nyc.trips: trips}
"""


def test_overlay_overrides_a_bundle_key_by_key(project):
    project.write("databricks.yml", BASE)
    project.write("penstock.yaml", OVERLAY)
    settings = _load(project.root, pipeline="one")
    assert settings.name == "one"
    assert (settings.catalog, settings.schema) == ("c", "mine")
    assert settings.storage == f"file://{project.root}/data"
    assert settings.quarantine is False
    assert dict(settings.configuration) == {"a": "1", "b": "2", "c": "2"}
    assert dict(settings.paths) == {
        "/Volumes/main": f"{project.root}/volumes",
        "dbfs:/": "s3a://bucket/dbfs",
    }
    assert settings.tables["samples.nyc.trips"] == ExternalTable(path=f"{project.root}/trips")
    assert _load(project.root, spec=Path("databricks.yml"), pipeline="one") == settings
    environ = {"PENSTOCK_SCHEMA": "env"}
    assert _load(project.root, pipeline="one", environ=environ).schema == "env"


def test_overlay_applies_when_an_included_file_is_selected(project):
    project.write("databricks.yml", "bundle: {name: b}\ninclude: [r/*.yml]\n")
    project.write("r/p.yml", "resources: {pipelines: {p: {catalog: c}}}\n")
    project.write("penstock.yaml", "schema: mine\n")
    settings = _load(project.root, spec=Path("r/p.yml"))
    assert (settings.root, settings.schema) == (str(project.root), "mine")


def test_overlay_can_select_the_pipeline_of_a_bundle(project):
    project.write("databricks.yml", BASE)
    project.write(
        "penstock.yaml", "extends: {file: databricks.yml, pipeline: one, target: prod}\nmaster: m\n"
    )
    other = project.write("other.json", '{"libraries": [], "name": "other"}')
    settings = _load(project.root)
    assert (settings.name, settings.schema, settings.master) == ("one", "s_prod", "m")
    assert _load(project.root, spec=Path("databricks.yml")) == settings
    assert _load(project.root, spec=Path("penstock.yaml")) == settings
    named = _load(project.root, spec=other)
    assert (named.name, named.schema, named.master) == ("other", "default", "m")
    assert _load(project.root, pipeline="two").name == "two"
    assert _load(project.root, target="dev").schema == "s_dev"
    assert _load(project.root, environ={"PENSTOCK_TARGET": "dev"}).schema == "s_dev"


@pytest.mark.parametrize(
    "base",
    ["databricks.yml", "spark-pipeline.yml", "x.pipeline.yml", "pipeline.yaml"],
)
def test_file_inherits_settings_of_the_extended_file(project, base):
    project.write(f"base/{base}", FILES[base])
    project.write("local/pipeline.yaml", f"extends: ../base/{base}\nschema: mine\n")
    settings = _load(project.root / "local")
    assert settings.schema == "mine"
    assert settings.name in FILES[base]
    assert settings.root == str(project.root / "local")
    assert settings.import_roots == (str(project.root / "base"),)


def test_inherited_sources_are_relative_to_the_extended_file(project):
    project.write("base/pipeline.yaml", "libraries: [{glob: {include: t/**}}]\nstorage: st\n")
    project.write("base/t/a.py")
    project.write("pipeline.yaml", "extends: base/pipeline.yaml\n")
    settings = _load(project.root)
    assert settings.source_patterns == ("base/t/**",)
    assert settings.storage == f"file://{project.root}/base/st"
    project.write("pipeline.yaml", "extends: base/pipeline.yaml\nlibraries: [{file: {path: b}}]\n")
    assert _load(project.root).source_patterns == ("b",)


def test_chain_of_extended_files_is_merged_in_order(project):
    project.write("c.yaml", "name: c\nschema: c\ncatalog: c\n")
    project.write("b.yaml", "extends: c.yaml\nname: b\nschema: b\n")
    project.write("pipeline.yaml", "extends: b.yaml\nname: a\n")
    settings = _load(project.root)
    assert (settings.name, settings.schema, settings.catalog) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "condition", "expected"),
    [
        ("\nextends: gone.yaml", "SPEC_NOT_FOUND", "gone.yaml"),
        ("\nextends: pipeline.yaml", "SPEC_INVALID", "leads back"),
        ("\nextends: b.yaml", "SPEC_INVALID", "leads back"),
        ("\nextends: {pipeline: x}", "SPEC_INVALID", "`extends.file` is missing"),
        ("\nextends: {fil: x}", "SPEC_INVALID", "did you mean `file`"),
        ("\nextends: [x]", "SPEC_INVALID", "`extends` must be a mapping"),
        ("\nextends: databricks.yml", "PIPELINE_NOT_FOUND", "declares no pipeline"),
        ("\nextends: {file: c.yaml, target: x}", "UNKNOWN_TARGET", "not a bundle"),
    ],
)
def test_invalid_extends_is_refused(project, text, condition, expected):
    project.write("b.yaml", "extends: pipeline.yaml\n")
    project.write("c.yaml", "name: c\n")
    project.write("databricks.yml", "bundle: {name: b}\n")
    project.write("pipeline.yaml", text)
    error = _error(project.root)
    assert error.condition == condition
    assert expected in str(error)
    if expected != "not a bundle":
        file, line = ("b.yaml", 1) if text.endswith("b.yaml") else ("pipeline.yaml", 2)
        assert (error.origin.file, error.origin.line) == (str(project.root / file), line)


# -- keys of Penstock -----------------------------------------------------------------------------


def test_all_penstock_keys_are_read(project):
    (project.root / "lib").mkdir()
    project.write("n.ipynb")
    project.write(
        "pipeline.yaml",
        """
continuous: yes
development: On
quarantine: "no"
maintenance: off
lineage: {enabled: NO}
target: old
parameters: {day: 2026-01-31, full: no, n: 0.10}
root_path: lib
environment: {environment_version: 2, dependencies: [pandas]}
libraries: [{notebook: {path: n}}, {jar: x.jar}]
paths:
  /Volumes/main/raw: data/raw
  dbfs:/: data/dbfs
  s3://bucket: ./bucket
  /abs: /else/where
  /home: ~/x
  gs://b: "hdfs://h:9000/b"
tables:
  a: a
  b.c: {path: "s3a://x/y", format: CSV, options: {header: true, sep: ;}, schema: id LONG}
  d.e.f: {path: /abs/f}
""",
    )
    settings = _load(project.root)
    root = project.root
    assert (settings.continuous, settings.development, settings.schema) == (True, True, "old")
    assert not (settings.quarantine or settings.maintenance.enabled or settings.lineage.is_wanted)
    assert dict(settings.parameters) == {"day": "2026-01-31", "full": "no", "n": "0.10"}
    assert settings.import_roots == (f"{root}/lib",)
    assert settings.dependencies == ("pandas",)
    assert settings.source_patterns == ("n.ipynb",)
    assert settings.notes == ("`jar` in `libraries`: not installed by Penstock",)
    assert dict(settings.paths) == {
        "/Volumes/main/raw": f"{root}/data/raw",
        "dbfs:/": f"{root}/data/dbfs",
        "s3://bucket": f"{root}/bucket",
        "/abs": "/else/where",
        "/home": str(Path.home() / "x"),
        "gs://b": "hdfs://h:9000/b",
    }
    assert dict(settings.tables) == {
        "a": ExternalTable(path=f"{root}/a"),
        "b.c": ExternalTable(
            path="s3a://x/y",
            format="csv",
            options={"header": "true", "sep": ";"},
            schema="id LONG",
        ),
        "d.e.f": ExternalTable(path="/abs/f"),
    }
    assert PathMap(settings.paths).map("/Volumes/main/raw/x") == f"{root}/data/raw/x"


def test_continuous_follows_the_precedence(project):
    project.write("pipeline.yaml", "continuous: true\n")
    assert _load(project.root).continuous is True
    assert _load(project.root, environ={"PENSTOCK_CONTINUOUS": "false"}).continuous is False
    environ = {"PENSTOCK_CONTINUOUS": "no"}
    assert _load(project.root, environ=environ, continuous=True).continuous is True
    error = _error(project.root, environ={"PENSTOCK_CONTINUOUS": "often"})
    assert "PENSTOCK_CONTINUOUS" in error.message


def test_arguments_override_parameters_and_paths_key_by_key(project):
    project.write("pipeline.yaml", "parameters: {a: 1, b: 1}\npaths: {/mnt/x: x, /data: data}\n")
    start = project.root / "sub"
    start.mkdir()
    settings = _load(
        start,
        parameters={"b": "2", "c": "2"},
        paths={"dbfs:/mnt/x/": "here", "s3://b": "s3a://c"},
    )
    assert dict(settings.parameters) == {"a": "1", "b": "2", "c": "2"}
    assert dict(settings.paths) == {
        "/data": f"{project.root}/data",
        "dbfs:/mnt/x/": f"{start}/here",
        "s3://b": "s3a://c",
    }


@pytest.mark.parametrize(
    "paths",
    [{"../rel": "x"}, {"/a": ""}, {"/a": "s3://"}, {"/a": "file:x"}, {"/a": "x", "//a": "y"}],
)
def test_invalid_paths_argument_is_refused(project, paths):
    assert _error(project.root, paths=paths).condition == "PATHS_INVALID"


def test_overlay_overrides_tables_and_paths_in_another_spelling(project):
    project.write("base.yaml", "tables: {Main.Raw.A: a, b: b}\npaths: {/mnt/a: a}\n")
    project.write(
        "pipeline.yaml",
        "extends: base.yaml\ntables: {main.raw.`a`: mine}\npaths: {'dbfs:/mnt/a': mine}\n",
    )
    settings = _load(project.root)
    assert set(settings.tables) == {"b", "main.raw.`a`"}
    assert dict(settings.paths) == {"dbfs:/mnt/a": f"{project.root}/mine"}


WRONG = [
    ("paths: {../raw: x}", 1, "`paths` cannot be used: the prefix `../raw`"),
    ("paths: {/mnt/a: x, 'dbfs:/mnt/a': y}", 1, "the same path"),
    ("paths:\n  /a: ''", 2, "is blank"),
    ("paths:\n  /a: s3://", 2, "does not name a location"),
    ("paths:\n  /a: [b]", 2, "`paths./a` must be a string"),
    ("tables:\n  a: {}", 2, "`tables.a.path` is missing"),
    ("tables:\n  a: {path: x, formt: csv}", 2, "did you mean `format`"),
    ("tables:\n  a: {path: x,\n    format: ''}", 3, "is blank"),
    ("tables:\n  a: {path: 'file:x'}", 2, "is relative"),
    ("tables:\n  a: ", 2, "`tables.a` must be a mapping"),
    ("tables: {a.b.c.d: x}", 1, "at most three parts"),
    ("tables: {main.raw.src_*: x}", 1, "`*` must be the whole last part"),
    ("tables: {a: x, A: y}", 1, "the same table twice"),
    ("tables: {a..b: y}", 1, "`tables` has `a..b`, which is not a table name"),
    ("tables: [a]", 1, "must be a mapping"),
    ("environment: {dependency: []}", 1, "did you mean `dependencies`"),
    ("environment: {dependencies: a}", 1, "must be a list"),
    ("continuous: 1", 1, "true or false"),
    ("parameters: {a: [b]}", 1, "`parameters.a` must be a string"),
    ("libraries:\n  - notbook: {path: x}", 2, "did you mean `notebook`"),
]


@pytest.mark.parametrize(("text", "line", "expected"), WRONG)
@pytest.mark.parametrize("name", ["pipeline.yaml", "penstock.yaml"])
def test_error_names_the_line_of_an_invalid_penstock_key(project, name, text, line, expected):
    path = project.write(name, text)
    error = _error(project.root)
    assert error.condition == "SPEC_INVALID"
    assert expected in error.message
    assert (error.origin.file, error.origin.line) == (str(path), line)


def test_missing_root_path_is_refused(project):
    project.write("pipeline.yaml", "\nroot_path: libs\n")
    (project.root / "lib").mkdir()
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("SOURCE_NOT_FOUND", 2)
    assert "lib" in error.hint


def test_folders_of_editable_packages_are_import_roots(project):
    (project.root / "lib" / "src").mkdir(parents=True)
    (project.root / "app").mkdir()
    project.write(
        "pipeline.yaml",
        "root_path: app\nenvironment:\n  dependencies: [-e ./lib, --editable=../gone, pandas]\n",
    )
    settings = _load(project.root)
    root = project.root
    assert settings.import_roots == (f"{root}/app", f"{root}/lib", f"{root}/lib/src")
    assert settings.dependencies == (
        f"-e {root}/lib",
        f"--editable={root.parent}/gone",
        "pandas",
    )


@pytest.mark.parametrize(
    ("written", "expected", "folders"),
    [
        ("-e .", "-e {root}", ("src",)),
        ("-e lib", "-e {root}/lib", ("lib", "lib/src")),
        ("--editable lib[dev]", "--editable {root}/lib[dev]", ("lib", "lib/src")),
        ("--editable=./lib[dev]", "--editable={root}/lib[dev]", ("lib", "lib/src")),
        ("-e /gone/lib", "-e /gone/lib", ()),
        ("-r more.txt", "-r {root}/more.txt", ()),
        ("-e git+https://host/lib", "-e git+https://host/lib", ()),
        ("lib", "lib", ()),
        ("./lib", "{root}/lib", ()),
    ],
)
def test_paths_of_requirements_are_relative_to_their_file(project, written, expected, folders):
    for folder in ("src", "lib/src"):
        (project.root / folder).mkdir(parents=True)
    project.write("pipeline.yaml", f"environment: {{dependencies: ['{written}']}}\n")
    settings = _load(project.root)
    assert settings.dependencies == (expected.format(root=project.root),)
    assert settings.import_roots == tuple(f"{project.root}/{folder}" for folder in folders)


def test_spec_is_refused_when_its_aliases_expand_exponentially(project):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 8):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    project.write("pipeline.yaml", "\n".join(lines))
    assert _error(project.root).condition == "SPEC_SYNTAX"


@pytest.mark.parametrize("depth", [100, 300, 5000])
def test_spec_is_refused_when_it_is_nested_too_deeply(project, depth):
    project.write("pipeline.json", '{"libraries": ' + "[" * depth + "]" * depth + "}")
    assert _error(project.root).condition == "SPEC_SYNTAX"


def test_root_is_resolved_through_a_symbolic_link(project):
    project.write("pipeline.json", '{"libraries": [{"notebook": {"path": "n"}}]}')
    project.write("n.py")
    link = project.root.parent / "link"
    link.symlink_to(project.root)
    settings = _load(project.root, spec=link / "pipeline.json")
    assert (settings.root, settings.source_patterns) == (str(project.root), ("n.py",))


def test_empty_settings_files_are_accepted(project):
    project.write("databricks.yml", "")
    project.write("penstock.yaml", "")
    assert _load(project.root).name == "orders"
    project.write("x.json", "")
    assert _load(project.root, spec=Path("x.json")).name == "orders"


@pytest.mark.parametrize(
    "own",
    ["alerts: {rules: []}", "events: {keep_days: 9}", "lint: {ignore: []}", "shared_storage: true"],
)
def test_file_with_a_penstock_key_is_validated_strictly(project, own):
    project.write("pipeline.yaml", f"channel: CURRENT\nstorage: out\n{own}\n")
    assert _load(project.root).storage == f"file://{project.root}/out"
    project.write("pipeline.yaml", f"channel: CURRENT\nstorag: out\n{own}\n")
    with pytest.raises(SpecError, match="did you mean `storage`"):
        _load(project.root)
