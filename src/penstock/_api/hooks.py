"""`on_event_hook`: user functions that are called with every event of an update."""

from collections.abc import Callable
from typing import Any, overload

from penstock._api.arguments import Arguments, F, checked_call
from penstock._api.query import decorator, takes
from penstock._model.pipeline import EventHook


@overload
def on_event_hook(function: F) -> F: ...
@overload
def on_event_hook(
    function: None = None, *, max_allowable_consecutive_failures: int | None = None
) -> Callable[[F], F]: ...
@checked_call
def on_event_hook(
    function: Callable[..., Any] | None = None,
    *,
    max_allowable_consecutive_failures: int | None = None,
) -> Any:
    """Call a function with every event of an update.

    It takes one argument, the event as a dictionary in the shape of the event log. Events are
    delivered one by one, in order, on a thread of the hook: a slow hook delays nothing. The last
    events of an update are delivered before the command returns, for at most 30 seconds. A hook
    that raises is reported in the event log (`hook_progress`) and never fails the update.

    Args:
        function: Takes an event.
        max_allowable_consecutive_failures: After more failures in a row the hook is disabled for
            the rest of the update; `None` = never.
    """
    call = Arguments("on_event_hook")
    limit = max_allowable_consecutive_failures
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        call.reject("max_allowable_consecutive_failures", "must be a whole number, 0 or more")
        limit = None

    def declare(arguments: Arguments, hook: Callable[..., Any]) -> None:
        if not takes(arguments, hook, None, problem="must take one argument, the event"):
            return
        arguments.registry.add_hook(
            EventHook(
                name=str(getattr(hook, "__name__", type(hook).__name__)),
                function=hook,
                max_consecutive_failures=limit,
                origin=arguments.origin,
            )
        )

    return decorator(call, function, declare)
