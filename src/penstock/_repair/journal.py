"""The journal of a repair: a small JSON file that records what a command has started.

It is written before anything changes and deleted when the command is done. A command that was
killed is resumed with it, even if its options or the pipeline have changed. Other files of the
repair are in the same folder, and are deleted with it. `recording` adds the command to status,
history and event log.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock._execution.savepoints import journal_damaged
from penstock._graph.dataflow import FlowNode
from penstock._launch import OpenPipeline
from penstock._observe.bus import EventBus
from penstock._observe.events import (
    CreateUpdate,
    ErrorInfo,
    Event,
    EventOrigin,
    FlowProgress,
    FlowStatus,
    UpdateProgress,
    UpdateState,
)
from penstock._observe.log import event_directory, event_log
from penstock._observe.state import ObservedUpdate
from penstock._observe.status_file import StatusFile, status_path
from penstock._observe.unfinished import end_unfinished
from penstock._project.event_store import kept_events
from penstock._runtime.boundary import as_penstock_error
from penstock._runtime.reporter import error_info
from penstock._spark.failures import command_error
from penstock._tables.files import StorageFiles, local_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Entry = TypeVar("Entry", bound="DataclassInstance")


class Journal(Generic[Entry]):
    """The journal of the repairs of one flow or table, one repair at a time."""

    def __init__(
        self,
        files: StorageFiles,
        folder: str,
        parse: Callable[..., Entry],  # called with the fields of an entry
        name: str = "decided.json",  # name of the file in the folder
    ) -> None:
        self.folder = folder
        self._files = files
        self._parse = parse
        self._path = f"{folder}/{name}"

    def load(self) -> Entry | None:
        text = self._files.read(self._path)
        try:
            return self._parse(**json.loads(text)) if text else None
        except (ValueError, KeyError, TypeError) as error:
            raise journal_damaged(self._path) from error

    def save(self, entry: Entry) -> None:
        """Replace the entry, atomically on a local disk."""
        self._files.write(self._path, json.dumps(asdict(entry), indent=1))

    def clear(self) -> None:
        """Remove the entry; other files of the repair stay."""
        if self._files.exists(self._path):
            self._files.write(self._path, "")

    def delete(self) -> None:
        """Remove the entry, then the folder: a kill in between leaves no entry without files."""
        self.clear()
        self._files.delete_tree(self.folder)


@dataclass(frozen=True)
class Record:
    """Emits events of a command, from any thread; `flow` is the origin of the flow's events."""

    emit: Callable[[Event], None]
    flow: EventOrigin


@contextmanager
def recording(
    pipeline: OpenPipeline,
    node: FlowNode | None,
    *,
    command: str,
    properties: Mapping[str, Any],
    text: str,
) -> Iterator[Record]:
    """Record the block as an update, of one flow unless `node` is `None`.

    `properties` are added to the `create_update` event; `text` is one line about the command.
    """
    settings = pipeline.settings
    bus, state, copy = EventBus(), ObservedUpdate(), ExitStack()
    copy.enter_context(kept_events(settings))
    if local_path(settings.storage) is not None:
        with suppress(OSError):  # a full disk is reported by the first event
            end_unfinished(event_directory(settings))
    log = event_log(settings)
    status = StatusFile(status_path(settings), state)
    for subscriber in (state, log, status):
        bus.subscribe(subscriber)
    origin = EventOrigin(pipeline_name=settings.name, update_id=pipeline.update_id)
    flow, about = origin, ""
    if node is not None:
        flow = replace(origin, flow_name=node.flow.name, dataset_name=node.target)
        about = f" of flow {node.flow.name!r}"

    def flow_event(status: FlowStatus, text: str, error: ErrorInfo | None = None) -> None:
        if node is not None:
            bus.emit(Event(flow, FlowProgress(status), text, error=error))

    try:
        configuration = {
            "storage": settings.storage,
            "root": settings.root,
            "continuous": False,
            "command": command,
            **properties,
            "event_log": str(log.directory),
        }
        bus.emit(Event(origin, CreateUpdate(configuration), f"{command}{about}"))
        bus.emit(Event(origin, UpdateProgress(UpdateState.RUNNING), f"{command}: {text}"))
        flow_event(FlowStatus.RUNNING, command)
        yield Record(bus.emit, flow)
        flow_event(FlowStatus.COMPLETED, f"{command} done")
        bus.emit(Event(origin, UpdateProgress(UpdateState.COMPLETED), f"{command} done"))
    except KeyboardInterrupt:
        flow_event(FlowStatus.STOPPED, f"{command} was interrupted")
        bus.emit(Event(origin, UpdateProgress(UpdateState.CANCELED), "interrupted"))
        raise
    except Exception as error:
        known = command_error(error, command) or as_penstock_error(error, f"the {command}")
        info = error_info(known)
        flow_event(FlowStatus.FAILED, info.message, info)
        bus.emit(Event(origin, UpdateProgress(UpdateState.FAILED), info.message, error=info))
        raise
    finally:
        log.close()
        status.close()
        copy.close()
