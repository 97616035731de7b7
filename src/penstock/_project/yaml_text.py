"""Reads YAML and JSON files: errors name the key and the line.

Values are strings as written, except booleans and null: `0.10`, `08:30` and `2024-01-01` are passed
to Spark unchanged. Only `true` and `false` are booleans, as in Databricks' CLI: `country: NO` is a
string. JSON is read by the same rules: it is YAML except for tabs and escaped surrogate pairs.
"""

from pathlib import Path

import yaml

from penstock._model.origin import SourceLocation, source_location
from penstock._project.documents import Node
from penstock.errors import SpecError

_MOST_PARTS = 100_000
_DEEPEST = 60
_TAG = "tag:yaml.org,2002:"


def read_document(path: Path) -> Node:
    """Read a file, as JSON if its suffix is `.json`; an empty file is an empty mapping."""
    shown = source_location(str(path), 1).file
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            "SPEC_NOT_READABLE",
            f"{shown} cannot be read: {error}",
            hint="save it as UTF-8" if isinstance(error, UnicodeDecodeError) else None,
        ) from error
    is_json = path.suffix.lower() == ".json"
    if is_json:
        text = text.replace("\t", " ")  # JSON has tabs between its tokens only
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            reader = _Reader(loader, path, shown)
            document = Node(None, path, 1) if root is None else reader.node(root, 1, 0)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "the text cannot be read"
        raise SpecError(
            "SPEC_SYNTAX",
            f"{shown} is not valid {'JSON' if is_json else 'YAML'}: {problem}",
            origin=None if mark is None else SourceLocation(shown, mark.line + 1),
            hint=(
                "JSON requires a comma between entries and double quotes around strings"
                if is_json
                else "YAML requires spaces, not tabs, and quotes around strings with `: ` or "
                "leading `*`"
            ),
        ) from None
    except RecursionError:
        raise SpecError(
            "SPEC_SYNTAX", f"{shown} is nested too deeply, or refers to itself"
        ) from None
    if reader.too_deep:
        raise reader.error(reader.too_deep, f"{shown} is nested too deeply")
    if document.value is None:
        return Node({}, path, 1)
    if not isinstance(document.value, dict):
        raise SpecError(
            "SPEC_INVALID",
            f"{shown} must be a mapping of keys to values",
            origin=SourceLocation(shown, 1),
            hint="write `key: value` lines, such as `name: orders`",
        )
    return document


class _Reader:
    """Makes the parts of a document; `too_deep` is the line of one that is nested too deeply."""

    def __init__(self, loader: yaml.SafeLoader, path: Path, shown: str) -> None:
        self._loader = loader
        self._path = path
        self._shown = shown
        self._parts = 0
        self.too_deep = 0

    def node(self, node: yaml.Node, line: int, depth: int) -> Node:
        self._parts += 1
        if self._parts > _MOST_PARTS:  # aliases of aliases grow without bounds
            raise SpecError("SPEC_SYNTAX", f"{self._shown} has more than {_MOST_PARTS:,} parts")
        if depth > _DEEPEST:
            self.too_deep = self.too_deep or line
        value: dict[str, Node] | list[Node] | str | bool | None
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, depth)
        elif isinstance(node, yaml.SequenceNode):
            entries: list[yaml.Node] = node.value
            value = [self.node(part, _line(part), depth + 1) for part in entries]
        else:
            value = self._scalar(node)
        return Node(value, self._path, line)

    def error(self, line: int, message: str) -> SpecError:
        return SpecError("SPEC_SYNTAX", message, origin=SourceLocation(self._shown, line))

    def _scalar(self, node: yaml.Node) -> str | bool | None:
        if node.tag == f"{_TAG}null":
            return None
        text = str(node.value)
        if node.tag == f"{_TAG}bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return _whole(text)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Node]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(_line(key), f"{self._shown} has a key that is not a string")
            if key.value in seen:
                raise SpecError(
                    "SPEC_DUPLICATE_KEY",
                    f"{self._shown} has the key `{key.value}` twice",
                    origin=SourceLocation(self._shown, _line(key)),
                    hint="remove one of them",
                )
            seen.add(key.value)
        self._loader.flatten_mapping(node)  # `<<: *defaults`; own keys come last and win
        return {
            _whole(str(key.value)): self.node(part, _line(key), depth + 1)
            for key, part in node.value
        }


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _whole(text: str) -> str:
    """The string with surrogate pairs, as escaped in JSON, combined into characters."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
