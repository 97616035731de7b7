"""Events of a command that changes one flow's table, for status, history and event log."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock._graph.dataflow import FlowNode
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import (
    CreateUpdate,
    Event,
    EventOrigin,
    FlowProgress,
    FlowStatus,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.log import EventLog, event_directory
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import StatusFile, status_path
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.reporter import error_info


@dataclass(frozen=True)
class Record:
    """Emits events of a command, from any thread; `flow` is the origin of the flow's events."""

    emit: Callable[[Event], None]
    flow: EventOrigin


@contextmanager
def recording(
    settings: PipelineSettings,
    update_id: str,
    node: "FlowNode",
    *,
    command: str,
    properties: Mapping[str, Any],
    text: str,
) -> Iterator[Record]:
    """Record the block as an update of one flow.

    `properties` are added to the `create_update` event; `text` is one line about the command.
    """
    bus, state = EventBus(), ObservedUpdate()
    log = EventLog(event_directory(settings), settings.events)
    status = StatusFile(status_path(settings), state)
    for subscriber in (state, log, status):
        bus.subscribe(subscriber)
    origin = EventOrigin(pipeline_name=settings.name, update_id=update_id)
    flow = replace(origin, flow_name=node.flow.name, dataset_name=node.target)
    try:
        configuration = {
            "storage": settings.storage,
            "root": settings.root,
            "continuous": False,
            **properties,
            "event_log": str(log.directory),
        }
        create = CreateUpdate(configuration)
        bus.emit(Event(origin, create, f"{command} of flow {node.flow.name!r}"))
        bus.emit(Event(origin, UpdateProgress(UpdateState.RUNNING), f"{command}: {text}"))
        bus.emit(Event(flow, FlowProgress(FlowStatus.RUNNING), command))
        yield Record(bus.emit, flow)
        bus.emit(Event(flow, FlowProgress(FlowStatus.COMPLETED), f"{command} done"))
        bus.emit(Event(origin, UpdateProgress(UpdateState.COMPLETED), f"{command} done"))
    except Exception as error:
        info = error_info(as_penstock_error(error, f"the {command}"))
        bus.emit(Event(flow, FlowProgress(FlowStatus.FAILED), info.message, error=info))
        bus.emit(Event(origin, UpdateProgress(UpdateState.FAILED), info.message, error=info))
        raise
    finally:
        log.close()
        status.close()
