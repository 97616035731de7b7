"""Keys and values of the settings that Penstock reads from flows, tables and the pipeline.

A setting of a flow is taken from its `spark_conf`, then from `spark_conf` and the properties of its
table, then from the configuration of the pipeline. `check_settings` reads all settings before the
update starts, so that an invalid value fails `check` and `dry-run` rather than a running flow.
"""

from collections.abc import Mapping

from penstock._graph.dataflow import DataflowGraph, DatasetNode, FlowNode
from penstock._plan.maintenance import boolean, table_maintenance
from penstock.errors import SpecError

RESET_ALLOWED = "pipelines.reset.allowed"
WIDENING = "pipelines.enableTypeWidening"
FLOW_RETRIES = ("pipelines.maxFlowRetryAttempts", "spark.sql.pipelines.maxFlowRetryAttempts")
"""How often a flow is restarted after transient errors: the names in Databricks and in Spark's own
engine."""
UPDATE_RETRIES = "pipelines.numUpdateRetryAttempts"
"""The same for an update before its flows start. Afterwards, only flows are retried."""
GROWING_STATE = "penstock.growingState"
"""The action for a query whose state grows without bound: `allow`, `warn` or `error`."""
TOMBSTONES = (
    "pipelines.cdc.tombstoneGCThresholdInSeconds",
    "pipelines.applyChanges.tombstoneGCThresholdInSeconds",
)


def check_settings(graph: DataflowGraph, configuration: Mapping[str, str]) -> None:
    """Validate all settings.

    Raises:
        SpecError: A setting has an invalid value.
    """
    update_retries(configuration)
    widening(configuration)
    for node in graph.stored():
        reset_allowed(node, configuration)
        table_maintenance(graph, node, {})
    for flow in graph.flows.values():
        flow_retries(graph, flow, configuration)
        growing_state_action(graph, flow, configuration)
        tombstone_seconds(graph, flow, configuration)


def flow_setting(
    graph: DataflowGraph, flow: FlowNode, configuration: Mapping[str, str], *keys: str
) -> tuple[str, str] | None:
    """A setting of a flow, its table or the pipeline, with its key.

    If a level has several of the keys, the first one is taken.
    """
    levels = [flow.flow.spark_conf, configuration]
    if (node := graph.datasets.get(flow.target)) is not None:
        levels[1:1] = [node.declared.spark_conf, node.declared.table_properties]
    for level in levels:
        for key in keys:
            if key in level:
                return key, level[key]
    return None


def reset_allowed(node: DatasetNode, configuration: Mapping[str, str]) -> bool:
    """Whether a table may be emptied; by default it may."""
    declared = node.declared
    text = declared.table_properties.get(RESET_ALLOWED)
    if text is not None:
        return boolean(f"{RESET_ALLOWED} of {node.display!r}", text, declared.origin)
    return boolean(RESET_ALLOWED, configuration.get(RESET_ALLOWED, "true"))


def widening(configuration: Mapping[str, str]) -> bool | None:
    """Whether type widening is enabled for new tables; `None` if it is not set."""
    text = configuration.get(WIDENING)
    return None if text is None else boolean(WIDENING, text)


def update_retries(configuration: Mapping[str, str]) -> int | None:
    """How often a failed update is retried as a whole; `None` if it is not set."""
    text = configuration.get(UPDATE_RETRIES)
    return None if text is None else _retries(UPDATE_RETRIES, text)


def flow_retries(
    graph: DataflowGraph, flow: FlowNode, configuration: Mapping[str, str]
) -> int | None:
    """How often a failed flow is restarted; `None` if it is not set."""
    setting = flow_setting(graph, flow, configuration, *FLOW_RETRIES)
    return None if setting is None else _retries(*setting)


def growing_state_action(
    graph: DataflowGraph, flow: FlowNode, configuration: Mapping[str, str]
) -> str:
    """The value of `penstock.growingState`: `allow`, `warn` (the default) or `error`."""
    _, text = flow_setting(graph, flow, configuration, GROWING_STATE) or ("", "warn")
    if text.lower() not in ("allow", "warn", "error"):
        raise SpecError(
            "INVALID_GROWING_STATE",
            f"{GROWING_STATE} is {text!r}",
            hint="set it to allow, warn or error",
        )
    return text.lower()


def tombstone_seconds(
    graph: DataflowGraph, flow: FlowNode, configuration: Mapping[str, str]
) -> float | None:
    """How long an auto CDC flow keeps deleted keys, in seconds; `None` means forever."""
    setting = flow_setting(graph, flow, configuration, *TOMBSTONES)
    if setting is None:
        return None
    key, text = setting
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise SpecError(
            "SETTING_INVALID",
            f"{key} of flow {flow.flow.name!r} is {text!r}",
            origin=flow.flow.origin,
            hint="set it to a number of seconds",
        )
    return seconds


def _retries(key: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise SpecError(
            "INVALID_RETRY_ATTEMPTS",
            f"{key} is {text!r}",
            hint="set it to a whole number; 0 disables retries",
        )
    return number
