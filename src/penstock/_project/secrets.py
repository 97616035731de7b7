"""`${secret:NAME}` and `${secret:scope/key}`: values that stay out of spec files and source.

Looked up in this order; a value is used as it is and is not searched for references again:

1. environment `PENSTOCK_SECRET_<NAME>` or `PENSTOCK_SECRET_<SCOPE>_<KEY>`, in upper case, other
   characters than letters and digits as `_`
2. environment `<NAME>` as it is
3. the file that `PENSTOCK_SECRETS_FILE` names: YAML (`scope: {key: value}`, `scope/key: value` or
   `NAME: value`), or lines `NAME=value` if it does not end in `.yaml`, `.yml` or `.json`
4. the file `<scope>/<key>` or `<NAME>` in the folder that `PENSTOCK_SECRETS_DIR` names
5. the same in the folder `.secrets` of the project
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import yaml

from penstock._model.pipeline import PipelineSettings
from penstock._model.redaction import remember_named, remember_secret
from penstock.errors import SpecError

_REFERENCE = re.compile(r"\$\{secret:([^}]*)\}")
_NAME = re.compile(r"[\w\-][\w.\-]*(?:/[\w\-][\w.\-]*)?")
_ENV_LINE = re.compile(r"\s*(?:export\s+)?([\w.\-/]+)\s*=\s*(.*?)\s*")
_YAML_SUFFIXES = (".yaml", ".yml", ".json")
PLACEHOLDER = "penstock-missing-secret"
_allow_missing: ContextVar[bool] = ContextVar("penstock_allow_missing_secrets", default=False)


@contextmanager
def missing_secrets_allowed() -> Iterator[None]:
    """Resolve missing secrets to a placeholder; for checks only."""
    token = _allow_missing.set(True)
    try:
        yield
    finally:
        _allow_missing.reset(token)


def remember_settings(settings: PipelineSettings) -> None:
    """Mask the values of environment variables and settings that are named like secrets."""
    options = {} if settings.metastore is None else settings.metastore.options
    remember_named({**os.environ, **settings.configuration, **settings.parameters, **options})


def resolve_secrets(text: str, *, root: str | Path | None = None) -> str:
    """Return the text with every `${secret:...}` replaced, and remember the values for redaction.

    `root` is the folder of the project, for its `.secrets`; by default the working directory. An
    error lists the locations that were searched and never has a value.
    """
    if "${secret:" not in text:
        return text
    folder = Path.cwd() if root is None else Path(root)
    return _REFERENCE.sub(lambda match: _resolve(match.group(1), folder), text)


def _resolve(reference: str, root: Path) -> str:
    name = reference.strip()
    if not _NAME.fullmatch(name):
        raise SpecError(
            "SECRET_REFERENCE_INVALID",
            f"`${{secret:{reference}}}` is not a reference to a secret",
            hint="write ${secret:NAME} or ${secret:scope/key}, with letters, digits, `_`, `-`, `.`",
        )
    looked: list[str] = []
    for place, value in _places(name, root):
        if value is not None:
            remember_secret(value)
            return value
        looked.append(place)
    if _allow_missing.get():
        return PLACEHOLDER
    raise SpecError(
        "SECRET_NOT_FOUND",
        f"the secret `{name}` was not found; searched {', '.join(looked)}",
        hint=f"set the environment variable {_variable(name)}",
    )


def _variable(name: str) -> str:
    return "PENSTOCK_SECRET_" + re.sub(r"\W", "_", name).upper()


def _places(name: str, root: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the locations of a secret, for messages, and its value there."""
    for variable in (_variable(name), name):
        if "/" not in variable:
            yield f"environment variable {variable}", os.environ.get(variable) or None
    if file := os.environ.get("PENSTOCK_SECRETS_FILE"):
        yield f"file {file}", _parse_file(Path(file)).get(name)
    mounted = os.environ.get("PENSTOCK_SECRETS_DIR")
    for folder in (*([mounted] if mounted else []), str(root / ".secrets")):
        path = Path(folder, name)
        yield f"file {path}", _text_of(path)


def _parse_file(path: Path) -> dict[str, str]:
    """Return names and values. Errors of the parsers quote the text, so they are never chained."""
    problem = "cannot be read"
    try:
        text = path.read_text(encoding="utf-8")
        problem = "is not valid YAML"
        if path.suffix.lower() not in _YAML_SUFFIXES:
            return _parse_lines(text)
        # The base loader keeps every value as written, such as `0123`.
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (builds text only)
    except (OSError, ValueError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        raise SpecError(
            "SECRETS_FILE_INVALID",
            f"the secrets file {path} {problem}",
            hint="PENSTOCK_SECRETS_FILE must name a YAML dictionary or lines `NAME=value`",
        )
    secrets: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            secrets.update(
                {f"{key}/{inner}": text for inner, text in value.items() if isinstance(text, str)}
            )
        elif isinstance(value, str):
            secrets[str(key)] = value
    return secrets


def _parse_lines(text: str) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for line in text.splitlines():
        match = _ENV_LINE.fullmatch(line)
        if match:
            name, value = match.groups()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
                value = value[1:-1]
            secrets[name] = value
    return secrets


def _text_of(path: Path) -> str | None:
    try:
        # Most mounted files end in a line break that is not part of the value.
        return path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, ValueError):
        raise SpecError("SECRETS_FILE_INVALID", f"the secret file {path} cannot be read") from None
