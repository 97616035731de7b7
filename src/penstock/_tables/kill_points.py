"""Named places at which a test can kill the process, as `kill -9` would.

`PENSTOCK_KILL_AT=<point>:<flow>:<batch_id>` is read once, when this module is imported.
"""

import os
import signal

_TARGET = os.environ.get("PENSTOCK_KILL_AT")


def kill_point(point: str, flow: str, batch_id: int | None) -> None:
    """Die here if the environment says so.

    Args:
        point: `before_write`, `after_quarantine_commit` or `after_target_commit`.
        flow: Name of the flow.
        batch_id: Micro-batch.
    """
    if _TARGET is not None and f"{point}:{flow}:{batch_id}" == _TARGET:
        os.kill(os.getpid(), signal.SIGKILL)
