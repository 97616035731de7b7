"""Names of tables in a Hive metastore."""

import re
from collections.abc import Iterable

from penstock._graph.dataflow import DatasetNode
from penstock.errors import PlanError

_HIVE_NAME = re.compile(r"[A-Za-z0-9_]+")


def registered_names(nodes: Iterable[DatasetNode], catalog: str | None) -> dict[str, str]:
    """The name of each table in the metastore, by key; empty without a metastore.

    A metastore has no catalogs: schemas of the pipeline's default `catalog` are its databases.

    Raises:
        PlanError: `NAME_NOT_REGISTRABLE`: A table is in another catalog, or Hive does not allow its
            name.
    """
    if catalog is None:
        return {}
    names = {}
    for node in nodes:
        if node.name.catalog.lower() != catalog.lower():
            raise PlanError(
                "NAME_NOT_REGISTRABLE",
                f"{node.name} cannot be registered: the Hive metastore holds tables of the default "
                f"catalog {catalog!r} only",
                origin=node.declared.origin,
                hint="declare the table without a catalog, or in a pipeline of its own",
            )
        for part in (node.name.schema, node.name.name):
            if not _HIVE_NAME.fullmatch(part):
                raise PlanError(
                    "NAME_NOT_REGISTRABLE",
                    f"{node.name} cannot be registered: Hive does not allow the name {part!r}",
                    origin=node.declared.origin,
                    hint="use letters, digits and `_`",
                )
        names[node.key] = f"{node.name.schema}.{node.name.name}".lower()
    return names
