"""The registry: collects the declarations of source files, and errors.

One registry is active while source files are loaded (`registration`). Declarations go into it in
source order; for an invalid one, an error is recorded and loading continues, so that one pass
reports all errors. Names are not compared here: whether two names are the same dataset depends on
defaults, which `_graph` resolves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from penstock._api.stack import FunctionHistory
from penstock._model.dataset import Dataset, Sink
from penstock._model.expectation import Expectation
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation, capture_origin
from penstock._model.pipeline import EventHook, PipelineDefinition
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError

_active: ContextVar["Registry | None"] = ContextVar("penstock_registry", default=None)


class Registry:
    """Collects the declarations of one pipeline. Used by one thread at a time."""

    def __init__(self) -> None:
        self._datasets: list[Dataset] = []
        self._provisional: list[Dataset] = []
        self._sinks: list[Sink] = []
        self._flows: list[Flow] = []
        self._hooks: list[EventHook] = []
        self._errors: list[PenstockError] = []
        self.unapplied: dict[object, str] = {}
        """Calls of decorators that were not applied to a function yet, with their text."""
        # Keyed by identity: a query function may be a callable that is not hashable. The history
        # references the function, so that its id is not reused.
        self._histories: dict[int, FunctionHistory] = {}
        self._made: set[tuple[object, ...]] = set()
        self._known: frozenset[tuple[object, ...]] = frozenset()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """In this context, skip what was declared before it at the same line with the same name.

        For a notebook that is executed again. Within one execution, a name that is declared twice
        is still an error. Names that depend on variables of the notebook's caller are declared if
        they are new.
        """
        before = self._known
        self._known = frozenset(self._made)
        try:
            yield
        finally:
            self._known = before

    def _is_new(self, *key: object) -> bool:
        self._made.add(key)
        return key not in self._known

    def add_dataset(
        self,
        dataset: Dataset,
        *,
        function: Callable[..., Any] | None = None,
        flow: Flow | None = None,
    ) -> None:
        """Add a dataset, and the flow that its decorator declares.

        Args:
            dataset: Its own expectations come before those of its function.
            function: The query function; the `expect*` decorators on it belong to the dataset.
            flow: The implicit flow.
        """
        if not self._is_new("dataset", dataset.name, dataset.origin):
            if function is not None:
                self.excuse(function)
            return
        self._datasets.append(dataset)
        if function is not None:
            self._history(function).add_dataset(len(self._datasets) - 1, dataset.origin)
        if flow is not None:
            self._flows.append(flow)

    def add_unless(self, dataset: Dataset) -> Callable[[], None]:
        """Add a dataset after all others, unless the returned function is called."""
        if self._is_new("dataset", dataset.name, dataset.origin):
            self._provisional.append(dataset)

        def withdraw() -> None:
            self._provisional[:] = [other for other in self._provisional if other is not dataset]

        return withdraw

    def add_flow(self, flow: Flow) -> None:
        if self._is_new("flow", flow.name, flow.target, flow.origin):
            self._history(flow.function).feeds = flow.target
            self._flows.append(flow)
        else:
            self.excuse(flow.function)

    def add_sink(self, sink: Sink) -> None:
        if self._is_new("sink", sink.name, sink.origin):
            self._sinks.append(sink)

    def add_hook(self, hook: EventHook) -> None:
        if self._is_new("hook", hook.name, hook.origin):
            self._hooks.append(hook)

    def add_expectations(
        self,
        function: Callable[..., Any],
        expectations: Sequence[Expectation],
        origin: SourceLocation,
    ) -> None:
        """Add the rules of one `expect*` decorator, applied to a query function at `origin`."""
        self._history(function).add_rules(tuple(expectations), origin)

    def excuse(self, function: Callable[..., Any]) -> None:
        """Accept rules without a dataset on a function whose declaration failed or was skipped."""
        self._history(function).excused = True

    def record(self, error: PenstockError) -> None:
        """Record an error of a declaration, or of a source file as a whole."""
        if self._is_new("error", error.condition, error.message, error.origin):
            self._errors.append(error)

    @property
    def is_empty(self) -> bool:
        return not (self._datasets or self._provisional or self._sinks or self._flows)

    @property
    def errors(self) -> tuple[PenstockError, ...]:
        """Errors recorded so far, then those that need all declarations."""
        datasets, orphans = self._attach()
        duplicates = [error for dataset in datasets for error in _duplicate_rules(dataset)]
        return (*self._errors, *orphans, *duplicates)

    def build(self) -> PipelineDefinition:
        """Return all declarations.

        Raises:
            DefinitionErrors: All recorded errors, if there are any.
        """
        if errors := self.errors:
            raise DefinitionErrors(errors)
        return self.declared()

    def declared(self) -> PipelineDefinition:
        """Return the declarations, even if there are errors."""
        datasets, _ = self._attach()
        return PipelineDefinition(
            datasets=tuple(datasets),
            sinks=tuple(self._sinks),
            flows=tuple(self._flows),
            hooks=tuple(self._hooks),
            warnings=tuple(
                f"{call} was not applied to a function, so it declares nothing: write `@` before "
                "it, and the function below it"
                for call in self.unapplied.values()
            ),
        )

    def _history(self, function: Callable[..., Any]) -> FunctionHistory:
        return self._histories.setdefault(id(function), FunctionHistory(function))

    def _attach(self) -> tuple[list[Dataset], list[DefinitionError]]:
        datasets = list(self._datasets)
        orphans: list[DefinitionError] = []
        for history in self._histories.values():
            rules_of, left_over = history.resolve()
            for index, rules in rules_of.items():
                own = datasets[index]
                datasets[index] = replace(own, expectations=(*own.expectations, *rules))
            if left_over and not history.excused:
                orphans.append(_orphan(history, left_over))
        return [*datasets, *self._provisional], orphans


def _orphan(history: FunctionHistory, rules: Sequence[Expectation]) -> DefinitionError:
    names = ", ".join(f"`{rule.name}`" for rule in rules)
    if history.feeds is not None:
        hint = (
            f"an append flow has no rules of its own: give them to its target, "
            f"`create_streaming_table({history.feeds!r}, expect_all={{...}})`"
        )
    else:
        hint = "put `@table`, `@materialized_view` or `@temporary_view` on the same function"
    return DefinitionError(
        "EXPECTATION_WITHOUT_DATASET",
        f"the expectation {names} is on function `{history.name}`, which defines no dataset",
        origin=rules[0].origin,
        hint=hint,
    )


def _duplicate_rules(dataset: Dataset) -> Iterator[DefinitionError]:
    first: dict[str, Expectation] = {}
    for rule in dataset.expectations:
        earlier = first.setdefault(rule.name, rule)
        if earlier is not rule:
            yield DefinitionError(
                "DUPLICATE_EXPECTATION",
                f"dataset {dataset.name!r} has two expectations named {rule.name!r}: "
                f"at {earlier.origin} and at {rule.origin}",
                origin=rule.origin,
                hint="give each rule its own name: counts and quarantine reasons use the name",
            )


@contextmanager
def registration(registry: Registry) -> Iterator[Registry]:
    """Make `registry` the active registry in this context."""
    token = _active.set(registry)
    try:
        yield registry
    finally:
        _active.reset(token)


def active_registry(caller: str) -> Registry:
    """Return the active registry; `caller` is the name of the API function, for the message.

    Raises:
        DefinitionError: `OUTSIDE_PIPELINE`: no registry is active.
    """
    registry = _active.get()
    if registry is None:
        raise DefinitionError(
            "OUTSIDE_PIPELINE",
            f"`{caller}` was called outside of a pipeline's source files",
            origin=capture_origin(),
            hint="start the file with `penstock run FILE` instead of with `python`; declarations "
            "inside of a query function are not possible",
        )
    return registry


def is_collecting() -> bool:
    """Whether source files of a pipeline are being executed in this context."""
    return _active.get() is not None
