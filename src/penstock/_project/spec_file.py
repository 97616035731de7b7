"""The spec file: `pipeline.yaml`, or the `spark-pipeline.yml` of open-source Spark."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock._api.arguments import nearest
from penstock._model.origin import SourceLocation, source_location
from penstock._project.yaml_text import KeyPath, YamlText, parse_yaml
from penstock.errors import SpecError

SPEC_NAMES = ("pipeline.yaml", "pipeline.yml", "spark-pipeline.yaml", "spark-pipeline.yml")

_PROBLEMS = {
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileLibrary(_Part):
    """`file: {path: ...}`."""

    path: str


class GlobLibrary(_Part):
    """`glob: {include: ...}`."""

    include: str


class Library(_Part):
    """One entry of `libraries`: exactly one of its keys."""

    file: FileLibrary | None = None
    glob: GlobLibrary | None = None
    notebook: FileLibrary | None = None


class PipelineSpec(_Part):
    """All keys of a spec file. Every one may be left out.

    Attributes:
        name: Label of the pipeline.
        storage: Root URI, or a path relative to the spec file.
        catalog: Default catalog.
        database: Default schema; wins over `schema`.
        schema_: The same, spelled `schema`.
        configuration: Spark and free keys.
        libraries: Source files.
        quarantine: Whether rows that break a drop rule are kept.
        master: Spark master URL.
    """

    name: str | None = None
    storage: str | None = None
    catalog: str | None = None
    database: str | None = None
    schema_: str | None = Field(default=None, alias="schema")
    configuration: dict[str, str] = Field(default_factory=dict)
    libraries: list[Library] = Field(default_factory=list)
    quarantine: bool | None = None
    master: str | None = None

    @field_validator("configuration", mode="before")
    @classmethod
    def _write_out_booleans(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        words = {True: "true", False: "false"}
        return {
            key: words[entry] if isinstance(entry, bool) else entry for key, entry in value.items()
        }


def find_spec(folder: Path) -> Path | None:
    """Return the spec file of a folder or of the nearest one above it.

    Raises:
        SpecError: One folder has several.
    """
    for candidate in (folder, *folder.parents):
        found = [candidate / name for name in SPEC_NAMES if (candidate / name).is_file()]
        if len(found) > 1:
            names = " and ".join(path.name for path in found)
            raise SpecError(
                "SPEC_AMBIGUOUS",
                f"the folder {candidate} has several spec files: {names}",
                hint="keep one of them, or name one with --spec",
            )
        if found:
            return found[0]
    return None


def read_spec(path: Path) -> PipelineSpec:
    """Read and check a spec file.

    Raises:
        SpecError: With file, line, key and the nearest known key or the allowed values.
    """
    shown = source_location(str(path), 1).file
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError("SPEC_NOT_READABLE", f"{shown} cannot be read: {error}") from error
    parsed = parse_yaml(text, shown)
    content = {} if parsed.content is None else parsed.content
    if not isinstance(content, dict):
        raise SpecError(
            "SPEC_INVALID",
            f"{shown} must be a mapping of keys to values",
            origin=SourceLocation(shown, 1),
            hint=f"its keys are {', '.join(_keys_of(PipelineSpec))}",
        )
    try:
        spec = PipelineSpec.model_validate(content)
    except ValidationError as error:
        raise _invalid(error, parsed, shown) from None
    for at, library in enumerate(spec.libraries):
        if len(library.model_fields_set) != 1:
            raise SpecError(
                "SPEC_INVALID",
                f"{shown}: an entry of `libraries` needs exactly one of `file`, `glob`",
                origin=SourceLocation(shown, parsed.line_of(("libraries", at))),
            )
    return spec


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _invalid(error: ValidationError, parsed: YamlText, shown: str) -> SpecError:
    """One error for all that is wrong; its origin is the first of the places."""
    problems: list[tuple[int, str]] = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path: KeyPath = detail["loc"]
        line = parsed.line_of(path)
        key = ".".join(str(part) for part in path)
        if detail["type"] == "extra_forbidden":
            text = f"unknown key `{key}`{_suggestion(path)}"
        elif detail["type"] == "missing":
            text = f"the key `{key}` is missing"
        else:
            text = f"`{key}` {_PROBLEMS.get(detail['type'], detail['msg'])}"
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
    if path[0] == "libraries":
        inner: dict[str, type[BaseModel]] = {
            "file": FileLibrary,
            "glob": GlobLibrary,
            "notebook": FileLibrary,
        }
        model = Library if len(path) <= 3 else inner.get(str(path[2]), Library)
    known = _keys_of(model)
    close = nearest(str(path[-1]), known)
    return f"; did you mean `{close}`?" if close else f"; the keys are {', '.join(known)}"
