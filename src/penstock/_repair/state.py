"""The state of a flow, read from its checkpoint."""

import uuid

from penstock._execution.state_reader import StateSection, read_flow
from penstock._launch import state_store
from penstock._model.pipeline import PipelineSettings
from penstock._runtime.leases import PipelineLeases
from penstock._session import open_session, spark_log
from penstock._tables.layout import layout_of


def read_flow_state(
    settings: PipelineSettings, flow: str, *, operator: int | None, limit: int
) -> tuple[StateSection, ...]:
    holder = {"pipeline": settings.name, "update": "state show"}
    log = spark_log(settings, str(uuid.uuid4()))
    with (
        PipelineLeases(settings.home, holder) as leases,
        open_session(settings, log_file=log, leases=leases, analysis_only=True) as spark,
    ):
        layout, store = layout_of(settings), state_store(settings, spark)
        return read_flow(spark, layout, store, flow, operator=operator, limit=limit)
