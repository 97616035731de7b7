"""The lease of a storage on another machine."""

import errno
from unittest.mock import MagicMock

import pytest

from penstock._execution.storage_lease import StorageLease


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(), OSError(errno.EMFILE, "Too many open files")]
)
def test_lease_is_not_lost_when_the_jvm_ends(error):
    spark = MagicMock()
    lease = StorageLease(spark, "s3a://bucket/shop", {}, 30.0, is_borrowed=False)
    lease._jvm = spark.of_java
    # Py4J raises it on a thread that made no call before, such as the one that watches the JVM.
    spark.of_java.renew.side_effect = error
    assert lease.failure() is None
