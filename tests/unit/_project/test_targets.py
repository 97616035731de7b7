"""Targets of spec files, and the storage that `defer_to` names."""

import pytest

from penstock._project.spec import load_settings
from penstock.errors import SpecError

SPEC = """
name: shop
storage: all
configuration: {a: file, b: file}
targets:
  prod: {storage: prod, schema: sales}
  dev:
    mode: development
    storage: dev
    schema: dev_me
    defer_to: prod
    configuration: {b: target, c: target}
    tables: {t: data}
"""
BUNDLE = """
bundle: {name: b}
targets: {dev: {default: true}, prod: {}}
resources: {pipelines: {p: {catalog: main, schema: "sales_${bundle.target}"}}}
"""


def _load(project, **arguments):
    return load_settings(project.root, environ=arguments.pop("environ", {}), **arguments)


def _error(project, **arguments) -> SpecError:
    with pytest.raises(SpecError) as caught:
        _load(project, **arguments)
    return caught.value


def _uri(project, name: str) -> str:
    return f"file://{project.root}/{name}"


@pytest.mark.parametrize(
    "arguments", [{}, {"target": "dev"}, {"environ": {"PENSTOCK_TARGET": "dev"}}]
)
def test_target_overrides_the_file(project, arguments):
    project.write("pipeline.yaml", SPEC)
    settings = _load(project, **arguments)
    assert settings.storage == _uri(project, "dev")
    assert settings.development
    assert settings.configuration == {"a": "file", "b": "target", "c": "target"}
    assert settings.tables["t"].path == f"{project.root}/data"
    deferral = settings.defer
    assert deferral is not None
    assert (deferral.name, deferral.storage) == ("prod", _uri(project, "prod"))
    assert (deferral.catalog, deferral.schema) == ("spark_catalog", "sales")


def test_production_target_does_not_defer_and_keeps_the_configuration(project):
    project.write("pipeline.yaml", SPEC)
    settings = _load(project, target="prod")
    assert settings.defer is None
    assert not settings.development
    assert settings.configuration == {"a": "file", "b": "file"}


def test_a_target_does_not_defer_to_itself(project):
    text = SPEC.replace("    defer_to: prod\n", "").replace("storage: all", "defer_to: prod")
    project.write("pipeline.yaml", text)
    assert _load(project, target="prod").defer is None
    environ = {"PENSTOCK_DEFER_TO": "prod"}
    assert _load(project, target="prod", environ=environ).defer is None
    deferral = _load(project, target="dev").defer
    assert deferral is not None
    assert deferral.storage == _uri(project, "prod")


def test_defer_to_can_be_a_storage_path(project):
    project.write("pipeline.yaml", SPEC)
    settings = _load(project, target="dev", defer_to="./other", storage="mine")
    assert settings.storage == _uri(project, "mine")
    assert settings.defer is not None
    assert settings.defer.storage == _uri(project, "other")
    assert settings.defer.schema == "dev_me"
    project.write("pipeline.yaml", "storage: mine\ndefer_to: other\n")
    assert _load(project).defer.home == _uri(project, "other")
    environ = {"PENSTOCK_DEFER_TO": "s3a://lake/shop"}
    assert _load(project, environ=environ).defer.storage == "s3a://lake/shop"
    (project.root / "sub").mkdir()
    below = load_settings(project.root / "sub", environ={"PENSTOCK_DEFER_TO": "./other"})
    assert below.defer.storage == _uri(project, "sub/other")


def test_home_of_production_is_in_its_shared_storage(project):
    project.write("pipeline.yaml", SPEC.replace("schema: sales", "shared_storage: true"))
    assert _load(project, target="dev").defer.home == _uri(project, "prod/pipelines/shop")


@pytest.mark.parametrize(
    ("arguments", "condition", "expected"),
    [
        ({"target": "pro"}, "UNKNOWN_TARGET", "did you mean `prod`?"),
        ({"target": "dev", "defer_to": "prd"}, "UNKNOWN_TARGET", "did you mean `prod`?"),
        ({"target": "dev", "defer_to": "xyz"}, "UNKNOWN_TARGET", "neither a target nor the path"),
        ({"target": "dev", "defer_to": "dev"}, "TARGETS_SHARE_STORAGE", "dev and dev"),
        ({"target": "dev", "storage": "prod"}, "TARGETS_SHARE_STORAGE", "dev and prod"),
        ({"target": "prod", "storage": "./dev/"}, "TARGETS_SHARE_STORAGE", "prod and dev"),
    ],
)
def test_invalid_target_or_defer_to_is_refused(project, arguments, condition, expected):
    project.write("pipeline.yaml", SPEC)
    error = _error(project, **arguments)
    assert error.condition == condition
    assert expected in str(error)


@pytest.mark.parametrize(
    ("before", "after", "condition", "expected"),
    [
        ("storage: dev\n", "schemas: dev\n", "SPEC_INVALID", "did you mean `schema`?"),
        ("    storage: dev\n", "", "TARGETS_SHARE_STORAGE", "storage"),
        ("mode: development\n", "mode: fast\n", "SPEC_INVALID", "targets.dev.mode"),
        ("    defer_to: prod\n", "    extends: x\n", "SPEC_INVALID", "unknown key"),
        ("    mode: development\n", "", "TARGET_AMBIGUOUS", "none is the default"),
    ],
)
def test_invalid_targets_are_refused(project, before, after, condition, expected):
    assert SPEC.count(before) == 1
    text = SPEC.replace(before, after)
    if condition == "TARGETS_SHARE_STORAGE":
        text = text.replace("{storage: prod, schema: sales}", "{schema: sales}")
    project.write("pipeline.yaml", text)
    error = _error(project)
    assert error.condition == condition
    assert expected in str(error)


def test_overlay_of_a_bundle_extends_its_targets(project):
    project.write("databricks.yml", BUNDLE)
    project.write(
        "penstock.yaml", "targets: {dev: {storage: dev, defer_to: prod}, prod: {storage: prod}}\n"
    )
    settings = _load(project)
    assert (settings.storage, settings.schema) == (_uri(project, "dev"), "sales_dev")
    assert settings.defer is not None
    assert settings.defer.storage == _uri(project, "prod")
    assert (settings.defer.catalog, settings.defer.schema) == ("main", "sales_prod")
    assert _load(project, target="prod").storage == _uri(project, "prod")


def test_file_that_extends_another_has_the_targets(project):
    project.write("base/pipeline.yaml", "name: base\nschema: base\n")
    project.write("penstock.yaml", "extends: base/pipeline.yaml\n" + SPEC)
    settings = _load(project, target="prod")
    assert (settings.schema, settings.storage) == ("sales", _uri(project, "prod"))
    project.write("base/databricks.yml", BUNDLE)
    project.write("penstock.yaml", "extends: base/databricks.yml\n" + SPEC)
    assert _load(project).schema == "dev_me"
    assert _load(project, target="prod").catalog == "main"
