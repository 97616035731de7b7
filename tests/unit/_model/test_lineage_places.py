import pytest

from penstock._model.lineage import LineageSource, place_of


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/in/", "file", "/data/in"),
        ("file:/data/in", "file", "/data/in"),
        ("file:///data/in", "file", "/data/in"),
        ("dbfs:/mnt/in", "dbfs", "/mnt/in"),
        ("s3a://bucket/a/b", "s3://bucket", "a/b"),
        ("s3a://key:secret@bucket/a", "s3://bucket", "a"),
        ("s3a://[redacted]@bucket/a?x=1", "s3://bucket", "a"),
        ("gs://bucket", "gs://bucket", "/"),
        ("hdfs://node:8020/a", "hdfs://node:8020", "/a"),
        ("abfss://box@shop.dfs.core/a", "abfss://box@shop.dfs.core", "/a"),
        ("abfss://u:p@shop.dfs.core/a", "abfss://shop.dfs.core", "/a"),
        ("wasbs://box@shop.blob/a", "wasbs://box@shop.blob", "/a"),
    ],
)
def test_lineage_source_is_named_as_in_openlineage_without_credentials(uri, namespace, name):
    assert place_of(uri) == LineageSource(namespace=namespace, name=name)
