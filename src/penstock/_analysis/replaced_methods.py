"""Replaces methods of PySpark and Delta for this process."""

import functools
from collections.abc import Callable
from typing import Any


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a method of a class by the decorated function.

    The function gets the original method first, then `self` and the arguments. A class method stays
    one: the original is bound to its class, and the function gets no `cls`.
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
