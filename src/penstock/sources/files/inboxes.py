"""The inbox of a source, by how its new files are discovered."""

from collections.abc import Sequence

from penstock.sources.files.discovery import Discovery
from penstock.sources.files.inbox import FileInbox
from penstock.sources.files.key_inbox import KeyInbox
from penstock.sources.files.listing import FileRoots
from penstock.sources.files.name_inbox import NameInbox
from penstock.sources.files.opening import OpenedFiles
from penstock.sources.files.queue_inbox import QueueInbox

_INBOXES: dict[Discovery, type[FileInbox]] = {
    Discovery.QUEUE: QueueInbox,
    Discovery.NAMES: NameInbox,
    Discovery.KEYS: KeyInbox,
}


def open_inbox(
    source: OpenedFiles, checkpoint: str, roots: Sequence[FileRoots | None], flow: str
) -> FileInbox | None:
    """Arguments as for `FileInbox`; `None` if Spark lists the files itself."""
    kind = _INBOXES.get(source.discovery)
    return None if kind is None else kind(source, checkpoint, roots, flow)
