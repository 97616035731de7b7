"""For functions with `@dp.foreach_batch_sink`: the current batch and idempotent writes.

After a crash Spark calls such a function again, with the same rows and the same batch id. These
helpers identify the batch and make its writes idempotent.
"""

from penstock._api.batches import (
    MicroBatch,
    current_batch,
    foreach_row,
    idempotent_delta_write,
    once_per_batch,
)

__all__ = ["MicroBatch", "current_batch", "foreach_row", "idempotent_delta_write", "once_per_batch"]
