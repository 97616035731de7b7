"""Projects behave as with `spark-pipelines`.

Where Penstock differs on purpose, the test checks the difference, and `docs/compatibility.md`
explains it.
"""

import sys

import pytest

import penstock as dp
from penstock._api.registry import Registry, registration
from penstock._cli.options import names
from penstock._cli.scaffold import write_project
from penstock._model.cdc import ScdType
from penstock._model.dataset import DatasetKind
from penstock._model.pipeline import PipelineSettings
from penstock._plan.planner import PlanOptions, make_plan
from penstock._project.loader import load_definitions
from penstock._project.sources import find_sources
from penstock._project.spec import load_settings
from penstock.errors import DefinitionError, DefinitionErrors, SpecError, UserCodeError

FULL = """
{
    "name": "shop",
    "catalog": "main",
    "DATABASE": "sales",
    "configuration": {"region": "eu", "spark.sql.shuffle.partitions": "4"},
    "libraries": [{"glob": {"include": "parts/**"}}],
    "storage": "data/shop"
}
"""


def settings_of(project, text, name="spark-pipeline.yml"):
    project.write(name, text)
    return load_settings(project.root, environ={})


def errors_of(declare):
    registry = Registry()
    with registration(registry):
        declare()
    return registry.errors


def no_query():
    raise AssertionError("declaring does not call the query")


# -- the spec file --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["database", "schema"])
def test_all_fields_of_the_spec_are_read(project, word):
    settings = settings_of(project, FULL.replace("DATABASE", word))
    assert (settings.name, settings.catalog, settings.schema) == ("shop", "main", "sales")
    assert dict(settings.configuration) == {"region": "eu", "spark.sql.shuffle.partitions": "4"}
    assert settings.source_patterns == ("parts/**",)
    assert settings.storage == f"file://{project.root}/data/shop"


def test_the_pipeline_has_the_name_of_its_folder_by_default(project):
    settings = settings_of(project, '{"libraries": []}')
    assert (settings.name, settings.configuration) == ("orders", {})
    assert settings.storage.startswith(f"file://{project.root}/")


def test_error_names_an_unknown_field(project):
    with pytest.raises(SpecError, match=r"\[SPEC_INVALID\].*`catalogtypo`"):
        settings_of(project, "name: shop\ncatalogtypo: main\nlibraries: []")


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ("not_a_mapping", "mapping"),
        ("{key: {}}", "`configuration.key`"),
        ("{[1]: x}", "a key that is not a string"),
    ],
)
def test_the_configuration_must_be_a_mapping_of_strings(project, configuration, expected):
    with pytest.raises(SpecError) as caught:
        settings_of(project, f"name: shop\nconfiguration: {configuration}")
    assert expected in str(caught.value)


def test_numbers_in_the_configuration_become_strings(project):
    settings = settings_of(project, "name: shop\nconfiguration: {1: something, n: 7}")
    assert dict(settings.configuration) == {"1": "something", "n": "7"}


@pytest.mark.parametrize("name", ["spark-pipeline.yml", "spark-pipeline.yaml"])
def test_the_spec_is_found_in_a_parent_folder(project, name):
    project.write(name, "name: shop")
    inner = project.write("deep/er/notes.txt").parent
    assert load_settings(inner, environ={}).name == "shop"


def test_two_specs_in_one_folder_are_refused(project):
    project.write("spark-pipeline.yaml", "name: a")
    with pytest.raises(SpecError, match=r"spark-pipeline\.yaml"):
        settings_of(project, "name: b")


# -- source files ---------------------------------------------------------------------------------

VIEW = (
    "from pyspark import pipelines as dp\n\n@dp.materialized_view\ndef {0}():\n    raise OSError\n"
)


def load(project, *patterns):
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(project.root), source_patterns=patterns
    )
    return load_definitions(settings, namespace={})


@pytest.mark.parametrize(
    "pattern", ["src/main.py", "data/file.sql", "src/**", "transformations/**", "a/b/c/**"]
)
def test_a_pattern_can_be_a_file_or_a_folder(project, pattern):
    file = pattern if pattern.endswith((".py", ".sql")) else pattern.replace("**", "x.py")
    project.write(file, "")
    assert [str(path.relative_to(project.root)) for path in _paths(project, pattern)] == [file]


@pytest.mark.parametrize("pattern", ["t/**/*.py", "t/**/deep/*.py", "*/a.py", "**/*.py"])
def test_wildcards_that_spark_refuses_are_accepted(project, pattern):
    project.write("t/a.py")
    project.write("t/deep/b.py")
    assert _paths(project, pattern)


def _paths(project, pattern):
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(project.root), source_patterns=(pattern,)
    )
    return list(find_sources(settings))


def test_only_files_that_match_the_pattern_are_loaded(project):
    project.write("one/defs.py", VIEW.format("mv1"))
    project.write("two/defs.py", VIEW.format("mv2"))
    assert [dataset.name for dataset in load(project, "one/**").datasets] == ["mv1"]


def test_an_error_in_a_file_is_reported_with_its_message(project):
    project.write("defs.py", "raise RuntimeError('wrong on purpose')")
    with pytest.raises(DefinitionErrors) as caught:
        load(project, "**")
    (error,) = caught.value.errors
    assert isinstance(error, UserCodeError)
    assert isinstance(error.__cause__, RuntimeError)
    assert "wrong on purpose" in str(error)


def test_an_unsupported_file_is_skipped_in_a_folder_and_refused_by_name(project):
    project.write("t/defs.py", VIEW.format("mv"))
    project.write("t/Defs.java", "class Defs {}")
    assert len(load(project, "t/**").datasets) == 1
    with pytest.raises(SpecError, match=r"Defs\.java"):
        load(project, "t/Defs.java")


def test_the_working_directory_is_the_folder_of_the_spec_during_loading(
    project, tmp_path, monkeypatch
):
    project.write("mypackage/__init__.py")
    project.write("mypackage/my_module.py", "NAME = 'here'")
    project.write(
        "defs.py",
        "import sys\nsys.path.append('.')\nimport mypackage.my_module as m\n" + VIEW.format("mv"),
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert len(load(project, "defs.py").datasets) == 1


# -- declarations ---------------------------------------------------------------------------------


def test_every_element_is_registered_with_name_target_and_origin():
    registry = Registry()
    with registration(registry):
        dp.materialized_view(no_query)
        dp.table(name="st")(no_query)
        dp.create_streaming_table("st2")
        dp.append_flow(target="st2", name="flow1")(no_query)
        dp.append_flow(target="st2", name="flow2")(no_query)
        dp.create_sink(name="sink", format="parquet", options={"key1": "value1"})
    definition = registry.build()
    assert [dataset.name for dataset in definition.datasets] == ["no_query", "st", "st2"]
    assert [dataset.kind for dataset in definition.datasets] == [
        DatasetKind.MATERIALIZED_VIEW,
        None,
        DatasetKind.STREAMING_TABLE,
    ]
    assert [(flow.name, flow.target) for flow in definition.flows] == [
        ("no_query", "no_query"),
        ("st", "st"),
        ("flow1", "st2"),
        ("flow2", "st2"),
    ]
    (sink,) = definition.sinks
    assert (sink.name, sink.format, dict(sink.options)) == ("sink", "parquet", {"key1": "value1"})
    for element in (*definition.datasets, *definition.flows, *definition.sinks):
        assert element.origin.file.endswith("test_spark_conventions.py")


CDC = {"target": "t", "source": "s", "keys": ["k"], "sequence_by": "seq"}
OUTSIDE = {
    "table": lambda: dp.table(no_query),
    "temporary_view": lambda: dp.temporary_view(no_query),
    "materialized_view": lambda: dp.materialized_view(no_query),
    "create_streaming_table": lambda: dp.create_streaming_table("t"),
    "append_flow": lambda: dp.append_flow(target="t")(no_query),
    "create_sink": lambda: dp.create_sink("s", "kafka"),
    "create_auto_cdc_flow": lambda: dp.create_auto_cdc_flow(**CDC),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_declaration_is_refused_when_no_pipeline_is_loading(name):
    with pytest.raises(DefinitionError, match=rf"\[OUTSIDE_PIPELINE\] `{name}`"):
        OUTSIDE[name]()


DATASETS = [dp.table, dp.temporary_view, dp.materialized_view]


@pytest.mark.parametrize("decorator", DATASETS)
def test_a_name_must_be_a_string(decorator):
    (error,) = errors_of(lambda: decorator(name=5)(no_query))
    assert error.condition == "INVALID_PARAMETER"
    assert "`name` must be a string, not int" in error.message


@pytest.mark.parametrize("decorator", [dp.table, dp.materialized_view])
def test_partition_columns_must_be_strings(decorator):
    (error,) = errors_of(lambda: decorator(partition_cols=["a", 1, 2])(no_query))
    assert error.condition == "INVALID_PARAMETER"
    assert "`partition_cols`" in error.message


@pytest.mark.parametrize("decorator", DATASETS)
def test_error_explains_a_decorator_that_gets_a_string(decorator):
    (error,) = errors_of(lambda: decorator("table1")(no_query))
    assert error.condition == "DECORATOR_ARGUMENT_NOT_CALLABLE"
    assert f"@{decorator.__name__}(name=" in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda: dp.create_sink(1, "kafka"), "`name` must be a string, not int"),
        (lambda: dp.create_sink("s", 1), "`format` must be a string, not int"),
        (lambda: dp.create_sink("s", "kafka", "x"), "`options`"),
        (lambda: dp.create_streaming_table(name=5), "`name` must be a string, not int"),
        (lambda: dp.create_streaming_table("t", comment=5), "`comment` must be a string, not int"),
        (lambda: dp.create_streaming_table("t", table_properties=["a"]), "`table_properties`"),
        (lambda: dp.create_streaming_table("t", schema=5), "`schema`"),
        (lambda: dp.create_streaming_table("t", cluster_by="a"), "`cluster_by`"),
        (lambda: dp.append_flow(target=5)(no_query), "`target` must be a string, not int"),
        (lambda: dp.append_flow(target="t", spark_conf="a")(no_query), "`spark_conf`"),
        (lambda: dp.append_flow(target="t", name="a.b")(no_query), "`name`"),
    ],
)
def test_a_declaration_is_refused_when_an_argument_has_the_wrong_type(declare, expected):
    (error,) = errors_of(declare)
    assert expected in error.message
    assert error.origin.file.endswith("test_spark_conventions.py")


def test_a_bare_decorator_of_a_flow_is_refused_with_a_hint():
    (error,) = errors_of(lambda: dp.append_flow(no_query))
    assert error.hint == 'write `@append_flow(target="...")`'


# -- auto CDC -------------------------------------------------------------------------------------


def cdc(**arguments):
    registry = Registry()
    with registration(registry):
        dp.create_streaming_table("t")
        dp.create_auto_cdc_flow(**{**CDC, **arguments})
    return registry


def test_an_auto_cdc_flow_has_the_name_of_its_target_by_default():
    (flow,) = cdc().build().flows
    assert (flow.name, flow.target, flow.cdc.source) == ("t", "t", "s")
    assert (flow.cdc.scd_type, flow.cdc.apply_as_deletes) == (ScdType.ONE, None)
    (named,) = cdc(name="mine", column_list=["k", "v"], apply_as_deletes="op = 'D'").build().flows
    assert (named.name, named.cdc.columns) == ("mine", ("k", "v"))


@pytest.mark.parametrize(("value", "scd_type"), [(1, ScdType.ONE), ("1", ScdType.ONE),
                                             (2, ScdType.TWO), ("2", ScdType.TWO)])  # fmt: skip
def test_the_scd_type_can_be_a_number_or_a_string(value, scd_type):
    (flow,) = cdc(stored_as_scd_type=value).build().flows
    assert flow.cdc.scd_type is scd_type


@pytest.mark.parametrize("which", ["track_history_column_list", "track_history_except_column_list"])
def test_tracked_columns_are_stored_with_scd_type_2(which):
    (flow,) = cdc(stored_as_scd_type=2, **{which: ["a", "b"]}).build().flows
    track = flow.cdc.track_history
    columns = track.columns if which == "track_history_column_list" else track.except_columns
    assert columns == ("a", "b")


def test_empty_column_lists_equal_the_default():
    lists = ("column_list", "except_column_list", "track_history_column_list",
             "track_history_except_column_list")  # fmt: skip
    assert cdc(**{key: [] for key in lists}).build().flows[0].cdc == cdc().build().flows[0].cdc


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"stored_as_scd_type": 3}, "stored_as_scd_type"),
        ({"track_history_column_list": ["v"]}, "track_history_column_list"),
        ({"column_list": ["a"], "except_column_list": ["b"]}, "except_column_list"),
        ({"target": 123}, "`target` must be a string, not int"),
        ({"keys": [123]}, "`keys`"),
    ],
)
def test_an_auto_cdc_flow_with_an_invalid_argument_is_refused(arguments, expected):
    (error,) = cdc(**arguments).errors
    assert expected in error.message


# -- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"full_refresh": ("a", "b")},
        {"refresh": ("a",)},
        {"refresh": ("a",), "full_refresh": ("b",)},
    ],
)
def test_a_selection_conflicts_with_a_full_refresh_of_all(draft_graph, options):
    with pytest.raises(SpecError, match="CONFLICTING_REFRESH_OPTIONS"):
        make_plan(draft_graph, PlanOptions(full_refresh_all=True, **options))


@pytest.fixture
def draft_graph(draft):
    draft.table("a")
    draft.table("b")
    return draft.graph()


@pytest.mark.parametrize("text", ["a", "a,b,c", "a, b , c"])
def test_names_of_an_option_are_split_at_commas(text):
    assert names([text], "--refresh") == tuple("abc"[: text.count(",") + 1])


def test_a_project_written_by_init_loads(tmp_path):
    write_project(tmp_path, "test_project")
    settings = load_settings(tmp_path / "test_project", environ={})
    assert settings.name == "test_project"
    assert settings.storage == f"file://{tmp_path}/test_project/storage"
    (source,) = find_sources(settings)
    assert source.name == "orders.py"
