"""Names of tables in a Hive metastore."""

import re
from collections.abc import Iterable

from penstock._graph.dataflow import DatasetNode
from penstock.errors import PlanError

_HIVE_NAME = re.compile(r"[A-Za-z0-9_]+")


def registered_names(nodes: Iterable[DatasetNode], catalog: str | None) -> dict[str, str]:
    """The name of each table in the metastore, by key; empty without a metastore.

    Private tables are not registered. A metastore has no catalogs: schemas of the pipeline's
    default `catalog` are its databases.

    Raises:
        PlanError: `NAME_NOT_REGISTRABLE`: A table is in another catalog, or Hive does not allow its
            name.
    """
    if catalog is None:
        return {}
    names = {}
    for node in nodes:
        if node.declared.private:
            continue
        parts = node.name.schema, node.name.name
        refused = [part for part in parts if not _HIVE_NAME.fullmatch(part)]
        reason = hint = ""
        if node.name.catalog.lower() != catalog.lower():
            reason = f"the Hive metastore holds tables of the default catalog {catalog!r} only"
            hint = "declare the table without a catalog, or in a pipeline of its own"
        elif refused:
            reason = f"Hive does not allow the name {refused[0]!r}"
            hint = "use letters, digits and `_`"
        if reason:
            raise PlanError(
                "NAME_NOT_REGISTRABLE",
                f"{node.name} cannot be registered: {reason}",
                origin=node.declared.origin,
                hint=hint,
            )
        names[node.key] = ".".join(parts).lower()
    return names
