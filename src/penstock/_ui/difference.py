"""Differences between two updates: definitions, schemas, rules, durations and rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"

_DATASET_FACTS = (("kind", "kind"), ("format", "format"), ("file", "declared in"))
_FLOW_FACTS = (
    ("target", "target"),
    ("type", "kind"),
    ("once", "once"),
    ("inputs", "reads"),
    ("external_inputs", "external sources"),
    ("comment", "comment"),
)
_NUMBERS = ("rows", "quarantined", "dropped", "failed_checks", "busy_seconds", "batches")

Outline = Mapping[str, Any]


def differences(before: Outline, after: Outline) -> dict[str, Any]:
    """Compare two updates by `UpdateModel.outline()`; changed definitions are first.

    Datasets and flows have `change`, `facts`, `columns`, `rules`, `lineage` (columns with changed
    inputs) and `numbers`, each with the values before and after.
    """
    return {
        "properties": _facts(
            before["head"]["properties"],
            after["head"]["properties"],
            [
                (name, name.replace("_", " "))
                for name in (*before["head"]["properties"], *after["head"]["properties"])
                # Differs in each update.
                if name != "spark_log"
            ],
        ),
        "datasets": _paired(before["datasets"], after["datasets"], "id", _dataset),
        "flows": _paired(before["flows"], after["flows"], "name", _flow),
    }


def _paired(
    before: Sequence[Outline],
    after: Sequence[Outline],
    key: str,
    compare: Callable[[Outline, Outline], dict[str, Any]],
) -> list[dict[str, Any]]:
    old, new = {item[key]: item for item in before}, {item[key]: item for item in after}
    pairs = []
    for name in dict.fromkeys((*new, *old)):
        earlier, later = old.get(name), new.get(name)
        shown: dict[str, Any] = {
            "id": name,
            "name": (later or earlier or {})["name"],
            "numbers": _numbers(earlier or {}, later or {}),
            "states": [earlier and earlier["state"], later and later["state"]],
        }
        if earlier is None or later is None:
            shown |= {"change": ADDED if earlier is None else REMOVED}
        else:
            parts = compare(earlier, later)
            shown |= {**parts, "change": CHANGED if any(parts.values()) else SAME}
        pairs.append(shown)
    return sorted(pairs, key=lambda shown: shown["change"] == SAME)


def _dataset(before: Outline, after: Outline) -> dict[str, Any]:
    # Without the line number, which changes with any code above it.
    old, new = (
        {**side, "file": side["declared_at"].rpartition(":")[0]} for side in (before, after)
    )
    return {
        "facts": _facts(old, new, _DATASET_FACTS),
        "columns": _items(_column_texts(before), _column_texts(after)),
        "rules": _items(_rule_texts(before), _rule_texts(after)),
        "lineage": _other_lineage(before["lineage"], after["lineage"]),
    }


def _flow(before: Outline, after: Outline) -> dict[str, Any]:
    return {"facts": _facts(before, after, _FLOW_FACTS)}


def _facts(
    before: Outline, after: Outline, names: Sequence[tuple[str, str]]
) -> list[dict[str, str]]:
    old, new = ({label: _text(side.get(name)) for name, label in names} for side in (before, after))
    return _items(old, new)


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))
    return str(value)


def _items(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {"name": name, "before": before.get(name, ""), "after": after.get(name, "")}
        for name in dict.fromkeys((*after, *before))
        if before.get(name) != after.get(name)
    ]


def _column_texts(dataset: Outline) -> dict[str, str]:
    """Columns of any depth by their path, with type, nullability and comment."""
    strings: dict[str, str] = {}
    path: list[str] = []
    for column in dataset["columns"]:
        path[column["depth"] :] = [column["name"]]
        text = column["type"] + ("" if column["nullable"] else " NOT NULL")
        strings[".".join(path)] = text + (f" -- {column['comment']}" if column["comment"] else "")
    return strings


def _rule_texts(dataset: Outline) -> dict[str, str]:
    return {
        rule["name"]: f"{rule['action']}: {rule['condition']}"
        for rule in dataset["rules"]
        if rule["condition"]
    }


def _other_lineage(before: Any, after: Any) -> list[str]:
    """Columns of both updates with changed inputs; empty if one has no lineage."""
    if before is None or after is None:
        return []
    old, new = before["columns"], after["columns"]
    changed = [name for name in new if name in old and old[name] != new[name]]
    if before["influences"] != after["influences"]:
        changed.append("filters, joins and grouping")
    return changed


def _numbers(before: Outline, after: Outline) -> dict[str, list[Any]]:
    return {
        name: [before.get(name), after.get(name)]
        for name in _NUMBERS
        if name in before or name in after
    }
