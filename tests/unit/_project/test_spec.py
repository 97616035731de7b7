from pathlib import Path

import pytest

from penstock._model.pipeline import MaintenanceSettings
from penstock._project.locations import storage_uri
from penstock._project.spec import load_settings
from penstock.errors import SpecError

API = "import penstock as dp\n"


def _load(start, **arguments):
    return load_settings(start, environ=arguments.pop("environ", {}), **arguments)


def _error(start, **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(start, **arguments)
    return caught.value


def test_defaults_apply_when_there_is_no_spec_file(project):
    settings = _load(project.root)
    assert settings.name == "orders"
    assert settings.root == str(project.root)
    assert settings.storage == f"file://{project.root}/.penstock"
    assert (settings.catalog, settings.schema) == ("spark_catalog", "default")
    assert (settings.quarantine, settings.master, settings.source_patterns) == (True, None, ())
    assert dict(settings.configuration) == {}


@pytest.mark.parametrize(
    "name", ["pipeline.yaml", "pipeline.yml", "spark-pipeline.yaml", "spark-pipeline.yml"]
)
def test_all_keys_are_read_from_each_spec_file_name(project, name):
    project.write(
        name,
        """
        name: shop
        storage: s3a://bucket/shop/
        catalog: main
        database: silver
        configuration:
          spark.sql.shuffle.partitions: 8
          flag: True
          country: NO
          ratio: 0.10
          day: 2024-01-01
          time: 08:30
          empty: ""
        libraries:
          - glob: {include: transformations/**}
          - file:
              path: extra.py
        quarantine: false
        master: local[2]
        """,
    )
    (project.root / "deep" / "er").mkdir(parents=True)
    settings = _load(project.root / "deep" / "er")
    assert settings.root == str(project.root)
    assert (settings.name, settings.storage) == ("shop", "s3a://bucket/shop")
    assert (settings.catalog, settings.schema) == ("main", "silver")
    assert (settings.quarantine, settings.master) == (False, "local[2]")
    assert settings.source_patterns == ("transformations/**", "extra.py")
    assert dict(settings.configuration) == {
        "spark.sql.shuffle.partitions": "8",
        "flag": "true",
        "country": "NO",
        "ratio": "0.10",
        "day": "2024-01-01",
        "time": "08:30",
        "empty": "",
    }


def test_schema_is_an_alias_of_database(project):
    project.write("pipeline.yaml", "schema: gold\n")
    assert _load(project.root).schema == "gold"
    project.write("pipeline.yaml", "schema: gold\ndatabase: silver\n")
    assert _load(project.root).schema == "silver"


def test_empty_spec_file_means_defaults(project):
    project.write("pipeline.yaml", "# nothing\n")
    assert _load(project.root).name == "orders"


PRECEDENCE = {
    "name": ("name: s", "PENSTOCK_NAME"),
    "catalog": ("catalog: s", "PENSTOCK_CATALOG"),
    "schema": ("schema: s", "PENSTOCK_SCHEMA"),
    "master": ("master: s", "PENSTOCK_MASTER"),
}


@pytest.mark.parametrize("setting", PRECEDENCE)
def test_argument_overrides_environment_overrides_spec(project, setting):
    line, variable = PRECEDENCE[setting]
    project.write("pipeline.yaml", line)

    def value(**arguments):
        return getattr(_load(project.root, **arguments), setting)

    assert value(environ={variable: "e"}, **{setting: "a"}) == "a"
    assert value(environ={variable: "e"}) == "e"
    assert value(environ={variable: ""}) == "s"
    assert value() == "s"


def test_relative_storage_follows_the_precedence(project):
    project.write("pipeline.yaml", "storage: data/here\n")
    start = project.root / "sub"
    start.mkdir()
    environ = {"PENSTOCK_STORAGE": "env"}
    assert _load(start, storage="arg", environ=environ).storage == f"file://{start}/arg"
    assert _load(start, environ=environ).storage == f"file://{start}/env"
    assert _load(start).storage == f"file://{project.root}/data/here"


def test_quarantine_follows_the_precedence(project):
    project.write("pipeline.yaml", "quarantine: false\n")
    assert _load(project.root).quarantine is False
    assert _load(project.root, environ={"PENSTOCK_QUARANTINE": "TRUE"}).quarantine is True
    assert (
        _load(project.root, environ={"PENSTOCK_QUARANTINE": "1"}, quarantine=False).quarantine
        is False
    )
    assert "maybe" in str(_error(project.root, environ={"PENSTOCK_QUARANTINE": "maybe"}))


def test_configuration_argument_is_merged_key_by_key(project):
    project.write("pipeline.yaml", "configuration: {a: 1, b: 2}\n")
    settings = _load(project.root, configuration={"b": "3", "c": "4"})
    assert dict(settings.configuration) == {"a": "1", "b": "3", "c": "4"}


def test_secret_reference_in_the_spec_is_not_resolved(project):
    project.write("pipeline.yaml", "configuration: {password: '${secret:db/password}'}\n")
    settings = _load(project.root, environ={"PENSTOCK_SECRET_DB_PASSWORD": "hunter2"})
    assert settings.configuration["password"] == "${secret:db/password}"


WRONG = [
    ("nmae: x", "SPEC_INVALID", 1, "did you mean `name`"),
    ("a: 1\n\nstorage: 2\nlibrarys: []", "SPEC_INVALID", 1, "line 4: unknown key `librarys`"),
    ("name: [a]", "SPEC_INVALID", 1, "`name` must be a string"),
    ("storage: '${var.root}/x'", "SPEC_INVALID", 1, "`storage` has `${`: only a bundle"),
    ("name: true", "SPEC_INVALID", 1, "`name` must be a string"),
    ("\nquarantine: maybe", "SPEC_INVALID", 2, "true or false"),
    ("configuration: [a]", "SPEC_INVALID", 1, "mapping"),
    ("configuration:\n  a: 1\n  b:\n    c: 1", "SPEC_INVALID", 3, "`configuration.b` must be"),
    ("configuration:\n  a:", "SPEC_INVALID", 2, "`configuration.a` must be a string"),
    ("libraries: a.py", "SPEC_INVALID", 1, "must be a list"),
    ("libraries:\n  - a.py", "SPEC_INVALID", 2, "mapping"),
    ("libraries:\n  - file: {pth: a}", "SPEC_INVALID", 2, "did you mean `path`"),
    ("libraries:\n  - globs: {include: a}", "SPEC_INVALID", 2, "did you mean `glob`"),
    ("libraries:\n  - file: {}", "SPEC_INVALID", 2, "`libraries.0.file.path` is missing"),
    ("libraries:\n  - {}", "SPEC_INVALID", 2, "exactly one"),
    (
        "libraries:\n  - glob: {include: a}\n    file: {path: a}",
        "SPEC_INVALID",
        2,
        "exactly one",
    ),
    ("- a", "SPEC_INVALID", 1, "mapping of keys"),
    ("name: a\nname: b", "SPEC_DUPLICATE_KEY", 2, "`name` twice"),
    ("configuration:\n  a: 1\n  b: 2\n  a: 3", "SPEC_DUPLICATE_KEY", 4, "`a` twice"),
    ("name: a\n  b: c", "SPEC_SYNTAX", 2, "not valid YAML"),
    ("name: 'a", "SPEC_SYNTAX", 1, "not valid YAML"),
    ("? [a]\n: b", "SPEC_SYNTAX", 1, "not a string"),
    ("name: a/b", "SPEC_INVALID", None, "slash"),
    ("storage: 's3a://'", "STORAGE_INVALID", None, "not name a location"),
    ("libraries:\n  - notebook: {path: a}", "SOURCE_NOT_FOUND", 2, "notebook"),
]


@pytest.mark.parametrize(("text", "condition", "line", "expected"), WRONG)
def test_error_names_the_line_and_the_key_when_the_spec_is_invalid(
    project, text, condition, line, expected
):
    path = project.write("pipeline.yaml", text)
    error = _error(project.root)
    assert error.condition == condition
    assert expected in str(error)
    if line is not None:
        assert (error.origin.file, error.origin.line) == (str(path), line)


def test_all_errors_of_a_spec_are_reported(project):
    project.write("pipeline.yaml", "nmae: x\nquarantine: 7\nstorge: y\n")
    error = _error(project.root)
    assert "3 errors" in error.message
    assert error.message.index("`nmae`") < error.message.index("`quarantine`")


def test_yaml_anchors_are_resolved(project):
    project.write(
        "pipeline.yaml",
        "configuration: &base {a: 1, b: 2}\n",
    )
    assert dict(_load(project.root).configuration) == {"a": "1", "b": "2"}
    project.write(
        "pipeline.yaml",
        "libraries:\n  - file: &f {path: a.py}\n  - file: {<<: *f, path: b.py}\n",
    )
    assert _load(project.root).source_patterns == ("a.py", "b.py")


@pytest.mark.parametrize(
    "names", [("pipeline.yaml", "pipeline.yml"), ("pipeline.yaml", "spark-pipeline.yml")]
)
def test_spec_is_ambiguous_when_a_folder_has_two_spec_files(project, names):
    for name in names:
        project.write(name)
    error = _error(project.root)
    assert error.condition == "SPEC_AMBIGUOUS"
    assert all(name in error.message for name in names)
    assert _load(project.root, spec=Path(names[0])).name == "orders"


def test_error_suggests_a_similar_file_when_the_spec_does_not_exist(project):
    project.write("prod.yaml")
    error = _error(project.root, spec=Path("prd.yaml"))
    assert error.condition == "SPEC_NOT_FOUND"
    assert "prod.yaml" in error.hint


def test_spec_file_can_have_any_name(project):
    project.write("pipeline.yaml", "name: a\n")
    project.write("env/prod.yaml", "name: b\n")
    settings = _load(project.root, spec=Path("env/prod.yaml"))
    assert (settings.name, settings.root) == ("b", str(project.root / "env"))


def test_project_is_the_folder_of_the_source_file(project):
    project.write("my.py", API)
    for settings in (
        _load(project.root.parent, source=Path("orders/my.py")),
        _load(project.root / "my.py"),
    ):
        assert settings.name == "orders"
        assert settings.source_patterns == ("my.py",)
        assert settings.storage == f"file://{project.root}/.penstock"


def test_spec_applies_to_a_source_within_its_project(project):
    project.write("pipeline.yaml", "name: shop\nlibraries:\n  - glob: {include: t/**}\n")
    project.write("t/my.py", API)
    settings = _load(project.root.parent, source=Path("orders/t/my.py"))
    assert (settings.name, settings.source_patterns) == ("shop", ("t/my.py",))
    project.write("t/maintenance.sql", "OPTIMIZE orders")
    assert _load(project.root, source=Path("t")).source_patterns == ("t/my.py",)


def test_source_folder_with_a_spec_file_is_the_project(project):
    project.write("pipeline.yaml", "libraries:\n  - glob: {include: t/**}\n")
    settings = _load(project.root.parent, source=Path("orders"))
    assert settings.source_patterns == ("t/**",)


def test_error_suggests_a_similar_file_when_the_source_does_not_exist(project):
    project.write("orders.py")
    error = _error(project.root, source=Path("order.py"))
    assert error.condition == "SOURCE_NOT_FOUND"
    assert "orders.py" in error.hint


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("data", "file:///p/data"),
        ("./data/../x/", "file:///p/x"),
        ("/abs/olute/", "file:///abs/olute"),
        ("with space", "file:///p/with space"),
        ("file:/a/b/", "file:///a/b"),
        ("file:///a/b", "file:///a/b"),
        ("s3a://bucket/", "s3a://bucket"),
        ("S3A://bucket/x", "s3a://bucket/x"),
        ("hdfs://host:9000/a", "hdfs://host:9000/a"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
    ],
)
def test_storage_becomes_an_absolute_uri(text, uri):
    assert storage_uri(text, Path("/p")) == uri


@pytest.mark.parametrize("text", ["file:relative/x", "file://relative/x", "s3a://", "gs:"])
def test_storage_is_refused_when_its_uri_is_not_absolute(text):
    with pytest.raises(SpecError, match="STORAGE_INVALID"):
        storage_uri(text, Path("/p"))


def test_catalog_with_a_type_configures_the_metastore(project):
    project.write("databricks.yml", BUNDLE_WITH_CATALOG)
    project.write(
        "penstock.yaml", "catalog: {type: hive, options: {hive.metastore.uris: thrift://m:1}}"
    )
    settings = _load(project.root)
    assert (settings.catalog, settings.registered_catalog) == ("main", "main")
    assert settings.metastore is not None
    assert settings.metastore.options == {"hive.metastore.uris": "thrift://m:1"}
    project.write("penstock.yaml", "catalog: {name: mine, type: hive}")
    assert _load(project.root).registered_catalog == "mine"
    project.write("penstock.yaml", "catalog: mine")
    assert (_load(project.root).catalog, _load(project.root).metastore) == ("mine", None)


BUNDLE_WITH_CATALOG = """
bundle: {name: b}
resources: {pipelines: {p: {name: p, catalog: main, libraries: []}}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("catalog: {type: glue}", "`catalog.type` must be 'hive'"),
        ("catalog: {options: {hive.a: b}}", "`catalog` has `options` without `type`"),
        ("catalog: {type: hive, options: {uri: x}}", "`catalog.options` has `uri`: settings of"),
        ("catalog: {type: hive, nam: x}", "unknown key `catalog.nam`; did you mean `name`?"),
        ("catalog: [a]", "`catalog` must be a mapping"),
    ],
)
def test_invalid_catalog_is_refused(project, text, problem):
    project.write("penstock.yaml", text)
    error = _error(project.root)
    assert (error.condition, problem in error.message) == ("SPEC_INVALID", True), error.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("maintenance: false", MaintenanceSettings(enabled=False)),
        ("maintenance: true", MaintenanceSettings()),
        (
            "maintenance: {min_small_files: 10, vacuum_interval_hours: null}",
            MaintenanceSettings(min_small_files=10, vacuum_interval_hours=None),
        ),
        ("name: shop", MaintenanceSettings()),
    ],
)
def test_maintenance_can_be_a_boolean_or_a_mapping(project, text, expected):
    project.write("penstock.yaml", text)
    assert _load(project.root).maintenance == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maintenance: {min_small_file: 10}", "did you mean `min_small_files`"),
        ("maintenance: {min_small_files: 1}", "greater than or equal to 2"),
        ("maintenance: {vacuum_interval_hours: 0}", "greater than 0"),
    ],
)
def test_invalid_maintenance_setting_is_refused(project, text, message):
    project.write("penstock.yaml", text)
    assert message in str(_error(project.root))
