"""Builds the index of a pipeline: resolves names, and checks what does not require queries."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from penstock._graph.cdc import check_target, is_cdc
from penstock._graph.index import (
    DeclaredDataset,
    DefinitionIndex,
    display_name,
    nearest_name,
    taken_for,
)
from penstock._graph.replacing import check_alone, replaces_rows
from penstock._model.dataset import Dataset, DatasetKind, LateRows, Sink
from penstock._model.expectation import OnViolation
from penstock._model.flow import Flow
from penstock._model.name import DatasetName, comparable_parts, find_name, resolve_name
from penstock._model.paths import PathMap, canonical_path, real_path
from penstock._model.pipeline import PipelineDefinition, PipelineSettings
from penstock.errors import DefinitionError, PenstockError


def build_index(definition: PipelineDefinition, settings: PipelineSettings) -> DefinitionIndex:
    """Resolve all names and collect all errors that require no query function; never raises."""
    return _Indexing(definition, settings).index(definition.flows)


class _Indexing:
    """Datasets by key, sinks by name, and the errors and notes about them and the flows."""

    def __init__(self, definition: PipelineDefinition, settings: PipelineSettings) -> None:
        self._settings = settings
        self._errors: list[PenstockError] = []
        self._notes = list(settings.notes)
        self._warnings = definition.warnings
        self._names: dict[str, tuple[DatasetName, Dataset]] = {}
        self._sinks: dict[str, Sink] = {}
        paths = PathMap(settings.paths)
        for dataset in definition.datasets:
            self._errors += self._add_dataset(self._placed(dataset, paths))
        self._errors += self._event_table_errors()
        self._errors += self._own_quarantines(definition.flows)
        for sink in definition.sinks:
            self._errors += self._add_sink(sink)

    def index(self, declared_flows: Iterable[Flow]) -> DefinitionIndex:
        names, settings = self._names, self._settings
        flows: dict[str, Flow] = {}
        flow_names: dict[str, Flow] = {}
        targets: dict[str, str] = {}
        by_target: dict[str, list[Flow]] = {}
        attempted: set[str] = set()
        shown = {
            key: display_name(name, catalog=settings.catalog, schema=settings.schema)
            for key, (name, _) in names.items()
        }
        for flow in declared_flows:
            target = self._target_of(flow)
            if target is None and flow.implicit:
                continue  # the flow of a dataset with an invalid name, which is already reported
            if target is None:
                self._errors.append(_target_not_found(flow, [*shown.values(), *self._sinks]))
                continue
            attempted.add(target)
            changes = is_cdc(flow) or replaces_rows(flow)
            if changes and target in self._sinks and target not in names:
                text = f"flow {flow.name!r} changes rows of {flow.target!r}, which is a sink"
                self._errors.append(_not_streaming(flow, text))
                continue
            if flow.implicit:
                has_one = any(other.implicit for other in by_target.get(target, ()))
                if has_one or names[target][1].origin != flow.origin:
                    continue  # the flow of a duplicate dataset, which is already reported
                flow = replace(flow, name=shown[target])
            elif is_cdc(flow) and flow.name == flow.target and target in shown:
                flow = replace(flow, name=shown[target])  # no name is set: the target's name
            # Case-insensitive, as the names of checkpoint folders are on some disks.
            other = flow_names.setdefault(flow.name.lower(), flow)
            if other is not flow:
                self._errors.append(_duplicate("flow", flow, other))
                continue
            flows[flow.name] = flow
            targets[flow.name] = target
            by_target.setdefault(target, []).append(flow)

        datasets = {
            key: _with_flows(name, declared, tuple(by_target.get(key, ())))
            for key, (name, declared) in names.items()
        }
        self._errors += _check_flows(datasets.values(), shown, attempted)
        return DefinitionIndex(
            datasets=MappingProxyType(datasets),
            sinks=MappingProxyType(self._sinks),
            flows=MappingProxyType(flows),
            flow_targets=MappingProxyType(targets),
            catalog=settings.catalog,
            schema=settings.schema,
            errors=tuple(self._errors),
            notes=tuple(self._notes),
            warnings=self._warnings,
        )

    def _placed(self, dataset: Dataset, paths: PathMap) -> Dataset:
        """The dataset with its mapped path; without a path if that is a path on Databricks."""
        if dataset.path is None:
            return dataset
        path = paths.map(dataset.path)
        if (canonical_path(path) or "").startswith("dbfs:"):
            self._notes.append(
                f"{dataset.name} is kept in the pipeline's storage: {dataset.path} is a path on "
                "Databricks; map it in `paths` of the settings to override this"
            )
            return replace(dataset, path=None)
        return replace(dataset, path=real_path(path, str))

    def _resolved(self, text: str) -> DatasetName:
        return resolve_name(text, catalog=self._settings.catalog, schema=self._settings.schema)

    def _key_of(self, text: str) -> str:
        try:
            return self._resolved(text).key
        except ValueError:
            return ""

    def _add_dataset(self, dataset: Dataset) -> Iterator[PenstockError]:
        try:
            name = self._resolved(dataset.name)
        except ValueError as error:
            hint = "use one to three parts separated by dots; quote other names with `"
            yield DefinitionError(
                "INVALID_DATASET_NAME", str(error), origin=dataset.origin, hint=hint
            )
            return
        _, first = self._names.setdefault(name.key, (name, dataset))
        if first is not dataset:
            yield _duplicate("dataset", dataset, first)

    def _own_quarantines(self, flows: Iterable[Flow]) -> Iterator[PenstockError]:
        """Disable the quarantine of a dataset if the pipeline declares a dataset with its name.

        Yields errors for datasets whose quarantine is enabled explicitly.
        """
        names = self._names
        of_events = {self._key_of(flow.target) for flow in flows if is_cdc(flow)}
        for key, (name, dataset) in tuple(names.items()):
            own = names.get(f"{key}_quarantine")
            if own is None or DatasetKind.TEMPORARY_VIEW in (dataset.kind, own[1].kind):
                continue
            actions = {rule.on_violation for rule in dataset.expectations}
            keeps_late = dataset.late_rows is LateRows.QUARANTINE
            if dataset.quarantine or keeps_late or OnViolation.QUARANTINE in actions:
                yield DefinitionError(
                    "QUARANTINE_NAME_TAKEN",
                    f"{own[1].name!r} is declared, but the quarantine of {dataset.name!r} has this "
                    "name",
                    origin=own[1].origin,
                    hint=f"rename it, or turn off the quarantine of {dataset.name!r}",
                )
            elif dataset.quarantine is None and self._settings.quarantine:
                lost = []
                if any(action.removes for action in actions):
                    lost.append("rows that violate its rules are dropped and counted, not kept")
                if key in of_events:
                    lost.append("an invalid change event fails its flow")
                if lost:
                    reason = f"because the pipeline declares {own[1].name!r} itself"
                    self._notes.append(f"{dataset.name}: {' and '.join(lost)}, {reason}")
            names[key] = (name, replace(dataset, quarantine=False, is_quarantine_taken=True))

    def _event_table_errors(self) -> Iterator[PenstockError]:
        """Errors for names in `events` that are datasets, their quarantines, or the same table."""
        seen = set()
        for text in self._settings.events.tables:
            key = self._key_of(text)
            owner = self._names.get(key) or self._names.get(key.removesuffix("_quarantine"))
            if owner is not None or key in seen:
                what = f"a table of the dataset {owner[0]}" if owner else "used twice there"
                yield DefinitionError(
                    "EVENT_TABLE_NAME_TAKEN",
                    f"the name {text!r} in the setting `events` is {what}",
                    origin=owner[1].origin if owner else None,
                    hint="choose another name for the table of events",
                )
            seen.add(key)

    def _add_sink(self, sink: Sink) -> Iterator[PenstockError]:
        first = self._sinks.setdefault(sink.name, sink)
        if first is not sink:
            yield _duplicate("sink", sink, first)
        elif (key := self._key_of(sink.name)) in self._names:
            yield DefinitionError(
                "SINK_NAMED_AS_DATASET",
                f"sink {sink.name!r} has the name of a dataset, declared at "
                f"{self._names[key][1].origin}; the target of a flow would be ambiguous",
                origin=sink.origin,
                hint="rename the sink or the dataset",
            )

    def _target_of(self, flow: Flow) -> str | None:
        key = self._key_of(flow.target)
        if key in self._names:
            return key
        if (sink := find_name(flow.target, self._sinks)) is not None:
            return sink
        wanted = comparable_parts(flow.target)
        longer = [
            (known, name)
            for known, (name, declared) in self._names.items()
            if wanted and (comparable_parts(declared.name) or ())[-len(wanted) :] == wanted
        ]
        if len(longer) != 1 or flow.implicit:
            return None
        self._notes.append(taken_for(flow.target, str(longer[0][1])))
        return longer[0][0]


def _duplicate(
    what: str, second: Dataset | Sink | Flow, first: Dataset | Sink | Flow
) -> DefinitionError:
    return DefinitionError(
        f"DUPLICATE_{what.upper()}",
        f"{what} {second.name!r} is declared twice; first at {first.origin}",
        origin=second.origin,
        hint=f"rename or remove one of the two {what}s",
    )


def _target_not_found(flow: Flow, known: Iterable[str]) -> DefinitionError:
    near = nearest_name(flow.target, known)
    function = f'create_streaming_table("{flow.target}")'
    declare = f"declare it with {'CREATE STREAMING TABLE' if flow.language == 'SQL' else function}"
    return DefinitionError(
        "FLOW_TARGET_NOT_FOUND",
        f"flow {flow.name!r} writes to {flow.target!r}, which is not declared",
        origin=flow.origin,
        hint=f"did you mean {near!r}?" if near else declare,
    )


def _not_streaming(flow: Flow, message: str) -> DefinitionError:
    hint = "declare the target with create_streaming_table"
    return DefinitionError("FLOW_TARGET_NOT_STREAMING", message, origin=flow.origin, hint=hint)


def dataset_without_flow(shown: str, declared: Dataset) -> DefinitionError:
    return DefinitionError(
        "DATASET_WITHOUT_FLOW",
        f"no flow writes to streaming table {shown!r}",
        origin=declared.origin,
        hint=f'add a flow: @append_flow(target="{declared.name}"), or in SQL: '
        f"CREATE FLOW <name> AS INSERT INTO {declared.name} BY NAME SELECT ...",
    )


def _with_flows(name: DatasetName, declared: Dataset, flows: tuple[Flow, ...]) -> DeclaredDataset:
    """A dataset with its flows; a `@table` that other flows append to is a streaming table."""
    if declared.kind is None and not all(flow.implicit for flow in flows):
        declared = replace(declared, kind=DatasetKind.STREAMING_TABLE)
    return DeclaredDataset(name=name, declared=declared, flows=flows)


def _check_flows(
    datasets: Iterable[DeclaredDataset], shown: Mapping[str, str], attempted: set[str]
) -> Iterable[PenstockError]:
    for dataset in datasets:
        declared, name = dataset.declared, shown[dataset.name.key]
        explicit = [flow for flow in dataset.flows if not flow.implicit]
        if dataset.name.key not in attempted:
            yield dataset_without_flow(name, declared)
        elif explicit and declared.kind is not DatasetKind.STREAMING_TABLE:
            text = f"flow {explicit[0].name!r} writes to {name!r}, which is not a streaming table"
            yield _not_streaming(explicit[0], text)
        else:
            yield from check_target(name, declared, dataset.flows)
            yield from check_alone(name, dataset.flows)
        if declared.partition_cols and (declared.cluster_by or declared.cluster_by_auto):
            yield DefinitionError(
                "PARTITION_AND_CLUSTER",
                f"{name!r} has partition_cols and cluster_by, which Delta does not combine",
                origin=declared.origin,
                hint="remove partition_cols or cluster_by",
            )
