"""Suggestions for unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `word`, ignoring case, if any is similar."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def suggested(word: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """The nearest of the known names as a hint; `otherwise` if there is none."""
    close = nearest(word, known)
    return f"did you mean `{close}`?" if close else otherwise


def attribute_hint(error: BaseException) -> str | None:
    """The nearest attribute as a hint, for an attribute that an object does not have."""
    if not isinstance(error, AttributeError) or error.obj is None or not error.name:
        return None
    return suggested(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
