"""States of sources in memory, for analyses without a storage."""

from penstock.sources.memory import PassingMemory, SourceMemory


class MemoryStates:
    """Keeps the state of sources in this process only."""

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], PassingMemory] = {}

    def store(self, flow: str, key: str, *, analysis: bool) -> SourceMemory:
        """See `FileStates.store`."""
        del analysis
        return self._stores.setdefault((flow, key), PassingMemory())
