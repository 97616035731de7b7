"""Reads the state of a flow from its checkpoint, with Spark's own sources.

The query is not started: the checkpoint is read as of its last committed micro-batch.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock._execution.flow_state import StateStore
from penstock._model.exception_text import first_line
from penstock._model.name import find_name
from penstock._tables.files import StorageFiles, hadoop_path
from penstock._tables.layout import StorageLayout
from penstock.errors import CheckpointError, PlanError

_JOIN = "symmetricHashJoin"
_TIMERS = "timers"
# Stores of a join that hold its rows; the others count them.
_JOIN_SIDES = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class StateSection:
    """A state store, or a state variable, of a stateful operator, with its first rows as JSON.

    `name` is the name of the store or of the state variable, or the side of a join; `batch_id` is
    the last micro-batch in it.
    """

    operator: int
    operator_name: str
    name: str
    batch_id: int
    total: int
    rows: tuple[dict[str, Any], ...]


def read_flow(
    spark: SparkSession,
    layout: StorageLayout,
    store: StateStore,
    flow: str,
    *,
    operator: int | None,
    limit: int,
) -> tuple[StateSection, ...]:
    """All sections of a flow's checkpoint; raises `FLOW_NEVER_RAN` or `FLOW_WITHOUT_STATE`."""
    flow = find_name(flow, store.names("flows")) or flow
    known = store.flow(flow)
    if known is None or known.stateful_operators is None:
        raise PlanError(
            "FLOW_NEVER_RAN",
            f"flow {flow!r} has no checkpoint in {layout.root}",
            hint="a table's flow has the name of the table as it was declared; `penstock events "
            "--type flow_definition` lists the flows of the last update",
        )
    stateful = [line for line in known.stateful_operators if not line.startswith("source")]
    checkpoint = layout.checkpoint_path(flow, known.epoch)
    # Creates the coordinator of state stores: without it, a store cannot be loaded (Spark 4.2).
    _ = spark.streams
    try:
        with TemporaryDirectory(prefix="penstock-state-") as scratch:
            _, path = hadoop_path(spark, checkpoint)
            if path.toUri().toString() != path.toString():
                # Spark's source encodes the path, such as a space, and does not decode it (4.2).
                original, checkpoint = checkpoint, f"{Path(scratch).as_uri()}/checkpoint"
                StorageFiles(spark).copy_tree(original, checkpoint)
            states = tuple(_sections(spark, checkpoint, operator, limit)) if stateful else ()
    except Exception as error:
        raise CheckpointError(
            "CHECKPOINT_UNUSABLE",
            f"the state of flow {flow!r} cannot be read: {first_line(error)}",
            flow=flow,
            hint=f"`penstock checkpoint doctor {flow}` checks its files",
        ) from error
    if not states:
        what = "keeps no state" if operator is None else f"has no operator {operator} with state"
        raise PlanError(
            "FLOW_WITHOUT_STATE",
            f"flow {flow!r} {what}",
            hint="; ".join(stateful) or "its query has no stateful operation",
        )
    return states


def _sections(
    spark: SparkSession, checkpoint: str, wanted: int | None, limit: int
) -> Iterator[StateSection]:
    metadata = spark.read.format("state-metadata").load(checkpoint).collect()
    seen = set()
    for entry in sorted(metadata, key=lambda row: (row["operatorId"], row["stateStoreName"])):
        number, name = int(entry["operatorId"]), str(entry["operatorName"])
        if number in seen or (wanted is not None and number != wanted):
            continue
        seen.add(number)
        for section, options in _parts(name, entry):
            # Options of one part must not reach the next.
            reader = spark.read.format("statestore").option("operatorId", number)
            df = reader.options(**options).load(checkpoint)
            if name == _JOIN:  # rows of its values have one field more than their schema
                df = df.withColumn("value", F.struct("value.*"))
            row = F.struct(*df.drop("partition_id").columns)
            values = F.to_json(row, {"ignoreNullFields": "false"})
            shown = df.select(values).limit(limit).collect()
            yield StateSection(
                operator=number,
                operator_name=name,
                name=section,
                batch_id=int(entry["maxBatchId"]),
                total=df.count(),
                rows=tuple(json.loads(row[0]) for row in shown),
            )


def _parts(name: str, entry: Any) -> Iterator[tuple[str, dict[str, str]]]:
    if name == _JOIN:
        yield from ((side, {"joinSide": side}) for side in _JOIN_SIDES)
        return
    variables = _variables(entry)
    if not variables:
        yield str(entry["stateStoreName"]), {}
        return
    properties, names = variables
    yield from ((variable, {"stateVarName": variable}) for variable in names)
    if str(properties.get("timeMode", "")).lower() not in ("", "none", "notimemode"):
        yield _TIMERS, {"readRegisteredTimers": "true"}


def _variables(entry: Any) -> tuple[dict[str, Any], list[str]] | None:
    """Properties and variables of `transformWithState`; `None` for other operators."""
    try:
        properties = json.loads(entry["operatorProperties"] or "{}")
    except (ValueError, TypeError):
        return None
    variables = properties.get("stateVariables") or []
    if isinstance(variables, str):
        variables = json.loads(variables)
    names = []
    for variable in variables:
        body = json.loads(variable) if isinstance(variable, str) else variable
        name = str(body.get("stateName", ""))
        if name and not name.startswith("$"):
            names.append(name)
    return (properties, names) if variables else None
