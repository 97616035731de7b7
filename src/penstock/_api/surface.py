"""The complete declarative API, as exported by `penstock`, `dlt` and `pyspark.pipelines`.

The module has only names, no definitions, so that `importlib.reload` of it has no effect.
"""

import sys

from penstock._api.cdc import (
    apply_changes,
    apply_changes_from_snapshot,
    create_auto_cdc_flow,
    create_auto_cdc_from_snapshot_flow,
)
from penstock._api.datasets import (
    create_streaming_live_table,
    create_streaming_table,
    create_table,
    create_target_table,
    create_view,
    materialized_view,
    table,
    temporary_view,
    view,
)
from penstock._api.expectations import (
    expect,
    expect_all,
    expect_all_or_drop,
    expect_all_or_fail,
    expect_all_or_quarantine,
    expect_or_drop,
    expect_or_fail,
    expect_or_quarantine,
    expect_row_count,
    expect_unique,
)
from penstock._api.flows import append_flow, create_sink, foreach_batch_sink, update_flow
from penstock._api.hooks import on_event_hook
from penstock._api.reading import read, read_stream, readStream
from penstock._model.similar import nearest

__all__ = [
    "append_flow",
    "apply_changes",
    "apply_changes_from_snapshot",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "create_sink",
    "create_streaming_live_table",
    "create_streaming_table",
    "create_table",
    "create_target_table",
    "create_view",
    "expect",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
    "expect_all_or_quarantine",
    "expect_or_drop",
    "expect_or_fail",
    "expect_or_quarantine",
    "expect_row_count",
    "expect_unique",
    "foreach_batch_sink",
    "materialized_view",
    "on_event_hook",
    "read",
    "readStream",
    "read_stream",
    "table",
    "temporary_view",
    "update_flow",
    "view",
]


_OF_LOADING_TOOL = ("destination", "pipeline", "resource", "source", "transformer")


def __getattr__(name: str) -> object:
    """Return this module as `pyspark.pipelines.api`; for other names, suggest a similar one."""
    if name == "api":
        return sys.modules[__name__]
    if name == "replace_flow":
        raise AttributeError("`replace_flow` is not available yet", name=name)
    close = nearest(name, __all__)
    suggestion = f"; did you mean {close!r}?" if close else ""
    if name in _OF_LOADING_TOOL:
        suggestion = "; code for the loading tool `dlt` of PyPI runs on its own, outside pipelines"
    raise AttributeError(f"the pipeline API has no {name!r}{suggestion}", name=name)
