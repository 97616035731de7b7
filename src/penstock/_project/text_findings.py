"""Needs that single texts tell: configuration keys, secrets and paths in a string or a line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from penstock._model.origin import SourceLocation

_NOWHERE = SourceLocation("", 1)


class FindingKind(Enum):
    KEY = auto()
    KEY_SET = auto()
    WIDGET = auto()
    WIDGET_DEFAULT = auto()
    SECRET = auto()
    PATH = auto()
    IMPORT = auto()
    PACKAGE = auto()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a source needs.

    Attributes:
        kind: What it is.
        name: Key, `scope/key`, path, module or package.
        line: Of the text that was searched, counted from 1.
        has_default: Whether the source goes on without it.
        detail: Of a path, what it begins with.
        origin: Filled in where the file is known.
    """

    kind: FindingKind
    name: str
    line: int = 1
    has_default: bool = False
    detail: str = ""
    origin: SourceLocation = _NOWHERE


_PATH = re.compile(
    r"(?:(?P<scheme>dbfs|abfss?|wasbs?|s3[an]?|gs|adl|hdfs):/"
    r"|(?P<folder>/Volumes|/mnt|/dbfs|/FileStore|/databricks-datasets|/Workspace|/Repos)(?=/|$))"
)
_REFERENCE = re.compile(r"\$\{\s*([\w.\-:/]+)\s*\}")
_FOREIGN_REFERENCES = ("env:", "system:", "bundle.", "var.", "workspace.", "resources.")
# Of these Spark always has a value.
_OF_SPARK = ("spark.sql.", "spark.app.", "spark.master", "spark.driver.", "spark.databricks.delta.")


def path_in(text: str, line: int = 1) -> Finding | None:
    """Return a string literal if it is a path of Databricks or of an object store."""
    match = _PATH.match(text)
    if match is None or "\n" in text:
        return None
    scheme = match.group("folder") or f"{match.group('scheme')}:"
    return Finding(kind=FindingKind.PATH, name=text, line=line, detail=scheme)


def references_in(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield the `${key}` and `${secret:...}` references in a string."""
    for match in _REFERENCE.finditer(text):
        at = line + text.count("\n", 0, match.start())
        name = match.group(1)
        if name.startswith("secret:"):
            yield Finding(kind=FindingKind.SECRET, name=name.removeprefix("secret:"), line=at)
        elif not name.startswith(_FOREIGN_REFERENCES):
            yield key(name, line=at)


def secret_references_in(text: str, line: int = 1) -> Iterator[Finding]:
    """Yield only the `${secret:...}` references in a string."""
    return (item for item in references_in(text, line) if item.kind is FindingKind.SECRET)


def key(name: str, *, line: int, has_default: bool = False) -> Finding:
    is_of_spark = name.startswith(_OF_SPARK)
    return Finding(
        kind=FindingKind.KEY, name=name, line=line, has_default=has_default or is_of_spark
    )
