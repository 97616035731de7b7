"""The state of a flow, read from its checkpoint."""

from penstock._execution.state_reader import StateSection, read_flow
from penstock._launch import state_store
from penstock._model.pipeline import PipelineSettings
from penstock._repair.reading import stopped_storage
from penstock._tables.layout import layout_of


def read_flow_state(
    settings: PipelineSettings, flow: str, *, operator: int | None, limit: int
) -> tuple[StateSection, ...]:
    with stopped_storage(settings, update="state show") as spark:
        layout, store = layout_of(settings), state_store(settings, spark)
        return read_flow(spark, layout, store, flow, operator=operator, limit=limit)
