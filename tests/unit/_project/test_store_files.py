"""The file system of a URI, from the settings of Hadoop's connectors."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from pyarrow.fs import AzureFileSystem, FileSystem, GcsFileSystem, S3FileSystem

from penstock._model.pipeline import PipelineSettings
from penstock._project.store_files import store_of

AZURE = "lake@shop.dfs.core.windows.net"
KEY = "a2V5"


def azure(key: str | None, endpoint: tuple[str, str], scheme: str) -> AzureFileSystem:
    return AzureFileSystem(
        "shop",
        account_key=key,
        blob_storage_authority=endpoint[0],
        dfs_storage_authority=endpoint[1],
        blob_storage_scheme=scheme,
        dfs_storage_scheme=scheme,
    )


def store(uri: str, configuration: Mapping[str, str]) -> tuple[FileSystem, str] | None:
    full = {f"spark.hadoop.fs.{key}": value for key, value in configuration.items()}
    return store_of(PipelineSettings(name="shop", storage=uri, root="/", configuration=full), uri)


def s3(**options: str) -> S3FileSystem:
    return S3FileSystem(
        **options, connect_timeout=20.0, request_timeout=20.0, allow_delayed_open=True
    )


WORLD = (".blob.core.windows.net", ".dfs.core.windows.net")
CHINA = (".blob.core.chinacloudapi.cn", ".dfs.core.chinacloudapi.cn")
LOCAL = ("127.0.0.1:1234", "127.0.0.1:1234")
LIMIT = timedelta(seconds=20)


@pytest.mark.parametrize(
    ("uri", "configuration", "files", "path"),
    [
        (
            "s3a://lake/shop/",
            {"s3a.access.key": "a", "s3a.secret.key": "b", "s3a.endpoint.region": "eu-west-1"},
            s3(access_key="a", secret_key="b", region="eu-west-1"),
            "lake/shop",
        ),
        (
            "s3a://lake",
            {
                "s3a.endpoint": "http://a",
                "s3a.bucket.lake.endpoint": "http://b",
                "s3a.endpoint.region": "us-east-1",
            },
            s3(region="us-east-1", endpoint_override="http://b"),
            "lake",
        ),
        (f"abfss://{AZURE}/a/b", {}, azure(None, WORLD, "https"), "lake/a/b"),
        (
            f"abfss://{AZURE}/a",
            {"azure.account.key.shop.dfs.core.windows.net": KEY, "azure.account.key": "b3RoZXI="},
            azure(KEY, WORLD, "https"),
            "lake/a",
        ),
        (
            "abfss://lake@shop.dfs.core.chinacloudapi.cn/a",
            {"azure.account.key": KEY},
            azure(KEY, CHINA, "https"),
            "lake/a",
        ),
        (
            f"abfs://{AZURE}/a",
            {
                "azure.account.key": KEY,
                "azure.abfs.endpoint": "127.0.0.1:1234",
                "azure.always.use.https": "false",
            },
            azure(KEY, LOCAL, "http"),
            "lake/a",
        ),
        ("gs://lake/a", {}, GcsFileSystem(retry_time_limit=LIMIT), "lake/a"),
        (
            "gs://lake/a",
            {
                "gs.storage.root.url": "http://127.0.0.1:1234/",
                "gs.auth.type": "UNAUTHENTICATED",
            },
            GcsFileSystem(
                anonymous=True,
                scheme="http",
                endpoint_override="127.0.0.1:1234",
                retry_time_limit=LIMIT,
            ),
            "lake/a",
        ),
    ],
)
def test_file_system_has_the_hadoop_settings_of_its_store(
    uri: str, configuration: Mapping[str, str], files: FileSystem, path: str
) -> None:
    assert store(uri, configuration) == (files, path)


def test_key_can_be_a_secret_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET_AZURE_KEY", KEY)
    secret = {"azure.account.key": "${secret:azure/key}"}
    assert store(f"abfss://{AZURE}/a", secret) == (azure(KEY, WORLD, "https"), "lake/a")


@pytest.mark.parametrize("uri", ["/data/shop", "file:///data/shop", "hdfs://node/shop"])
def test_local_and_hdfs_uris_have_no_file_system(uri: str) -> None:
    assert store(uri, {}) is None
