"""Common parts of all hooks: the `ExternalReads` of the current context, replaced methods."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from penstock._analysis.external_reads import ExternalReads

Reads: TypeAlias = "ExternalReads"
_active: "ContextVar[ExternalReads | None]" = ContextVar("penstock_reads", default=None)


@contextlib.contextmanager
def through(reads: "ExternalReads | None") -> Iterator[None]:
    """Make the hooks of this context use `reads`; `None` disables them."""
    token = _active.set(reads)
    try:
        yield
    finally:
        _active.reset(token)


def own_read() -> contextlib.AbstractContextManager[None]:
    """Disable the hooks for reads of Penstock itself."""
    return through(None)


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a method of a class by the decorated function.

    The function receives the original method, then `self` and the arguments. The first parameter
    must be positional-only: a keyword of the user may have the same name. A class method can still
    be called on the class: the original is bound to it, and the function receives no `cls`.
    """
    original = getattr(owner, name)
    is_bound = hasattr(original, "__self__")

    def install(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, staticmethod(method) if is_bound else method)
        return method

    return install


def redirects(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `replaces`, only for user code of a pipeline, whose reads are the first argument."""

    def install(function: Callable[..., Any]) -> Callable[..., Any]:
        @replaces(owner, name)
        def method(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            reads = _active.get()
            if reads is None:
                return original(*args, **kwargs)
            return function(reads, original, *args, **kwargs)

        return method

    return install
