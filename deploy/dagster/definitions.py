"""Dagster: one asset per dataset of a pipeline, all updated by one `penstock run`.

Penstock is installed in a separate environment.
"""

import json
import os
import subprocess
from graphlib import TopologicalSorter

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetSpec,
    Definitions,
    Failure,
    MaterializeResult,
    multi_asset,
)

PENSTOCK = os.environ.get("PENSTOCK", "/opt/penstock/bin/penstock")
PROJECT = os.environ.get("PENSTOCK_PROJECT", "/srv/penstock/shop")
TABLES = ("streaming table", "materialized view")


def penstock(*arguments: str) -> tuple[int, dict]:
    """Exit code and JSON of a command."""
    command = [PENSTOCK, *arguments, "--output", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}")


def read_tables() -> dict[str, set[str]]:
    """The tables of the pipeline, each with its upstream tables."""
    _, graph = penstock("graph", PROJECT)
    tables = {node["id"] for node in graph["nodes"] if node["kind"] in TABLES}

    def read_by(name: str) -> set[str]:
        """The tables that a dataset reads, directly or through views."""
        sources = {edge["from"] for edge in graph["edges"] if edge["to"] == name}
        return (sources & tables).union(*map(read_by, sources - tables))

    return {table: read_by(table) - {table} for table in sorted(tables)}


def asset_key(table: str) -> AssetKey:
    """The asset key of `catalog.schema.table`."""
    return AssetKey(table.split("."))


READ = read_tables()


@multi_asset(
    specs=[AssetSpec(asset_key(table), deps=list(map(asset_key, READ[table]))) for table in READ],
    can_subset=True,
)
def shop(context: AssetExecutionContext):
    selected = {".".join(key.path) for key in context.selected_asset_keys}
    code, status = penstock("run", PROJECT, "--quiet", "--refresh", ",".join(sorted(selected)))
    # Dagster expects upstream assets first.
    for table in filter(selected.__contains__, TopologicalSorter(READ).static_order()):
        flows = [flow for flow in status.get("flows", ()) if flow["target"] == table]
        # Flows that are not part of the update are EXCLUDED.
        states = {flow["state"] for flow in flows} - {"EXCLUDED"}
        if states and states <= {"COMPLETED", "IDLE"}:
            keys = ("rows", "quarantined", "dropped", "batches")
            figures = {key: sum(flow[key] or 0 for flow in flows) for key in keys}
            yield MaterializeResult(asset_key=asset_key(table), metadata=figures)
    if code != 0:
        raise Failure(f"penstock run ended with exit code {code}")


defs = Definitions(assets=[shop])
