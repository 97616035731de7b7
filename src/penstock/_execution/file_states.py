"""State of file sources, in an analysis and in a run."""

import threading

from penstock._execution.flow_state import StateStore
from penstock._tables.files import StorageFiles
from penstock._tables.layout import StorageLayout
from penstock.sources.files.opening import LISTED, LISTED_KEYS
from penstock.sources.memory import FolderMemory, PassingMemory, SourceMemory

_NO_EPOCH = "batch"


class FileStates:
    """Stores of the file sources of a pipeline's flows; thread-safe."""

    def __init__(self, files: StorageFiles, layout: StorageLayout, flows: StateStore) -> None:
        self._files = files
        self._layout = layout
        self._flows = flows
        self._analysed: dict[tuple[str, str], PassingMemory] = {}
        self._lock = threading.Lock()

    def store(self, flow: str, key: str, *, analysis: bool) -> SourceMemory:
        """The store of one source; see `Memories`."""
        state = self._flows.flow(flow)
        epoch = state.epoch if state is not None else _NO_EPOCH
        folder = f"{self._layout.source_files(flow, epoch)}/{key}"
        with self._lock:
            if not analysis:
                seed = self._analysed.get((flow, key))
                return FolderMemory(self._files, folder, seed=seed)
            if (flow, key) not in self._analysed:
                persisted = FolderMemory(self._files, folder)
                self._analysed[flow, key] = PassingMemory(persisted)
            return self._analysed[flow, key]


def forget_listings(files: StorageFiles, layout: StorageLayout, flow: str, epoch: str) -> None:
    """Make the next start in an epoch list its files: messages about them may be deleted."""
    folder = layout.source_files(flow, epoch)
    for source in files.names(folder):
        for note in (LISTED, LISTED_KEYS):
            files.delete_tree(f"{folder}/{source}/{note}.json")
