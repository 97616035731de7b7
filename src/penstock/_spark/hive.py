"""Settings of a Spark session that uses a Hive metastore."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._model.paths import local_path
from penstock.errors import SetupError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HADOOP = "spark.hadoop."
_URL = "javax.jdo.option.ConnectionURL"
_ADDRESSES = (_URL, "hive.metastore.uris", "hive.metastore.client.factory.class")
_DERBY = "jdbc:derby:;databaseName="
_IMPLEMENTATION = "spark.sql.catalogImplementation"


def hive_configuration(options: Mapping[str, str], storage_root: str) -> dict[str, str]:
    """Spark's settings for a metastore with these options of Hive.

    Without an address, the metastore is a Derby database below the storage root.

    Raises:
        SpecError: `METASTORE_ADDRESS_MISSING`: There is no address, and the storage is remote.
    """
    hive = dict(options)
    if not any(key in options for key in _ADDRESSES):
        folder = local_path(storage_root)
        if folder is None:
            raise SpecError(
                "METASTORE_ADDRESS_MISSING",
                f"`catalog` needs the address of a Hive metastore: {storage_root} cannot hold an "
                "embedded one",
                hint="set `hive.metastore.uris` in `catalog.options`",
            )
        hive[_URL] = f"{_DERBY}{folder / 'metastore'};create=true"
        # Create the tables of a new database, in the version of Spark's built-in Hive.
        hive.setdefault("datanucleus.schema.autoCreateAll", "true")
        hive.setdefault("hive.metastore.schema.verification", "false")
    return {
        _IMPLEMENTATION: "hive",
        **{f"{_HADOOP}{key}": value for key, value in hive.items()},
    }


def metastore_address(options: Mapping[str, str], storage_root: str) -> str:
    """The address of the metastore, as the doctor shows it."""
    configuration = hive_configuration(options, storage_root)
    return next(
        configuration[_HADOOP + key]
        for key in reversed(_ADDRESSES)
        if _HADOOP + key in configuration
    )


def derby_folder(configuration: Mapping[str, str]) -> str | None:
    """The folder of the embedded metastore, if the settings of the session have one."""
    url = configuration.get(_HADOOP + _URL, "")
    return url.removeprefix(_DERBY).partition(";")[0] if url.startswith(_DERBY) else None


def require_derby(folder: str) -> None:
    """Refuse a metastore without write permission: Derby opens it read-only, Hive retries long.

    Raises:
        PermissionError: The folder is not readable and writable.
    """
    if Path(folder).exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def require_hive(spark: "SparkSession") -> None:
    """Refuse a session of the calling process that has no Hive metastore."""
    if spark.conf.get(_IMPLEMENTATION, "in-memory") != "hive":
        raise SetupError(
            "SESSION_WITHOUT_HIVE",
            "the settings register tables in a Hive metastore, but the active SparkSession was "
            "built without Hive",
            hint="build it with enableHiveSupport(), or leave `type` out of `catalog`",
        )
