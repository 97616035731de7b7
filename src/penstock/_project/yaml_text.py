"""YAML that remembers its lines: for errors that name the key and the line.

Values are text as it is written, except booleans and null: `0.10`, `08:30` and `2024-01-01` mean
the same to Spark as to the person who wrote them. In a bundle, only `true` and `false` are
booleans, as for Databricks' CLI: `country: NO` is a string. JSON is read by the same rules: it is
YAML but for tabs, and for characters that it escapes in two halves.
"""

from dataclasses import dataclass, field

import yaml

from penstock._model.origin import SourceLocation
from penstock.errors import SpecError

Key = str | int
KeyPath = tuple[Key, ...]

_MOST_PARTS = 100_000
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class YamlText:
    """A parsed file: leaves are strings, booleans or `None`; `lines` are counted from 1."""

    content: object
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest one around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse_yaml(text: str, file: str, *, is_bundle: bool = False) -> YamlText:
    """Parse the text of `file`, which is JSON if its name says so.

    It is part of a bundle if `is_bundle` says so or it has one of the keys of bundles.
    """
    lines: dict[KeyPath, int] = {}
    is_json = file.lower().endswith(".json")
    if is_json:
        text = text.replace("\t", " ")  # JSON has tabs between its parts only
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(loader, lines, file, is_bundle or _has_keys_of_bundles(node))
            content = None if node is None else reader.value(node, ())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "the text cannot be read"
        raise SpecError(
            "SPEC_SYNTAX",
            f"{file} is not valid {'JSON' if is_json else 'YAML'}: {problem}",
            origin=None if mark is None else SourceLocation(file, mark.line + 1),
            hint=(
                "JSON requires a comma between entries and double quotes around strings"
                if is_json
                else "YAML requires spaces, not tabs, and quotes around strings with `: ` or "
                "leading `*`"
            ),
        ) from None
    except RecursionError:
        raise SpecError("SPEC_SYNTAX", f"{file} refers to itself") from None
    return YamlText(content, lines)


class _Reader:
    def __init__(
        self, loader: yaml.SafeLoader, lines: dict[KeyPath, int], file: str, is_bundle: bool
    ) -> None:
        self._loader = loader
        self._lines = lines
        self._file = file
        self._is_bundle = is_bundle
        self._parts = 0

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self._parts += 1
        if self._parts > _MOST_PARTS:  # aliases of aliases grow without bounds
            raise SpecError("SPEC_SYNTAX", f"{self._file} has more than {_MOST_PARTS:,} parts")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._entry(node, entry, path, at) for at, entry in enumerate(node.value)]
        if node.tag == f"{_TAG}null":
            return None
        if node.tag == f"{_TAG}bool" and isinstance(node, yaml.ScalarNode):
            value = bool(self._loader.construct_yaml_bool(node))
            if not self._is_bundle or node.value.lower() in ("true", "false"):
                return value
        return _whole(str(node.value))

    def _entry(self, parent: yaml.Node, node: yaml.Node, path: KeyPath, at: int) -> object:
        self._lines[(*path, at)] = node.start_mark.line + 1
        return self.value(node, (*path, at))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError(
                    "SPEC_SYNTAX",
                    f"{self._file} has a key that is not a string",
                    origin=SourceLocation(self._file, line),
                )
            if key.value in seen:
                raise SpecError(
                    "SPEC_DUPLICATE_KEY",
                    f"{self._file} has the key `{key.value}` twice",
                    origin=SourceLocation(self._file, line),
                    hint="remove one of them",
                )
            seen.add(key.value)
        self._loader.flatten_mapping(node)  # `<<: *defaults`; own keys come last and win
        result: dict[str, object] = {}
        for key, entry in node.value:
            name = _whole(str(key.value))
            self._lines[(*path, name)] = key.start_mark.line + 1
            result[name] = self.value(entry, (*path, name))
        return result


def _has_keys_of_bundles(node: yaml.Node | None) -> bool:
    parts = node.value if isinstance(node, yaml.MappingNode) else []
    return any(
        key.value in ("bundle", "resources") and isinstance(part, yaml.MappingNode)
        for key, part in parts
    )


def _whole(text: str) -> str:
    """The text with characters that JSON escapes as two halves put together."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
