"""Classes that other packages add by entry points, in addition to the built-in ones."""

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from penstock._model.exception_text import first_line
from penstock.errors import SetupError


def by_format(
    group: str, base: type, built_in: Iterable[Any], *, condition: str
) -> Mapping[str, Any]:
    """Instances of a base class, built-in and from a group of entry points, by lower-case format.

    Raises `SetupError` with the condition for an entry point that cannot be used.
    """
    by_name = {name.lower(): item for item in built_in for name in item.formats}
    for point in entry_points(group=group):
        try:
            loaded = point.load()
            is_class = isinstance(loaded, type) and issubclass(loaded, base)
            item = loaded() if is_class else None
            problem = "" if is_class else f"is not a subclass of {base.__module__}.{base.__name__}"
        except Exception as error:
            item, problem = None, f"cannot be loaded: {first_line(error)}"
        for name in getattr(item, "formats", ()):
            known = by_name.setdefault(name.lower(), item)
            if known is not item:
                problem = f"provides the format {name!r}, which {type(known).__name__} has already"
        if problem:
            package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
            where = f"entry point {point.name!r}{package} in the group {group}"
            hint = "correct that package, or remove it from the environment"
            raise SetupError(condition, f"{where}: {point.value} {problem}", hint=hint)
    return by_name
