"""What all hooks need: the `ExternalReads` of the current context, and replaced methods."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock._analysis.external_reads import ExternalReads

_active: "ContextVar[ExternalReads | None]" = ContextVar("penstock_redirect", default=None)


def active() -> "ExternalReads | None":
    """What reads of this context go through; `None` outside of user code of a pipeline."""
    return _active.get()


@contextlib.contextmanager
def through(redirect: "ExternalReads | None") -> Iterator[None]:
    token = _active.set(redirect)
    try:
        yield
    finally:
        _active.reset(token)


def own_read() -> contextlib.AbstractContextManager[None]:
    """Disable the hooks: for reads of Penstock itself."""
    return through(None)


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a method of a class by the decorated function.

    The function gets the original method first, then `self` and the arguments. The first parameter
    must be positional-only: a keyword of the user may have its name. A class method stays one: the
    original is bound to its class, and the function gets no `cls`.
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
