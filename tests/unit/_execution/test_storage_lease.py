"""The lease of a remote storage."""

import errno
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException

from penstock._execution.storage_lease import StorageLease
from penstock.errors import SetupError


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(), OSError(errno.EMFILE, "Too many open files")]
)
def test_lease_is_not_lost_when_the_jvm_ends(error):
    spark = MagicMock()
    lease = StorageLease(spark, "s3a://bucket/shop", {}, 30.0, is_borrowed=False)
    lease._jvm = spark.of_java
    # Py4J raises the error on the first call of a thread, such as the thread that watches the JVM.
    spark.of_java.renew.side_effect = error
    assert lease.failure() is None


@pytest.mark.parametrize(
    ("storage", "error", "hint"),
    [
        ("s3://bucket/shop", Py4JError('No FileSystem for scheme "s3"'), "s3a://"),
        (
            "s3a://logs.2026/shop",
            IllegalArgumentException("bucket is null/empty"),
            "another bucket",
        ),
    ],
)
def test_hint_explains_why_a_storage_address_is_refused(storage, error, hint):
    spark = MagicMock()
    spark._jvm.org.apache.hadoop.fs.Path.side_effect = error
    with pytest.raises(SetupError) as refused:
        StorageLease.acquire(spark, storage, {}, 1.0)
    assert refused.value.condition == "LEASE_UNAVAILABLE"
    assert hint in (refused.value.hint or "")


def test_lease_is_unavailable_when_its_record_cannot_be_written():
    spark = MagicMock()
    lease = StorageLease(spark, "s3a://bucket/shop", {}, 30.0, is_borrowed=False)
    lease._jvm = spark.of_java
    spark.of_java.setRecord.side_effect = Py4JError("AccessDeniedException: Status Code: 403")
    with pytest.raises(SetupError, match="403") as refused:
        lease.add_tables(["s3a://bucket/shop/tables/bronze"])
    assert refused.value.condition == "LEASE_UNAVAILABLE"
