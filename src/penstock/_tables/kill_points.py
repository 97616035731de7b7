"""Named steps of a batch, at which a test can kill the process or let a flow fail.

`PENSTOCK_KILL_AT=<point>:<flow>:<batch_id>` is read once, when this module is imported. A batch of
`2+` means batch 2 or, if that one is only replayed, a later one.

`PENSTOCK_TEST_WITHOUT=<defence>` switches a defence off, so that a test can prove that it matters.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

Step = Callable[[str, str, int | None], None]
"""A function with the parameters of `kill_point`; may raise."""

_on_step: Step | None = None
_TARGET = os.environ.get("PENSTOCK_KILL_AT")


def kill_point(point: str, flow: str, batch_id: int | None) -> None:
    """Kill the process if the environment names this step; calls a test's callback first.

    Steps: `before_write`, `after_decision` (batches with two commits), `after_quarantine_commit`,
    `after_state_commit` (CDC flows), `after_staging` and `before_target_commit` (JDBC sinks),
    `after_target_commit`; `after_event_table` (of a table of events, whose name is the flow);
    `after_announcement` (of new files of Auto Loader); of commands `migration_...`,
    `backfill_...`, `replay_...`, `reset_...`, `restore_...` and `apply_...`.
    """
    if _on_step is not None:
        _on_step(point, flow, batch_id)
    if _TARGET is None or not _TARGET.startswith(f"{point}:{flow}:"):
        return
    batch = _TARGET.rpartition(":")[2]
    if batch.endswith("+"):
        matches = batch_id is not None and batch_id >= int(batch[:-1])
    else:
        matches = batch == str(batch_id)
    if matches:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def step_callback(on_step: Step) -> Iterator[None]:
    global _on_step
    before, _on_step = _on_step, on_step
    try:
        yield
    finally:
        _on_step = before


def is_switched_off(defence: str) -> bool:
    """Whether a test disabled a defence: `fence` (of tables), `sink-fence` or `decision`."""
    return os.environ.get("PENSTOCK_TEST_WITHOUT") == defence
