"""Named steps of a batch, at which a test can kill the process or let a flow fail.

`PENSTOCK_KILL_AT=<point>:<flow>:<batch_id>` is read once, when this module is imported. `2+` as the
batch means 2 or, where that one is only replayed, a later one.

`PENSTOCK_TEST_WITHOUT=<defence>` switches a defence off, so that a test can show that it would be
missed.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

Step = Callable[[str, str, int | None], None]
"""Gets what `kill_point` gets; may raise."""

_on_step: Step | None = None
_TARGET = os.environ.get("PENSTOCK_KILL_AT")


def kill_point(point: str, flow: str, batch_id: int | None) -> None:
    """Die here if the environment says so, or raise what a test wants.

    Args:
        point: `before_write`, `after_decision` (batches with two commits),
            `after_quarantine_commit`, `after_state_commit` (CDC flows), `after_staging` and
            `before_target_commit` (JDBC sinks) or `after_target_commit`.
        flow: Name of the flow.
        batch_id: Micro-batch.
    """
    if _on_step is not None:
        _on_step(point, flow, batch_id)
    if _TARGET is None or not _TARGET.startswith(f"{point}:{flow}:"):
        return
    wanted = _TARGET.rpartition(":")[2]
    if wanted.endswith("+"):
        is_met = batch_id is not None and batch_id >= int(wanted[:-1])
    else:
        is_met = wanted == str(batch_id)
    if is_met:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def step_callback(on_step: Step) -> Iterator[None]:
    """Call a function at each step of all flows of this process; an error of it fails the flow."""
    global _on_step
    before, _on_step = _on_step, on_step
    try:
        yield
    finally:
        _on_step = before


def is_switched_off(defence: str) -> bool:
    """Whether a test wants to see what happens without a defence.

    Args:
        defence: `fence` (of tables), `sink-fence`, or `decision` (a batch is judged once).
    """
    return os.environ.get("PENSTOCK_TEST_WITHOUT") == defence
