"""Declarative streaming pipelines on any open-source Spark.

`import penstock as dp`; inside of a pipeline `import dlt` and `from pyspark import pipelines as dp`
give the same functions. Errors are in `penstock.errors`.
"""

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
    expect_or_drop,
    expect_or_fail,
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

__version__ = "0.1.0"

__all__ = [
    "__version__",
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
    "expect_or_drop",
    "expect_or_fail",
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
