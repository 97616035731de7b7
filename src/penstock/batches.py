"""For functions with `@dp.foreach_batch_sink`: writes that may be repeated.

After a crash Spark calls such a function again, with the same rows and the same batch id. These
helpers tell which batch it is, and keep what was done from being done twice.
"""

from penstock._api.batches import (
    MicroBatch,
    current_batch,
    foreach_row,
    idempotent_delta_write,
    once_per_batch,
)

__all__ = ["MicroBatch", "current_batch", "foreach_row", "idempotent_delta_write", "once_per_batch"]
