"""Which files a micro-batch of Spark's file source has, from the checkpoint of its query."""

import json

from penstock._tables.files import StorageFiles


def batch_files(files: StorageFiles, checkpoint: str, batch_id: int) -> list[str]:
    """The files of one micro-batch, as URIs, of all file sources of the query.

    Called while the batch is being written: Spark has planned it, so its offsets are there.
    """
    return [path for path, _ in batch_entries(files, checkpoint, batch_id)]


def batch_entries(files: StorageFiles, checkpoint: str, batch_id: int) -> list[tuple[str, int]]:
    """As `batch_files`, with the time of each file's last change, in milliseconds since 1970."""
    ends = last_entries(files, checkpoint, batch_id)
    starts = last_entries(files, checkpoint, batch_id - 1) if batch_id > 0 else []
    batches: list[tuple[str, int]] = []
    for source, end in enumerate(ends):
        if end is None:
            continue
        start = starts[source] if source < len(starts) else None
        for number in range(-1 if start is None else start, end):
            batches += _logged(files, f"{checkpoint}/sources/{source}", number + 1)
    return batches


def last_entries(files: StorageFiles, checkpoint: str, batch_id: int) -> list[int | None]:
    """The last log entry of each source up to a batch, in their order; `None` for other kinds."""
    text = files.read(f"{checkpoint}/offsets/{batch_id}") or ""
    counts: list[int | None] = []
    # Two lines of its own, then one for each source.
    for line in text.splitlines()[2:]:
        try:
            offset = json.loads(line)
        except json.JSONDecodeError:
            offset = None
        end = offset.get("logOffset") if isinstance(offset, dict) else None
        counts.append(int(end) if end is not None else None)
    return counts


def _logged(files: StorageFiles, log: str, number: int) -> list[tuple[str, int]]:
    for name in (f"{number}", f"{number}.compact"):
        text = files.read(f"{log}/{name}")
        if text is None:
            continue
        entries = [json.loads(line) for line in text.splitlines()[1:] if line.strip()]
        # A compacted entry repeats all before it.
        return [
            (entry["path"], int(entry["timestamp"]))
            for entry in entries
            if entry.get("batchId", number) == number
        ]
    return []
