"""Names of the compatible surface that are not available yet.

They exist so that a file that uses them gets one clear error at that line, together with all
others, instead of an `AttributeError` at the first.
"""

from typing import Any

from penstock._api.arguments import stand_in
from penstock._api.registry import active_registry
from penstock._model.origin import capture_origin
from penstock.errors import DefinitionError


def update_flow(*arguments: Any, **parameters: Any) -> Any:
    """Not available yet: recorded as an error."""
    return _unavailable("update_flow", arguments)


def foreach_batch_sink(*arguments: Any, **parameters: Any) -> Any:
    """Not available yet: recorded as an error."""
    return _unavailable("foreach_batch_sink", arguments)


def on_event_hook(*arguments: Any, **parameters: Any) -> Any:
    """Not available yet: recorded as an error."""
    return _unavailable("on_event_hook", arguments)


def _unavailable(name: str, arguments: tuple[Any, ...]) -> Any:
    registry = active_registry(name)
    registry.record(
        DefinitionError(
            "FEATURE_NOT_AVAILABLE",
            f"`{name}` is not available yet",
            origin=capture_origin(),
            hint="the other definitions of the pipeline work without it",
        )
    )
    return stand_in(registry, arguments)
