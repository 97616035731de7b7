"""Settings of a pipeline, from the command line, the environment, its spec file and defaults.

The one precedence, for every setting: argument, then environment, then spec file, then default.

=============  =====================  ==============  ==================================
setting        environment            spec file       default
=============  =====================  ==============  ==================================
name           PENSTOCK_NAME          name            name of the project's folder
storage        PENSTOCK_STORAGE       storage         `.penstock` in the project's folder
catalog        PENSTOCK_CATALOG       catalog         spark_catalog
schema         PENSTOCK_SCHEMA        database        default
master         PENSTOCK_MASTER        master          Spark's own conf, else local[*]
quarantine     PENSTOCK_QUARANTINE    quarantine      true
configuration  -                      configuration   (merged key by key)
sources        -                      libraries       `*.py` of the folder that import the API
=============  =====================  ==============  ==================================

The project's folder is that of the spec file, else that of the source. References to secrets stay
references here: settings are shown in plans.
"""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from penstock._model.pipeline import PipelineSettings
from penstock._project.spec_file import SPEC_NAMES, Library, PipelineSpec, find_spec, read_spec
from penstock.errors import SpecError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]+):(.*)")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def load_settings(
    start: Path,
    *,
    spec: Path | None = None,
    name: str | None = None,
    storage: str | None = None,
    configuration: Mapping[str, str] | None = None,
    source: Path | None = None,
    catalog: str | None = None,
    schema: str | None = None,
    master: str | None = None,
    quarantine: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> PipelineSettings:
    """Return the settings of the pipeline that `start` and the arguments mean.

    Args:
        start: Folder from which a spec file is searched, upward; paths of arguments and of the
            environment are relative to it. A file means its folder, with the file as source.
        spec: Spec file, or its folder, instead of searching.
        name: See the table of this module, as for all that follow.
        storage: URI or path.
        configuration: Wins over the spec file's, key by key.
        source: A `.py` file or a folder, instead of the sources that the spec file lists. A folder
            with a spec file of its own is that project.
        catalog: Default catalog.
        schema: Default schema.
        master: Spark master URL.
        quarantine: Whether rows that break a drop rule are kept.
        environ: Environment; that of the process if not given.

    Raises:
        SpecError: Something does not exist, is ambiguous or is not allowed.
    """
    environment = os.environ if environ is None else environ
    start = start.absolute()
    if start.is_file():
        start, source = start.parent, start if source is None else source
    if not start.is_dir():
        raise SpecError("SOURCE_NOT_FOUND", f"there is no folder {start}", hint=nearest_file(start))
    source = None if source is None else _existing_source(start / source)
    folder = start.resolve() if source is None else _folder_of(source)
    spec_path = find_spec(folder) if spec is None else _existing_spec(start / spec)
    read = PipelineSpec() if spec_path is None else read_spec(spec_path)
    root = folder if spec_path is None else spec_path.parent.resolve()
    given_storage = storage or environment.get("PENSTOCK_STORAGE")
    return PipelineSettings(
        name=_checked_name(name or environment.get("PENSTOCK_NAME") or read.name or root.name),
        storage=(
            storage_uri(given_storage, start.resolve())
            if given_storage
            else storage_uri(read.storage or ".penstock", root)
        ),
        root=str(root),
        catalog=(catalog or environment.get("PENSTOCK_CATALOG") or read.catalog or "spark_catalog"),
        schema=(
            schema
            or environment.get("PENSTOCK_SCHEMA")
            or read.database
            or read.schema_
            or "default"
        ),
        configuration=MappingProxyType({**read.configuration, **(configuration or {})}),
        source_patterns=_patterns(source, read.libraries, root),
        quarantine=_first_truth(quarantine, environment, read.quarantine),
        master=master or environment.get("PENSTOCK_MASTER") or read.master,
    )


def storage_uri(text: str, folder: Path) -> str:
    """Return an absolute storage URI; a path is taken relative to `folder`.

    Raises:
        SpecError: A URI without a place, or a `file:` URI that is relative.
    """
    match = _SCHEME.fullmatch(text.strip())
    if match is None:
        # Hadoop's Path does not decode `%20`, so the path is not encoded.
        return "file://" + os.path.normpath(folder / Path(text.strip()).expanduser())
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        path = rest.removeprefix("//").removeprefix("localhost")
        if path.startswith("/"):
            return "file://" + os.path.normpath("/" + path.lstrip("/"))
        problem = "is relative"
    elif rest.strip("/"):
        return f"{match.group(1)}:{rest.rstrip('/')}"
    else:
        problem = "names no place"
    raise SpecError(
        "STORAGE_INVALID",
        f"the storage `{text}` {problem}",
        hint="write an absolute URI (file:///data/orders, s3a://bucket/orders), or a plain path",
    )


def _folder_of(place: Path) -> Path:
    return place.parent if place.is_file() else place


def _existing_source(path: Path) -> Path:
    if not path.exists():
        raise SpecError(
            "SOURCE_NOT_FOUND",
            f"there is no file or folder {path}",
            hint=nearest_file(path),
        )
    return path.resolve()


def _existing_spec(path: Path) -> Path:
    if path.is_dir():
        found = [path / name for name in SPEC_NAMES if (path / name).is_file()]
        if len(found) == 1:
            return found[0]
        problem = f"the folder {path} has {'no' if not found else 'more than one'} spec file"
        raise SpecError("SPEC_NOT_FOUND", problem, hint=f"it is named {' or '.join(SPEC_NAMES)}")
    if not path.is_file():
        raise SpecError("SPEC_NOT_FOUND", f"there is no spec file {path}", hint=nearest_file(path))
    return path


def nearest_file(path: Path) -> str | None:
    """Return a hint with the name in the same folder that is most like a missing one."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    names = [entry.name for entry in path.parent.iterdir()]
    found = get_close_matches(path.name, names, n=1)
    return f"did you mean `{path.parent / found[0]}`?" if found else None


def _checked_name(name: str) -> str:
    if not name.strip() or any(letter in "/\\" or not letter.isprintable() for letter in name):
        raise SpecError(
            "SPEC_INVALID",
            f"the pipeline's name {name!r} is blank, or has a slash or a control character",
            hint="give it a `name` in the spec file, or with --name",
        )
    return name.strip()


def _first_truth(argument: bool | None, environ: Mapping[str, str], from_spec: bool | None) -> bool:
    if argument is not None:
        return argument
    if text := environ.get("PENSTOCK_QUARANTINE"):
        if text.lower() not in _TRUTHS:
            raise SpecError(
                "SPEC_INVALID", f"PENSTOCK_QUARANTINE is {text!r}, but must be true or false"
            )
        return _TRUTHS[text.lower()]
    return True if from_spec is None else from_spec


def _patterns(source: Path | None, libraries: list[Library], root: Path) -> tuple[str, ...]:
    if source is not None and source != root:
        shown = str(source.relative_to(root)) if source.is_relative_to(root) else str(source)
        return (shown if source.is_file() else f"{shown}/**",)
    patterns = []
    for library in libraries:
        if library.file is not None:
            patterns.append(library.file.path)
        elif library.glob is not None:
            patterns.append(library.glob.include)
        elif library.notebook is not None:
            raise SpecError(
                "SOURCE_NOT_SUPPORTED",
                f"`{library.notebook.path}` is listed as a notebook, which is not supported yet",
                hint="list a Python file with `file: {path: ...}`",
            )
    return tuple(patterns)
