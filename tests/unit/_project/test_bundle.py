import pytest

from penstock._model.missing import missing_values_assumed, plausible_value
from penstock._project.spec import load_settings
from penstock.errors import SpecError

USER = {"USER": "ada.lovelace@example.com"}

MAIN = """
bundle:
  name: shop
  uuid: 0d3f1b1e-0000-4000-8000-000000000000

include:
  - resources/*.yml
  - resources/*/*.yml
  - ./*.yml

variables:
  catalog:
    description: The catalog to use
  schema:
    description: The schema to use
    default: ${var.area}_${bundle.target}
  area:
    default: sales
  warehouse_id:
    lookup:
      warehouse: Shared
  without_value:
    description: has no value
  spark:
    type: complex
    default:
      spark.sql.shuffle.partitions: 8
      shop.area: ${var.area}

targets:
  dev:
    mode: development
    default: true
    workspace:
      host: https://dev.cloud.example.com
    variables:
      catalog: dev_catalog
    resources:
      pipelines:
        orders:
          continuous: false
          configuration:
            shop.size: small
          libraries:
            - notebook:
                path: ./extra/dev_only
  prod:
    mode: production
    workspace:
      host: https://prod.cloud.example.com
      root_path: /Workspace/Users/me/.bundle/${bundle.name}/${bundle.target}
    variables:
      catalog:
        default: prod_catalog
"""

ORDERS = """
resources:
  pipelines:
    orders:
      name: orders in ${bundle.target}
      catalog: ${var.catalog}
      schema: ${var.schema}
      continuous: true
      serverless: true
      photon: false
      channel: PREVIEW
      root_path: ../src
      libraries:
        - notebook:
            path: ../src/bronze
        - glob:
            include: ../src/transformations/**
        - file:
            path: ../src/gold.sql
      configuration:
        bundle.sourcePath: /Workspace/${workspace.file_path}/src
        files: ${workspace.root_path}/files/data
        user: ${workspace.current_user.userName}/${workspace.current_user.short_name}
        host: ${workspace.host}
        warehouse: wh-${var.warehouse_id}
        label: ${resources.pipelines.orders.name}
        job: ${resources.jobs.nightly.id}
        volume: ${resources.volumes.landing.volume_path}/in
        secret: "{{secrets/kafka/password}}"
        own: ${secret:kafka/password}
        other: ${not.a.reference}
      environment:
        dependencies:
          - --editable ${workspace.file_path}
          - requests==2.32.0
          - ./../dist/shop.whl
      notifications:
        - email_recipients: ["${var.without_value}"]
          alerts: [on-update-failure]
      clusters:
        - label: default
          num_workers: 2
          node_type_id: ${var.without_value}
          spark_conf:
            spark.master: local[*, 4]
            spark.sql.shuffle.partitions: 4
        - label: maintenance
          spark_conf:
            spark.maintenance: "true"
"""

OTHER = """
resources:
  volumes:
    landing:
      catalog_name: ${var.catalog}
      schema_name: raw
      name: landing
  jobs:
    nightly:
      name: nightly
      tasks:
        - task_key: update
          pipeline_task:
            pipeline_id: ${resources.pipelines.orders.id}
"""


@pytest.fixture
def shop(project):
    project.write("databricks.yml", MAIN)
    project.write("resources/orders.pipeline.yml", ORDERS)
    project.write("resources/more/other.yml", OTHER)
    project.write("src/bronze.ipynb", "{}")
    project.write("src/gold.sql")
    project.write("src/transformations/silver.py")
    project.write("extra/dev_only.py")
    return project


def _load(start, **arguments):
    return load_settings(start, environ={**USER, **arguments.pop("environ", {})}, **arguments)


def _error(start, **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(start, **arguments)
    return caught.value


def test_pipeline_is_read_from_an_included_file(shop):
    settings = _load(shop.root)
    assert settings.name == "orders in dev"
    assert settings.root == str(shop.root)
    assert (settings.catalog, settings.schema) == ("dev_catalog", "sales_dev")
    assert settings.storage == f"file://{shop.root}/.penstock"
    assert (settings.continuous, settings.development) == (False, True)
    assert settings.source_patterns == (
        "src/bronze.ipynb",
        "src/transformations/**",
        "src/gold.sql",
        "extra/dev_only.py",
    )
    # The root is not in this list, because it is always importable.
    assert settings.import_roots == (str(shop.root / "src"),)
    assert settings.dependencies == (
        f"--editable {shop.root}",
        "requests==2.32.0",
        str(shop.root / "dist" / "shop.whl"),
    )


def test_references_are_resolved_when_they_have_a_local_value(shop):
    configuration = dict(_load(shop.root).configuration)
    assert configuration == {
        "bundle.sourcePath": f"{shop.root}/src",
        "files": f"{shop.root}/data",
        "user": "ada.lovelace@example.com/ada_lovelace",
        "host": "https://dev.cloud.example.com",
        "warehouse": "wh-${var.warehouse_id}",
        "label": "orders in dev",
        "job": "${resources.jobs.nightly.id}",
        "volume": "/Volumes/dev_catalog/raw/landing/in",
        "secret": "${secret:kafka/password}",
        "own": "${secret:kafka/password}",
        "other": "${not.a.reference}",
        "shop.size": "small",
        "spark.sql.shuffle.partitions": "4",
    }


def test_notes_name_keys_without_effect(shop):
    notes = _load(shop.root).notes
    assert [note for note in notes if "warehouse_id" in note and "workspace only" in note]
    assert [note for note in notes if "resources.jobs.nightly.id" in note]
    compute = next(note for note in notes if "`clusters`" in note)
    assert "`serverless`" in compute
    assert "`channel`" in compute
    assert "photon" not in compute
    assert [note for note in notes if "`notifications`" in note]
    assert len(notes) == 4


def test_selected_target_overrides_the_pipeline(shop):
    for settings in (
        _load(shop.root, target="prod"),
        _load(shop.root, environ={"PENSTOCK_TARGET": "prod"}),
        _load(shop.root, environ={"DATABRICKS_BUNDLE_TARGET": "prod"}),
        _load(shop.root, target="prod", environ={"PENSTOCK_TARGET": "dev"}),
    ):
        assert (settings.catalog, settings.schema) == ("prod_catalog", "sales_prod")
        assert (settings.continuous, settings.development) == (True, False)
        assert settings.name == "orders in prod"
        assert "extra/dev_only.py" not in settings.source_patterns
        assert settings.configuration["files"] == f"{shop.root}/data"
    assert _load(shop.root, catalog="mine").catalog == "mine"
    assert _load(shop.root, environ={"PENSTOCK_SCHEMA": "mine"}).schema == "mine"


def test_variable_of_the_environment_overrides_file_and_target(shop):
    environ = {"BUNDLE_VAR_catalog": "from_env"}
    shop.write(".databricks/bundle/dev/variable-overrides.json", '{"catalog": "c", "area": "a"}')
    assert _load(shop.root, environ=environ).catalog == "from_env"
    settings = _load(shop.root)
    assert (settings.catalog, settings.schema) == ("c", "a_dev")


def test_bundle_is_found_from_a_subfolder_or_by_file(shop):
    expected = _load(shop.root)
    assert _load(shop.root / "src" / "transformations") == expected
    assert _load(shop.root / "resources") == expected
    assert _load(shop.root.parent, spec=shop.root / "databricks.yml") == expected
    assert _load(shop.root.parent, spec=shop.root) == expected
    assert _load(shop.root.parent, source=shop.root / "databricks.yml") == expected
    assert _load(shop.root.parent, spec=shop.root / "resources/orders.pipeline.yml") == expected
    assert _load(shop.root, pipeline="orders") == expected


@pytest.mark.parametrize("name", ["databricks.yaml", "bundle.yml", "bundle.yaml"])
def test_bundle_file_can_have_other_names(project, name):
    project.write(name, "bundle: {name: b}\nresources: {pipelines: {p: {catalog: c}}}\n")
    settings = _load(project.root)
    assert (settings.name, settings.catalog) == ("p", "c")


def test_bundle_file_of_another_tool_is_ignored(project):
    project.write("bundle.yml", "apiVersion: v1\n")
    assert _load(project.root).name == "orders"


def test_bundle_without_pipelines_is_ignored_unless_selected(project):
    project.write("databricks.yml", "bundle: {name: b}\nresources: {jobs: {j: {name: x}}}\n")
    settings = _load(project.root)
    assert settings.name == "orders"
    assert "declares no pipeline" in settings.notes[0]
    assert _error(project.root, spec=project.root).condition == "PIPELINE_NOT_FOUND"
    assert _error(project.root, pipeline="p").condition == "UNKNOWN_PIPELINE"


SEVERAL = """
bundle: {name: b}
resources:
  pipelines:
    one:
      libraries: [{file: {path: one.py}}, {glob: {include: parts/**}}]
    two: {libraries: [{file: {path: two.py}}]}
    three: {libraries: [{file: {path: missing.py}}]}
"""


@pytest.fixture
def several(project):
    project.write("databricks.yml", SEVERAL)
    project.write("one.py")
    project.write("two.py")
    project.write("parts/deep/a.py")
    return project


def test_pipeline_is_required_when_a_bundle_has_several(several):
    error = _error(several.root)
    assert error.condition == "PIPELINE_AMBIGUOUS"
    assert all(f"`{key}`" in error.message for key in ("one", "two", "three"))
    assert _load(several.root, pipeline="two").source_patterns == ("two.py",)
    assert _load(several.root, environ={"PENSTOCK_PIPELINE": "one"}).name == "one"
    error = _error(several.root, pipeline="onee")
    assert error.condition == "UNKNOWN_PIPELINE"
    assert "did you mean `one`" in error.hint


@pytest.mark.parametrize(
    ("source", "key", "patterns"),
    [
        ("one.py", "one", ("one.py",)),
        ("two.py", "two", ("two.py",)),
        ("parts/deep/a.py", "one", ("parts/deep/a.py",)),
        ("parts/deep", "one", ("parts/deep/**",)),
        ("parts", "one", ("parts/**",)),
    ],
)
def test_pipeline_is_selected_by_the_source_that_it_lists(several, source, key, patterns):
    settings = _load(several.root.parent, source=several.root / source)
    assert (settings.name, settings.source_patterns) == (key, patterns)


def test_note_explains_that_no_pipeline_lists_the_source(several):
    several.write("scratch.py")
    settings = _load(several.root, source=several.root / "scratch.py")
    assert settings.source_patterns == ("scratch.py",)
    assert settings.schema == "default"
    assert settings.notes[0].endswith(
        "with " + str(several.root / "scratch.py") + ", so nothing is read from it"
    )


def test_pipeline_is_selected_by_its_included_file(several):
    several.write("resources/four.yml", "resources: {pipelines: {four: {schema: s4}}}\n")
    settings = _load(several.root, spec=several.root / "resources/four.yml")
    assert (settings.name, settings.schema) == ("four", "s4")
    assert settings.root == str(several.root)


def test_resource_file_is_read_as_a_bundle_when_no_bundle_includes_it(project):
    project.write("p.pipeline.yml", "resources:\n  pipelines:\n    p:\n      libraries: []\n")
    assert _load(project.root).name == "p"


INGESTION = """
bundle: {name: b}
resources:
  pipelines:
    gateway: {gateway_definition: {connection_name: c}}
    ingest: {ingestion_definition: {connection_name: c}}
"""


def test_ingestion_pipelines_are_skipped_when_the_bundle_has_another_pipeline(project):
    project.write("databricks.yml", INGESTION + "    clean: {schema: s}\n")
    assert _load(project.root).name == "clean"
    error = _error(project.root, pipeline="gateway")
    assert error.condition == "PIPELINE_NOT_SUPPORTED"
    assert error.origin.line == 5


def test_ingestion_pipeline_is_refused_when_it_is_the_only_pipeline(project):
    text = INGESTION.replace("    gateway: {gateway_definition: {connection_name: c}}\n", "")
    project.write("databricks.yml", text)
    assert _error(project.root).condition == "PIPELINE_NOT_SUPPORTED"


ONE = "bundle: {name: b}\nresources: {pipelines: {p: {schema: s}}}\n"


def test_target_is_required_when_none_of_several_is_the_default(project):
    project.write("databricks.yml", ONE + "targets:\n  a: {}\n  b:\n")
    error = _error(project.root)
    assert error.condition == "TARGET_AMBIGUOUS"
    assert "`a`, `b`" in error.message
    assert _load(project.root, target="b").schema == "s"
    error = _error(project.root, target="c")
    assert (error.condition, error.origin.line) == ("UNKNOWN_TARGET", 3)


def test_only_target_is_used_without_being_the_default(project):
    project.write("databricks.yml", ONE + "environments: {x: {bundle: {name: c}}}\n")
    project.write("p.py")
    assert _load(project.root).schema == "s"
    project.write("databricks.yml", ONE)
    assert _load(project.root).schema == "s"
    assert _error(project.root, target="x").condition == "UNKNOWN_TARGET"


WRONG = [
    ("${var.catlog}", {}, "did you mean `catalog`", "no variable `catlog`"),
    ("${var.empty}", {}, "BUNDLE_VAR_empty", "no value for target `default`"),
    ("${var.none}", {}, "BUNDLE_VAR_none", "no value"),
    ("${var.circle}", {}, None, "var.circle -> var.back -> var.circle"),
    ("${resources.pipelines.p.schema}", {}, None, "refers to itself"),
]


@pytest.mark.parametrize(("text", "environ", "hint", "message"), WRONG)
def test_variable_is_refused_when_unknown_circular_or_without_a_value(
    project, text, environ, hint, message
):
    project.write(
        "databricks.yml",
        f"bundle: {{name: b}}\n"
        f"variables:\n"
        f"  catalog: {{default: c}}\n"
        f"  empty: {{description: e}}\n"
        f"  none:\n"
        f"  circle: {{default: 'x${{var.back}}'}}\n"
        f"  back: {{default: 'y${{var.circle}}'}}\n"
        f"resources:\n"
        f"  pipelines:\n"
        f"    p:\n"
        f"      schema: '{text}'\n",
    )
    error = _error(project.root, environ=environ)
    assert error.condition == "BUNDLE_VARIABLE_INVALID"
    assert message in error.message
    assert hint is None or hint in error.hint


def test_complex_variable_replaces_a_whole_value(project):
    project.write(
        "databricks.yml",
        """
bundle: {name: b}
variables:
  conf:
    type: complex
    default: {a: 1, b: "${bundle.name}", flag: true}
  folders: {type: complex, default: [first, second]}
  long: {default: "${var.folders[1]}/${var.conf.a}"}
targets:
  dev:
    default: true
  prod:
    variables:
      conf: {c: 3}
resources:
  pipelines:
    p:
      continuous: ${var.conf.flag}
      schema: ${var.long}
      configuration: ${var.conf}
""",
    )
    settings = _load(project.root)
    assert dict(settings.configuration) == {"a": "1", "b": "b", "flag": "true"}
    assert (settings.schema, settings.continuous) == ("second/1", True)


def test_complex_variable_is_refused_inside_a_string(project):
    project.write(
        "databricks.yml",
        "bundle: {name: b}\nvariables: {x: {default: [1]}}\n"
        "resources:\n  pipelines:\n    p:\n      schema: a${var.x}\n",
    )
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("SPEC_INVALID", 6)
    assert "cannot be inserted into a string" in error.message


def test_complex_variable_of_a_target_replaces_the_default_completely(project):
    project.write(
        "databricks.yml",
        "bundle: {name: b}\nvariables: {x: {type: complex, default: {a: 1}}}\n"
        "targets: {t: {variables: {x: {c: 3}}}}\n"
        "resources: {pipelines: {p: {configuration: '${var.x}'}}}\n",
    )
    assert dict(_load(project.root).configuration) == {"c": "3"}


def test_error_names_a_missing_included_file(project):
    project.write("databricks.yml", "bundle: {name: b}\ninclude:\n  - gone.yml\n  - x/*.yml\n")
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("SPEC_NOT_FOUND", 3)


def test_error_names_the_included_file_that_is_invalid(project):
    project.write("databricks.yml", "bundle: {name: b}\ninclude: [r/*.yml]\n")
    path = project.write("r/p.yml", "resources:\n  pipelines:\n    p:\n      name: [a]\n")
    error = _error(project.root)
    assert (error.condition, error.origin.file, error.origin.line) == ("SPEC_INVALID", str(path), 4)
    project.write("r/p.yml", "resources: {{x}}: y\n")
    assert _error(project.root).condition == "SPEC_SYNTAX"


def test_path_of_a_target_is_relative_to_its_own_file(project):
    project.write("databricks.yml", MAIN.replace("./extra/dev_only", "extra/dev_only.py"))
    project.write("resources/a/p.yml", "resources: {pipelines: {orders: {libraries: []}}}\n")
    project.write("extra/dev_only.py")
    settings = _load(project.root)
    assert settings.source_patterns == ("extra/dev_only.py",)


def test_error_names_the_line_when_a_source_file_does_not_exist(project):
    project.write("src/orders.py")
    project.write(
        "databricks.yml",
        "bundle: {name: b}\nresources:\n  pipelines:\n    p:\n      libraries:\n"
        "        - notebook:\n            path: src/order\n",
    )
    error = _error(project.root)
    assert (error.condition, error.origin.line) == ("SOURCE_NOT_FOUND", 7)
    assert "src/orders.py" in error.hint


def test_yaml_anchors_are_resolved_in_a_bundle(project):
    project.write(
        "databricks.yml",
        "bundle: {name: b}\nx-base: &base {catalog: c, schema: s}\n"
        "resources: {pipelines: {p: {<<: *base, schema: t}}}\n",
    )
    settings = _load(project.root)
    assert (settings.catalog, settings.schema) == ("c", "t")


def test_only_true_and_false_are_booleans_in_a_bundle(project):
    project.write(
        "databricks.yml",
        "bundle: {name: b}\ninclude: [targets.yml]\nvariables: {area: {default: off}}\n"
        "resources: {pipelines: {on: {name: on, continuous: yes, development: NO,\n"
        "  configuration: {country: NO, flag: True, area: '${var.area}', zone: '${var.zone}'}}}}\n",
    )
    project.write("targets.yml", "variables: {zone: {default: y}}\ntargets: {t: {default: on}}\n")
    settings = _load(project.root)
    assert settings.name == "on"
    assert (settings.continuous, settings.development) == (True, False)
    expected = {"country": "NO", "flag": "true", "area": "off", "zone": "y"}
    assert dict(settings.configuration) == expected


@pytest.mark.parametrize("clusters", ["${var.all}", "\n        - ${var.one}"])
def test_spark_conf_of_a_cluster_in_a_variable_is_applied(project, clusters):
    project.write(
        "databricks.yml",
        f"""
bundle: {{name: b}}
variables:
  one: {{type: complex, default: {{spark_conf: {{a: b}}, node: "${{var.unset}}"}}}}
  all: {{type: complex, default: [{{spark_conf: {{a: b}}}}]}}
  unset: {{description: x}}
resources:
  pipelines:
    p:
      schema: s
      clusters: {clusters}
""",
    )
    # A cluster may refer to variables without a value.
    expected = {"a": "b"} if "all" in clusters else {}
    assert dict(_load(project.root).configuration) == expected
    settings = _load(project.root, environ={"BUNDLE_VAR_unset": "x"})
    assert dict(settings.configuration) == {"a": "b"}


def test_bundle_without_pipelines_is_ignored_when_its_target_is_ambiguous(project):
    project.write("databricks.yml", "bundle: {name: b}\ntargets: {a: {}, b: {}}\n")
    assert _load(project.root).name == "orders"
    project.write(
        "databricks.yml",
        "bundle: {name: b}\ntargets: {a: {default: true},"
        " b: {resources: {pipelines: {p: {schema: s}}}}}\n",
    )
    assert _load(project.root).name == "orders"
    assert _load(project.root, target="b").name == "p"


def test_nested_references_are_resolved_from_the_inside(project):
    project.write(
        "databricks.yml",
        """
bundle: {name: b}
variables:
  dev_catalog: {default: "${bundle.name}_dev"}
  where: {default: dev}
targets: {dev: {default: true}}
resources:
  pipelines:
    p:
      catalog: ${var.${bundle.target}_catalog}
      schema: s_${var.${var.where}_catalog}
      configuration: {host: "x${workspace.host}"}
""",
    )
    settings = _load(project.root)
    assert (settings.catalog, settings.schema) == ("b_dev", "s_b_dev")
    assert settings.configuration == {"host": "x${workspace.host}"}


NO_DEFAULT = """
bundle: {name: b}
variables:
  catalog: {description: has no value}
targets:
  prod: {mode: production}
  test: {mode: %s}
resources: {pipelines: {p: {catalog: "${var.catalog}", libraries: []}}}
"""


def test_only_development_target_is_used_when_none_is_the_default(project):
    project.write("databricks.yml", NO_DEFAULT % "development")
    settings = _load(project.root, environ={**USER, "BUNDLE_VAR_catalog": "c"})
    assert settings.development
    assert _error(project.root, environ=USER).condition == "BUNDLE_VARIABLE_INVALID"
    project.write("databricks.yml", NO_DEFAULT % "production")
    assert _error(project.root, environ=USER).condition == "TARGET_AMBIGUOUS"


def test_missing_target_and_variables_get_assumed_values(project):
    project.write("databricks.yml", NO_DEFAULT % "production")
    keys = []
    with missing_values_assumed(lambda key: keys.append(key) or plausible_value(key)):
        settings = _load(project.root, environ=USER)
    assert settings.catalog == "catalog"
    assert sorted(keys) == ["bundle.target", "var.catalog"]
