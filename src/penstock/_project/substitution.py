"""References such as `${var.catalog}` and `${bundle.target}` in the files of a bundle.

A string that consists of one reference takes its value, which may be a list or a mapping. Values
that are only available in a workspace are kept as references, with a note. References of other
kinds, such as `${secret:scope/key}`, are not changed.
"""

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock._model.missing import assumed_value
from penstock._model.similar import suggested
from penstock._project.documents import Node, text_of
from penstock.errors import SpecError

_REFERENCE = re.compile(
    r"\$\{((?:var|variables|bundle|workspace|resources|artifacts)[.\w\[\]-]*)\}"
)
# Older files prepend `/Workspace` to a path that already has it; files are synced to `files`.
_FILES = re.compile(r"(?:/Workspace/?)?\$\{workspace\.root_path\}/files\b")
_WORKSPACE = re.compile(r"/Workspace/?(?=\$\{workspace\.(?:file|root|resource)_path\})")
_STEP = re.compile(r"[^.\[\]]+")
_NESTED = re.compile(r"\$\{[^{}]*\$\{")
_DEEPEST = 30


@dataclass
class Substitution:
    """Fills in the references of one bundle and target.

    `tree` has all files of the bundle, with the overrides of the target. `root` replaces the folder
    of its files in the workspace. `overrides` are from `variable-overrides.json` of the target;
    `environ` has `BUNDLE_VAR_<name>` and the user's name. `notes` are references that could not be
    filled in.
    """

    tree: Node
    root: Path
    target: str
    variables: Node | None
    overrides: Node | None
    environ: Mapping[str, str]
    notes: dict[str, None] = field(default_factory=dict)

    def fill(self, part: Node, _open: tuple[str, ...] = ()) -> Node:
        """Return a part with all of its references filled in."""
        if isinstance(part.value, dict):
            filled = {key: self.fill(inside, _open) for key, inside in part.value.items()}
            return Node(filled, part.file, part.line)
        if isinstance(part.value, list):
            entries = [self.fill(inside, _open) for inside in part.value]
            return Node(entries, part.file, part.line)
        if not isinstance(part.value, str) or "${" not in part.value:
            return part
        text = _FILES.sub("${workspace.file_path}", part.value)
        text = _WORKSPACE.sub("", text)
        whole = _REFERENCE.fullmatch(text.strip())
        if whole is not None:
            node = self._value(whole.group(1), part, _open)
            value = text if node is None else node.value
            return Node(value, part.file, part.line)
        filled_text = _REFERENCE.sub(lambda match: self._text(match, part, _open), text)
        result = Node(filled_text, part.file, part.line)
        # `${var.${bundle.target}_catalog}`: the outer name contains the inner reference.
        is_nested = _NESTED.search(part.value) is not None and filled_text != text
        return self.fill(result, _open) if is_nested else result

    def _text(self, match: re.Match[str], part: Node, opened: tuple[str, ...]) -> str:
        node = self._value(match.group(1), part, opened)
        if node is None:
            return match.group(0)
        if isinstance(node.value, dict | list):
            raise part.error(
                f"`{match.group(0)}` is a {'mapping' if isinstance(node.value, dict) else 'list'}"
                " and cannot be inserted into a string"
            )
        return text_of(node, match.group(1)) or ""

    def _value(self, reference: str, part: Node, opened: tuple[str, ...]) -> Node | None:
        if reference in opened or len(opened) > _DEEPEST:
            raise _variable_error(
                part, f"`${{{reference}}}` refers to itself: {' -> '.join([*opened, reference])}"
            )
        inner = (*opened, reference)
        kind, _, rest = reference.partition(".")
        if kind in ("var", "variables"):
            name, *steps = _STEP.findall(rest) or [""]
            if kind == "variables" and steps[:1] == ["value"]:
                steps = steps[1:]
            node = self._variable(name, part)
            node = node and self.fill(node, inner).get(*steps)
        else:
            known = self._known(reference)
            if known is not None:
                return Node(known, part.file, part.line)
            node = self.tree.get(*_STEP.findall(reference))
            node = node and self.fill(node, inner)
        if node is None or node.value is None:
            self.notes[f"`${{{reference}}}` is known in the workspace only and not replaced"] = None
            return None
        return node

    def _variable(self, name: str, part: Node) -> Node | None:
        declared = self.tree.get("variables")
        names = list(declared.value) if declared and isinstance(declared.value, dict) else []
        variable = self.environ.get(f"BUNDLE_VAR_{name}")
        if variable is not None:
            return Node(variable, part.file, part.line)
        if name not in names:
            declare = f"declare it below `variables`, or set BUNDLE_VAR_{name}"
            raise _variable_error(
                part,
                f"the bundle has no variable `{name}`",
                hint=suggested(name, names, f"it has {', '.join(names)}" if names else declare),
            )
        is_looked_up = False
        for mapping in (self.overrides, self.variables, declared):
            source = mapping and mapping.get(name)
            value, looked_up = _assigned(source) if source else (None, False)
            is_looked_up = is_looked_up or looked_up
            if value is not None:
                return value
        if is_looked_up:
            return None
        assumed = assumed_value(f"var.{name}")
        if assumed is not None:
            return Node(assumed, part.file, part.line)
        raise _variable_error(
            part,
            f"the variable `{name}` has no value for target `{self.target}`",
            hint=f"set the environment variable BUNDLE_VAR_{name}, or declare a `default`",
        )

    def _known(self, reference: str) -> str | None:
        """Local values for properties of the workspace."""
        match reference.split("."):
            case ["bundle", "target" | "environment"]:
                return self.target
            case ["bundle", "name"] if self.tree.get("bundle", "name") is None:
                return self.root.name
            case ["workspace", "file_path" | "root_path" | "resource_path"]:
                return str(self.root)
            case ["workspace", "current_user", "userName" | "user_name"]:
                return self._user
            case ["workspace", "current_user", "short_name" | "domain_friendly_name"]:
                return re.sub(r"\W", "_", self._user.partition("@")[0])
            case ["resources", kind, key, "id" | "full_name" | "volume_path" as wanted]:
                return self._identity(kind, key, wanted)
        return None

    @property
    def _user(self) -> str:
        return self.environ.get("USER") or self.environ.get("USERNAME") or local_user() or "user"

    def _identity(self, kind: str, key: str, wanted: str) -> str | None:
        """Full names of schemas and volumes, the only attributes known without a workspace."""
        resource = self.tree.get("resources", kind, key)
        if resource is None:
            return None
        steps = {
            "schemas": ("catalog_name", "name"),
            "volumes": ("catalog_name", "schema_name", "name"),
        }.get(kind, ())
        parts = [text_of(self.fill(part), step) for step in steps if (part := resource.get(step))]
        names = [part for part in parts if part is not None]
        if not steps or len(names) < len(steps):
            return None
        return "/".join(["/Volumes", *names]) if wanted == "volume_path" else ".".join(names)


def local_user() -> str:
    """The name of the user on this machine; blank if there is none for the user's id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container
        return ""


def _assigned(source: Node) -> tuple[Node | None, bool]:
    """The value that a document assigns to a variable, and whether it is a lookup."""
    if isinstance(source.value, dict) and (
        set(source.value) & {"default", "lookup", "description", "type"} or not source.value
    ):
        return source.get("default"), source.get("lookup") is not None
    return source, False


def _variable_error(part: Node, message: str, *, hint: str | None = None) -> SpecError:
    return SpecError(
        "BUNDLE_VARIABLE_INVALID", f"{part.origin.file}: {message}", origin=part.origin, hint=hint
    )
