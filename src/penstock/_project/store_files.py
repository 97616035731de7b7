"""Files in an object store without Spark: pyarrow's file systems, with the settings of Hadoop's."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock._model.pipeline import PipelineSettings
from penstock._project.secrets import resolve_secrets

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Setting = Callable[..., str | None]
"""Returns the value of the first of the named `spark.hadoop.fs.` settings that is set."""

TIMEOUT_SECONDS = 20.0


def store_of(settings: PipelineSettings, uri: str) -> "tuple[FileSystem, str] | None":
    """The file system of a URI and the path in it; `None` if it is not of an object store.

    Opens no connection: wrong credentials fail on first use.
    """
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.rstrip("/").partition("/")

    def setting(*names: str) -> str | None:
        values = (settings.configuration.get(f"spark.hadoop.fs.{name}") for name in names)
        value = next(filter(None, values), None)
        return None if value is None else resolve_secrets(value, root=settings.root)

    match scheme:
        case "s3a":
            files, bucket = _s3(authority, setting), authority
        case "abfs" | "abfss":
            bucket, _, host = authority.partition("@")
            files = _azure(host, scheme, setting)
        case "gs":
            files, bucket = _gcs(setting), authority
        case _:
            return None
    return files, f"{bucket}/{path}" if path else bucket


def _s3(bucket: str, setting: Setting) -> "FileSystem":
    from pyarrow.fs import S3FileSystem

    def of_bucket(key: str) -> str | None:
        return setting(f"s3a.bucket.{bucket}.{key}", f"s3a.{key}")

    return S3FileSystem(
        access_key=of_bucket("access.key"),
        secret_key=of_bucket("secret.key"),
        session_token=of_bucket("session.token"),
        region=of_bucket("endpoint.region"),
        endpoint_override=of_bucket("endpoint"),
        connect_timeout=TIMEOUT_SECONDS,
        request_timeout=TIMEOUT_SECONDS,
        allow_delayed_open=True,  # one request for a small file
    )


def _azure(host: str, scheme: str, setting: Setting) -> "FileSystem":
    from pyarrow.fs import AzureFileSystem

    account, _, domain = host.partition(".")
    endpoint = setting("azure.abfs.endpoint") or f".{domain}"
    is_secure = scheme == "abfss" or setting("azure.always.use.https") != "false"
    protocol = "https" if is_secure else "http"
    return AzureFileSystem(
        account,
        account_key=setting(f"azure.account.key.{host}", "azure.account.key"),
        # National clouds have different domains.
        blob_storage_authority=endpoint.replace(".dfs.", ".blob."),
        dfs_storage_authority=endpoint.replace(".blob.", ".dfs."),
        blob_storage_scheme=protocol,
        dfs_storage_scheme=protocol,
    )


def _gcs(setting: Setting) -> "FileSystem":
    from pyarrow.fs import GcsFileSystem

    protocol, _, endpoint = (setting("gs.storage.root.url") or "").rstrip("/").rpartition("://")
    return GcsFileSystem(
        anonymous=setting("gs.auth.type") == "UNAUTHENTICATED",
        endpoint_override=endpoint or None,
        scheme=protocol or None,
        retry_time_limit=timedelta(seconds=TIMEOUT_SECONDS),
    )
