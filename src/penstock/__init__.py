"""Declarative streaming pipelines on any open-source Spark.

`import penstock as dp`; inside of a pipeline `import dlt` and `from pyspark import pipelines as dp`
give the same functions. `run`, `plan`, `check` and `open_pipeline` are for programs and notebooks.
Errors are in `penstock.errors`.
"""

import typing as _typing

from penstock._api.surface import (
    append_flow,
    apply_changes,
    apply_changes_from_snapshot,
    create_auto_cdc_flow,
    create_auto_cdc_from_snapshot_flow,
    create_sink,
    create_streaming_live_table,
    create_streaming_table,
    create_table,
    create_target_table,
    create_view,
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
    foreach_batch_sink,
    materialized_view,
    on_event_hook,
    read,
    read_stream,
    readStream,
    table,
    temporary_view,
    update_flow,
    view,
)

if _typing.TYPE_CHECKING:
    from penstock.pipelines import check, open_pipeline, plan, run

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "append_flow",
    "apply_changes",
    "apply_changes_from_snapshot",
    "check",
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
    "open_pipeline",
    "plan",
    "read",
    "readStream",
    "read_stream",
    "run",
    "table",
    "temporary_view",
    "update_flow",
    "view",
]


def __getattr__(name: str) -> _typing.Any:
    """Import `penstock.pipelines` when it is used: declarations need less."""
    if name in ("check", "open_pipeline", "plan", "run"):
        from penstock import pipelines

        return getattr(pipelines, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
