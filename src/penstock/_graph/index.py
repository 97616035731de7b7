"""Declarations by canonical name, and lookups by name."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock._model.dataset import Dataset, DatasetKind, Sink
from penstock._model.flow import Flow
from penstock._model.name import DatasetName, comparable_parts, find_name, resolve_name
from penstock._model.pipeline import DEFAULT_CATALOG, DEFAULT_SCHEMA
from penstock._model.similar import nearest
from penstock.errors import DefinitionError, PenstockError

# Catalogs of Databricks to which no pipeline writes.
_OTHERS = ("samples", "system", "hive_metastore")


@dataclass(frozen=True, kw_only=True)
class DeclaredDataset:
    name: DatasetName
    declared: Dataset
    flows: tuple[Flow, ...]

    @property
    def is_local(self) -> bool:
        """Whether it is a view without a schema: with one, its name is that of a table outside."""
        is_view = self.declared.kind is DatasetKind.TEMPORARY_VIEW and self.declared.private
        return is_view and len(comparable_parts(self.declared.name) or ()) == 1


@dataclass(frozen=True, kw_only=True)
class DefinitionIndex:
    """Declarations keyed by canonical name, in the order of declaration.

    The flow of a dataset decorator has the dataset's display name; `flow_targets` are dataset keys
    or sink names. `errors` are found without calling query functions; `notes` and `warnings` are
    sentences for the user.
    """

    datasets: Mapping[str, DeclaredDataset]
    sinks: Mapping[str, Sink]
    flows: Mapping[str, Flow]
    flow_targets: Mapping[str, str]
    catalog: str
    schema: str
    errors: tuple[PenstockError, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def find(
        self, text: str, *, catalog: str | None = None, schema: str | None = None
    ) -> DeclaredDataset | None:
        """Look up a name as a user writes it: one to three parts, any case, with `LIVE.`."""
        if text.lower().startswith(("live.", "`live`.")):
            catalog = schema = None  # the pipeline's own schema, regardless of `USE`
        try:
            name = resolve_name(text, catalog=catalog or self.catalog, schema=schema or self.schema)
        except ValueError:
            return None
        dataset = self.datasets.get(name.key)
        is_qualified = len(comparable_parts(text) or ()) > 1
        return None if dataset is not None and dataset.is_local and is_qualified else dataset

    def find_by_end(self, text: str, readers: Collection[str] = ()) -> DeclaredDataset | None:
        """The only dataset that an incomplete name can refer to, if `find` does not find it.

        A declaration may be more qualified than the reference: `main.gold.days` for `days`. If the
        settings set neither catalog nor schema, it may also be less qualified: on Databricks the
        settings would complete it. The targets of the flows `readers` are excluded.
        """
        wanted = comparable_parts(text)
        if wanted is None:
            return None
        has_defaults = (self.catalog, self.schema) != (DEFAULT_CATALOG, DEFAULT_SCHEMA)
        if wanted[0] in _OTHERS and len(wanted) > 1:
            return None
        matches = [
            dataset
            for dataset in self.datasets.values()
            if not any(flow.name in readers for flow in dataset.flows)
            and (declared := comparable_parts(dataset.declared.name)) is not None
            and len(declared) != len(wanted)
            and (
                declared[-len(wanted) :] == wanted
                or (
                    not has_defaults
                    and not dataset.is_local
                    and wanted[-len(declared) :] == declared
                )
            )
        ]
        return matches[0] if len(matches) == 1 else None

    def select(self, names: Iterable[str]) -> frozenset[str] | None:
        """Keys of the datasets and names of the sinks in a selection.

        `None` for an empty selection, which means everything, or if a name is unknown.
        """
        keys = set()
        for name in names:
            shown = (item for key, item in self.datasets.items() if self.display(key) == name)
            dataset = self.find(name) or next(shown, None)
            key = find_name(name, self.sinks) if dataset is None else dataset.name.key
            if key is None:
                return None
            keys.add(key)
        return frozenset(keys) or None

    def depends_on(self, flow: Flow) -> frozenset[str]:
        """Keys of the datasets that are declared to be completed before a flow starts."""
        keys = set()
        for name in flow.depends_on:
            dataset = self.find(name)
            if dataset is None:
                near = self.nearest(name)
                raise DefinitionError(
                    "DATASET_NOT_FOUND",
                    f"flow {flow.name!r} depends on {name!r}, which is not declared",
                    origin=flow.origin,
                    hint=f"did you mean {near!r}?"
                    if near
                    else "declare it, or remove it from depends_on",
                )
            keys.add(dataset.name.key)
        return frozenset(keys)

    def without(self, targets: Collection[str]) -> "DefinitionIndex":
        """The declarations without the given datasets and sinks and the flows into them."""
        return replace(
            self,
            datasets={key: dataset for key, dataset in self.datasets.items() if key not in targets},
            sinks={name: sink for name, sink in self.sinks.items() if name not in targets},
            flows={
                name: flow
                for name, flow in self.flows.items()
                if self.flow_targets[name] not in targets
            },
        )

    def display(self, key: str) -> str:
        """The shortest unambiguous name: without the default catalog and schema."""
        dataset = self.datasets.get(key)
        if dataset is None:
            return key
        return display_name(dataset.name, catalog=self.catalog, schema=self.schema)

    def nearest(self, text: str) -> str | None:
        """The declared name most similar to `text`, if any is similar."""
        return nearest_name(text, map(self.display, self.datasets))


def nearest_name(text: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, ignoring case and `LIVE.`, if any is similar."""
    return nearest(text.lower().removeprefix("live.").replace("`", ""), names)


def display_name(name: DatasetName, *, catalog: str, schema: str) -> str:
    """A dataset's name without the pipeline's default catalog and schema."""
    if name.catalog.lower() != catalog.lower():
        return str(name)
    if name.schema.lower() != schema.lower():
        return f"{name.schema}.{name.name}"
    return name.name


def taken_for(text: str, name: str) -> str:
    """The note that an incomplete name was resolved to a dataset."""
    return (
        f"`{text}` is resolved to {name}, the only dataset with such a name: set the catalog and "
        "schema of the pipeline in the settings to make it explicit"
    )
