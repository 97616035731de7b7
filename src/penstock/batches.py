"""Idempotent writes for functions with `@dp.foreach_batch_sink`.

After a crash Spark calls such a function again, with the same rows and the same batch id. These
functions return the current batch, and skip writes that were done before.
"""

from penstock._api.batches import (
    MicroBatch,
    current_batch,
    foreach_row,
    idempotent_delta_write,
    once_per_batch,
)

__all__ = ["MicroBatch", "current_batch", "foreach_row", "idempotent_delta_write", "once_per_batch"]
