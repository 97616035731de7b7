import pytest

from penstock._spark.hive import (
    derby_folder,
    hive_configuration,
    metastore_address,
    require_derby,
)
from penstock.errors import SpecError

URL = "spark.hadoop.javax.jdo.option.ConnectionURL"


def test_metastore_without_an_address_is_a_derby_database_in_the_storage():
    configuration = hive_configuration({}, "file:///data/my shop")
    assert configuration["spark.sql.catalogImplementation"] == "hive"
    assert configuration[URL] == "jdbc:derby:;databaseName=/data/my shop/metastore;create=true"
    assert derby_folder(configuration) == "/data/my shop/metastore"
    assert metastore_address({}, "file:///data/my shop") == configuration[URL]


def test_no_derby_database_is_configured_when_the_metastore_has_an_address():
    options = {"hive.metastore.uris": "thrift://m:9083", "hive.metastore.sasl.enabled": "true"}
    configuration = hive_configuration(options, "s3a://bucket/shop")
    assert configuration == {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": "thrift://m:9083",
        "spark.hadoop.hive.metastore.sasl.enabled": "true",
    }
    assert derby_folder(configuration) is None
    assert metastore_address(options, "s3a://bucket/shop") == "thrift://m:9083"


def test_derby_database_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    require_derby(str(tmp_path / "new"))
    with pytest.raises(PermissionError, match="Permission denied") as caught:
        require_derby(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


def test_metastore_of_a_remote_storage_requires_an_address():
    with pytest.raises(SpecError, match=r"s3a://bucket/shop cannot hold") as caught:
        hive_configuration({"datanucleus.schema.autoCreateAll": "true"}, "s3a://bucket/shop")
    assert caught.value.condition == "METASTORE_ADDRESS_MISSING"
