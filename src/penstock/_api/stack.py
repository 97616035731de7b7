"""Assigns rules to datasets if both are declared by decorators of the same function.

Decorators are applied bottom-up, so the line numbers of a *stack* of them do not increase. All
rules of a stack belong to all datasets of that stack, above or below. A function may also be
decorated again, in a loop or by a later call, which starts a new stack.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock._model.expectation import Expectation
from penstock._model.origin import SourceLocation

Rules = tuple[Expectation, ...]


@dataclass
class _Stack:
    last: SourceLocation
    datasets: list[int] = field(default_factory=list)
    groups: list[Rules] = field(default_factory=list)

    def continues_at(self, origin: SourceLocation) -> bool:
        if origin.file != self.last.file or origin.line > self.last.line:
            return False
        # `table(...)(expect(...)(f))` on one line of a loop starts a new stack per iteration.
        return origin.line < self.last.line or not self.datasets

    def rules(self) -> Rules:
        """The rules in source order: the decorator that is applied last is first."""
        return tuple(rule for group in reversed(self.groups) for rule in group)


class FunctionHistory:
    """The decorators of one query function, in order.

    Attributes:
        function: The function; the reference prevents its id from being reused.
        feeds: Target of its append flow, if any.
        excused: Whether rules without a dataset are accepted; see `Registry.excuse`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.feeds: str | None = None
        self.excused = False
        self._stacks: list[_Stack] = []

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", None) or type(self.function).__name__)

    def add_dataset(self, index: int, origin: SourceLocation) -> None:
        """Record a dataset decorator; `index` is the position of the dataset in the registry."""
        self._stack_at(origin).datasets.append(index)

    def add_rules(self, rules: Rules, origin: SourceLocation) -> None:
        self._stack_at(origin).groups.append(rules)

    def resolve(self) -> tuple[dict[int, Rules], Rules]:
        """Return the rules of each dataset, and the rules without a dataset.

        Rules of a stack without datasets belong to all later datasets of the function; if there are
        none, to those of the previous stack with datasets (`expect(...)(table(f))` on one line).
        """
        rules_of: dict[int, Rules] = {}
        inherited: Rules = ()
        waiting: Rules = ()
        last_datasets: list[int] = []
        for stack in self._stacks:
            if not stack.datasets:
                waiting = (*waiting, *stack.rules())
                continue
            inherited, waiting = (*inherited, *waiting), ()
            last_datasets = stack.datasets
            for index in stack.datasets:
                rules_of[index] = (*inherited, *stack.rules())
        for index in last_datasets:
            rules_of[index] = (*rules_of[index], *waiting)
        return rules_of, () if last_datasets else waiting

    def _stack_at(self, origin: SourceLocation) -> _Stack:
        if not self._stacks or not self._stacks[-1].continues_at(origin):
            self._stacks.append(_Stack(origin))
        stack = self._stacks[-1]
        stack.last = origin
        return stack
