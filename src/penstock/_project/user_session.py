"""The pipeline's Spark session, while source files run that handle sessions themselves.

A source that was also meant as a script builds its session (`getOrCreate` gives the one that
runs) and stops it at its end. The second would end the pipeline, so it has no effect; neither has
the wish for a session on a remote server, because there is one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_REMOTE = ("spark.remote", "spark.api.mode")


@contextmanager
def shared_session(spark: Any) -> Iterator[None]:
    """Prevent source files from stopping the session, by patching its classes."""
    with ExitStack() as patches:
        for owner in (spark, getattr(spark, "sparkContext", None)):
            if holder := _holder(type(owner), "stop"):
                patches.enter_context(_replaced(holder, "stop", _ignored))
        builder = getattr(type(spark), "Builder", None)
        if isinstance(builder, type) and "getOrCreate" in vars(builder):
            get_or_create = _without_remote(vars(builder)["getOrCreate"])
            patches.enter_context(_replaced(builder, "getOrCreate", get_or_create))
        yield


def _holder(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _ignored(*_arguments: Any, **_parameters: Any) -> None:
    return None


def _without_remote(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_or_create(builder: Any) -> Any:
        for key in _REMOTE:
            builder._options.pop(key, None)
        return original(builder)

    return get_or_create


@contextmanager
def _replaced(holder: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    before = vars(holder)[name]
    setattr(holder, name, replacement)
    try:
        yield
    finally:
        setattr(holder, name, before)
