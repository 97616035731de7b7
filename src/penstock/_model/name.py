"""Names of datasets: as written by the user, and resolved against the pipeline's defaults."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s.`]+))\s*")


def split_name(text: str) -> tuple[str, ...]:
    """Split a one- to three-part name, honouring backticks: ``a.`b.c` `` gives `("a", "b.c")`.

    Raises:
        ValueError: The string is empty or not a name.
    """
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(f"not a dataset name: {text!r}")
        quoted, bare = match.groups()
        parts.append(quoted.replace("``", "`") if quoted is not None else bare)
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise ValueError(f"not a dataset name: {text!r}")
        position += 1


def comparable_parts(text: str) -> tuple[str, ...] | None:
    """The parts of a name in lower case, without `LIVE.`; `None` if the string is not a name."""
    try:
        parts = tuple(part.lower() for part in split_name(text))
    except ValueError:
        return None
    return parts[1:] if len(parts) > 1 and parts[0] == "live" else parts


def find_name(text: str, names: Iterable[str]) -> str | None:
    """Find the declared name of a flow or sink, ignoring case and backticks."""
    known, wanted = tuple(names), plain_name(text)
    return text if text in known else next((n for n in known if plain_name(n) == wanted), None)


def plain_name(text: str) -> str:
    """A name for comparison, without backticks, which would need quotes in a shell."""
    return text.replace("`", "").lower()


@dataclass(frozen=True)
class DatasetName:
    """A resolved name: catalog, schema and name, each as first written.

    Two names refer to the same dataset if their keys are equal: Spark's identifiers are
    case-insensitive.
    """

    catalog: str
    schema: str
    name: str

    @property
    def key(self) -> str:
        """Canonical form for comparisons and lookups: lower case, joined by dots."""
        return ".".join(part.lower() for part in (self.catalog, self.schema, self.name))

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.name}"


def resolve_name(text: str, *, catalog: str, schema: str) -> DatasetName:
    """Complete a name by the pipeline's defaults; a leading `LIVE.` (any case) is removed."""
    parts = split_name(text)
    if len(parts) > 1 and parts[0].lower() == "live":
        parts = parts[1:]
    if len(parts) > 3:
        raise ValueError(f"a dataset name has at most three parts: {text!r}")
    filled = (catalog, schema, *parts) if len(parts) == 1 else parts
    if len(filled) == 2:
        filled = (catalog, *filled)
    return DatasetName(*filled)


def path_segment(name: str) -> str:
    """Encode a name as a folder name that is valid in all file systems and URIs.

    `segment_name` is the inverse. ASCII letters, digits, `_` and `-` are kept; the UTF-8 bytes of
    all other characters become `=XX` (not `%XX`, which URI-based readers would decode). Upper case
    is kept: names within one pipeline differ by more than case, so their folders do not collide on
    case-insensitive disks.
    """
    quoted = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if quoted.startswith("_"):
        # Spark treats files below `_x` as hidden.
        quoted = "%5F" + quoted[1:]
    return quoted.replace("%", "=")


def segment_name(segment: str) -> str:
    return unquote(segment.replace("=", "%"))
