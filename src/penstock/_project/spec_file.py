"""The spec file: `pipeline.yaml`, `penstock.yaml`, or `spark-pipeline.yml` of open-source Spark.

It is read strictly: an unknown key is an error that names the nearest known key. Keys that only
Databricks' files have are allowed too; they become notes.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock._model.origin import SourceLocation
from penstock._model.paths import PathMap
from penstock._model.similar import nearest
from penstock._project.alert_spec import AlertsSpec
from penstock._project.databricks.lakeflow import FOREIGN_KEYS, refuse_ingestion
from penstock._project.documents import KeyPath, Node
from penstock._project.export_spec import (
    EventsSpec,
    Lineage,
    Maintenance,
    MetricsSpec,
    SpecPart,
    Telemetry,
    Truth,
    shorthand,
)
from penstock._project.file_settings import table_key
from penstock.errors import SpecError

_PROBLEMS = {
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
}


_METASTORE_KEYS = ("hive.", "javax.jdo.option.", "datanucleus.")


def _written_out(value: Any) -> Any:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


Text = Annotated[
    str, BeforeValidator(_written_out, json_schema_input_type=str | bool | int | float)
]


class FileLibrary(SpecPart):
    """`file: {path: ...}` or `notebook: {path: ...}`."""

    path: str


class GlobLibrary(SpecPart):
    """`glob: {include: ...}`."""

    include: str


class Library(SpecPart):
    """One entry of `libraries`: exactly one of its keys."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    file: FileLibrary | None = Field(default=None, description="A source file.")
    glob: GlobLibrary | None = Field(
        default=None, description="A source file, or a folder with `/**` at its end."
    )
    notebook: FileLibrary | None = Field(
        default=None, description="A notebook; its extension may be left out."
    )
    jar: Any = Field(default=None, description="Not installed by Penstock.")
    maven: Any = Field(default=None, description="Not installed by Penstock.")
    pypi: Any = Field(default=None, description="Not installed by Penstock.")
    whl: Any = Field(default=None, description="Not installed by Penstock.")


class EnvironmentSpec(SpecPart):
    """`environment: {dependencies: [...]}`."""

    dependencies: list[str] = Field(
        default_factory=list, description="Python requirements, as pip understands them."
    )
    environment_version: Text | None = Field(default=None, description="Not used.")


class TableSpec(SpecPart):
    """A table that the pipeline reads but does not make."""

    path: str = Field(description="Folder or file, relative to this file, or a URI.")
    format: str | None = Field(
        default=None, description="Format, as in Spark; default: detected from the files."
    )
    options: dict[str, Text] = Field(default_factory=dict, description="Reader options.")
    schema_: str | None = Field(default=None, alias="schema", description="Schema as DDL.")


class Extends(SpecPart):
    """The settings file below this one."""

    file: str = Field(description="Settings file of any kind, relative to this file.")
    pipeline: str | None = Field(default=None, description="Key of the pipeline in a bundle.")
    target: str | None = Field(default=None, description="Target of a bundle.")


class CatalogSpec(SpecPart):
    """`catalog: {name: ..., type: hive, options: {...}}`, or `catalog: NAME`."""

    name: str | None = Field(default=None, description="Default catalog.")
    type: Literal["hive"] | None = Field(
        default=None,
        description="Register tables in a Hive metastore; default: tables have paths only.",
    )
    options: dict[str, Text] = Field(
        default_factory=dict,
        description="Settings of the metastore: `hive.*`, `javax.jdo.option.*`, `datanucleus.*`. "
        "Default: an embedded Derby database below `storage`.",
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        for key in options:
            if not key.startswith(_METASTORE_KEYS):
                raise ValueError(
                    f"has `{key}`: settings of a metastore start with "
                    f"{', '.join(f'`{prefix}`' for prefix in _METASTORE_KEYS)}"
                )
        return options

    @model_validator(mode="after")
    def _check_type(self) -> "CatalogSpec":
        if self.options and self.type is None:
            raise ValueError("has `options` without `type`")
        return self


class LintSpec(SpecPart):
    """`lint: {ignore: [...]}`."""

    ignore: list[str] = Field(
        default_factory=list, description="Ids of rules that are accepted everywhere."
    )


class _Settings(SpecPart):
    name: str | None = Field(default=None, description="Label of the pipeline.")
    storage: str | None = Field(
        default=None, description="Root of tables and checkpoints: a URI, or a path."
    )
    shared_storage: Truth | None = Field(
        default=None, description="Whether other pipelines use the same storage."
    )
    catalog: Annotated[CatalogSpec, shorthand(str | None, "name", CatalogSpec)] = Field(
        default_factory=CatalogSpec,
        description="Default catalog; or a mapping that also says where tables are registered.",
    )
    database: str | None = Field(default=None, description="Default schema; wins over `schema`.")
    schema_: str | None = Field(default=None, alias="schema", description="Default schema.")
    target: str | None = Field(default=None, description="Older name of `schema`.")
    configuration: dict[str, Text] = Field(
        default_factory=dict, description="Spark settings and custom keys, for `spark.conf.get`."
    )
    parameters: dict[str, Text] = Field(default_factory=dict, description="Named values.")
    libraries: list[Library] = Field(default_factory=list, description="Source files, in order.")
    root_path: str | None = Field(
        default=None, description="Folder that source files import from, besides their own."
    )
    environment: EnvironmentSpec | None = Field(
        default=None, description="Python packages that the source files need."
    )
    continuous: Truth | None = Field(
        default=None, description="Whether the pipeline runs until it is stopped."
    )
    development: Truth | None = Field(
        default=None, description="Whether the pipeline is under development."
    )
    quarantine: Truth | None = Field(
        default=None, description="Whether rows that violate a drop rule are kept."
    )
    master: str | None = Field(default=None, description="Spark master URL.")
    paths: dict[str, str] = Field(
        default_factory=dict,
        description="Path prefix in source files to local location.",
    )
    tables: dict[str, Annotated[TableSpec, shorthand(str, "path", TableSpec)]] = Field(
        default_factory=dict,
        description="External tables that the pipeline reads: a path, or a mapping.",
    )
    alerts: AlertsSpec = Field(
        default_factory=AlertsSpec, description="Alert rules and notifications."
    )
    metrics: MetricsSpec | None = Field(default=None, description="An endpoint for Prometheus.")
    lineage: Lineage = Field(default=None, description="OpenLineage events; true or a mapping.")
    events: EventsSpec | None = Field(
        default=None, description="Retention of the event log, and tables with its events."
    )
    opentelemetry: Telemetry = Field(
        default=None, description="Metrics and traces over OTLP; true or a mapping."
    )
    maintenance: Maintenance = Field(
        default=None, description="Compaction and VACUUM of tables; false or a mapping."
    )
    lint: LintSpec = Field(default_factory=LintSpec, description="For `penstock lint`.")
    defer_to: str | None = Field(
        default=None,
        description="Target or storage from which datasets are read that are unchanged there.",
    )

    @field_validator("storage")
    @classmethod
    def _check_storage(cls, storage: str | None) -> str | None:
        if storage is not None and "${" in storage:
            raise ValueError("has `${`: only a bundle, such as databricks.yml, has references")
        return storage

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, paths: dict[str, str]) -> dict[str, str]:
        try:
            PathMap(paths)
        except SpecError as error:
            raise ValueError(f"cannot be used: {error.message}") from None
        return paths

    @field_validator("tables")
    @classmethod
    def _check_tables(cls, tables: dict[str, TableSpec]) -> dict[str, TableSpec]:
        seen: dict[tuple[str, ...], str] = {}
        for name in tables:
            try:
                key = table_key(name)
            except ValueError:
                raise ValueError(f"has `{name}`, which is not a table name") from None
            if len(key) > 3:
                raise ValueError(f"has `{name}`: a name has at most three parts")
            if any("*" in part for part in key[:-1]) or ("*" in key[-1] and key[-1] != "*"):
                raise ValueError(f"has `{name}`: `*` must be the whole last part of a name")
            if key in seen:
                raise ValueError(f"has the same table twice: `{seen[key]}` and `{name}`")
            seen[key] = name
        return tables


class TargetSpec(_Settings):
    """Keys of a target, which override those of the file."""

    default: Truth | None = Field(default=None, description="Used if no target is named.")
    mode: Literal["development", "production"] | None = Field(
        default=None, description="`development` sets `development`."
    )


class PipelineSpec(_Settings):
    """All keys of a spec file. Every one may be left out."""

    extends: Annotated[Extends | None, shorthand(str, "file", Extends, None)] = Field(
        default=None,
        description="Another settings file (a bundle, a Lakeflow file, another spec file), which "
        "supplies the keys that this file does not set.",
    )
    targets: dict[str, TargetSpec | None] = Field(
        default_factory=dict, description="Environments: keys that override those of the file."
    )


def spec_of(document: Node) -> PipelineSpec:
    """Check the content of a spec file; keys that only Databricks' files have are left out.

    Errors have the line, and the nearest key or allowed values.
    """
    refuse_ingestion(document)
    content = document.plain()
    assert isinstance(content, dict)
    own = {key: value for key, value in content.items() if key not in FOREIGN_KEYS}
    try:
        spec = PipelineSpec.model_validate(own)
    except ValidationError as error:
        raise _invalid(error, document) from None
    for at, library in enumerate(spec.libraries):
        if len(library.model_fields_set) != 1:
            raise document.at(("libraries", at)).error(
                "an entry of `libraries` needs exactly one of `file`, `glob`, `notebook`"
            )
    return spec


def keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _invalid(error: ValidationError, document: Node) -> SpecError:
    """Return one error for all problems; its origin is the first location."""
    shown = document.origin.file
    problems: list[tuple[int, str]] = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path: KeyPath = detail["loc"]
        line = document.at(path).line
        key = ".".join(str(part) for part in path)
        if detail["type"] == "extra_forbidden":
            text = f"unknown key `{key}`{_suggestion(path)}"
        elif detail["type"] == "missing":
            text = f"the key `{key}` is missing"
        else:
            message = re.sub(r"^(?:Input|String) should", "must", detail["msg"])
            message = message.removeprefix("Value error, ")
            text = f"`{key}` {_PROBLEMS.get(detail['type'], message)}"
        problems.append((line, text))
    problems.sort()
    lines = "\n".join(f"  line {line}: {text}" for line, text in problems)
    if len(problems) == 1:
        message = f"{shown}: {problems[0][1]}"
    else:
        message = f"{shown} has {len(problems)} errors:\n{lines}"
    return SpecError("SPEC_INVALID", message, origin=SourceLocation(shown, problems[0][0]))


def _suggestion(path: KeyPath) -> str:
    model: type[BaseModel] = PipelineSpec
    parts = iter(path[:-1])
    for part in parts:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        if part in fields:
            annotation = fields[part].annotation
            model = next(_models_in(annotation), model)
            if get_origin(annotation) is dict:
                next(parts, None)  # the name of an entry, which may be that of a field
    known = keys_of(model)
    close = nearest(str(path[-1]), known)
    return f"; did you mean `{close}`?" if close else f"; the keys are {', '.join(known)}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
