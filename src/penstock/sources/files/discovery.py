"""How a stream of files finds new files."""

import re
from enum import Enum, auto

from pyspark.sql import SparkSession

from penstock._formats.options import FileOptions, IncrementalListing
from penstock._tables.files import hadoop_path
from penstock.errors import ConnectorError
from penstock.sources.files.listing import FileRoots

_S3 = re.compile(r"(?i)s3[an]?://")


class Discovery(Enum):
    """How new files are found; all methods but `SPARK` use a log of announced files."""

    SPARK = auto()
    """Spark lists the roots for each micro-batch."""
    QUEUE = auto()
    """Notifications are received from a queue."""
    NAMES = auto()
    """The names in local folders are compared with those of the last listing."""
    KEYS = auto()
    """The objects of S3 are listed whose keys come after those of earlier listings."""


def choose_discovery(spark: SparkSession, options: FileOptions, roots: FileRoots) -> Discovery:
    """How a stream finds new files if it can have a log of announced files."""
    # A range with an end is listed: its files may have been announced long ago.
    if options.modified_before is not None:
        return Discovery.SPARK
    on_s3 = all(_S3.match(path) for path in roots.paths)
    if options.use_notifications and on_s3:
        if options.queue is None:
            raise ConnectorError(
                "AUTOLOADER_OPTION_INVALID",
                "cloudFiles.useNotifications is true and cloudFiles.queueUrl is not set: no queue "
                "is created automatically",
                hint="docs/autoloader.md#notifications has the commands that create a queue and "
                "send the bucket's events to it; without it, leave useNotifications out",
            )
        return Discovery.QUEUE
    incremental = options.incremental_listing
    if incremental is not IncrementalListing.OFF and roots.are_local:
        return Discovery.NAMES
    if incremental is IncrementalListing.ON and on_s3:
        system, _ = hadoop_path(spark, roots.paths[0])
        # Only Hadoop's own S3 client can start a listing at a key.
        if str(system.getClass().getName()).startswith("org.apache.hadoop.fs.s3a."):
            return Discovery.KEYS
    return Discovery.SPARK
