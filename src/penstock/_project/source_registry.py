"""The registry of a load: a notebook that is executed again declares nothing twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock._api.registry import Registry
from penstock._model.dataset import Dataset, Sink
from penstock._model.flow import Flow
from penstock._model.pipeline import EventHook
from penstock.errors import PenstockError

_Key = tuple[object, ...]


class SourceRegistry(Registry):
    """Registry of the declarations of source files that may `%run` each other."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[_Key] = set()
        self._known: frozenset[_Key] = frozenset()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """While this is open, leave out what was declared before at the same line, with one name.

        A loop that declares a name twice is an error as ever; a notebook that makes other names
        out of variables of its caller declares those.
        """
        before = self._known
        self._known = frozenset(self._made)
        try:
            yield
        finally:
            self._known = before

    def add_dataset(
        self,
        dataset: Dataset,
        *,
        function: Callable[..., Any] | None = None,
        flow: Flow | None = None,
    ) -> None:
        if self._is_new("dataset", dataset.name, dataset.origin):
            super().add_dataset(dataset, function=function, flow=flow)
        elif function is not None:
            self.excuse(function)

    def add_flow(self, flow: Flow) -> None:
        if self._is_new("flow", flow.name, flow.target, flow.origin):
            super().add_flow(flow)
        else:
            self.excuse(flow.function)

    def add_sink(self, sink: Sink) -> None:
        if self._is_new("sink", sink.name, sink.origin):
            super().add_sink(sink)

    def add_hook(self, hook: EventHook) -> None:
        if self._is_new("hook", hook.name, hook.origin):
            super().add_hook(hook)

    def record(self, error: PenstockError) -> None:
        if self._is_new("error", error.condition, error.message, error.origin):
            super().record(error)

    def _is_new(self, *key: object) -> bool:
        self._made.add(key)
        return key not in self._known
