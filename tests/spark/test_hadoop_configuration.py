"""Jobs copy and send a small Hadoop configuration with all settings that file systems need."""

from typing import Any

from pyspark.sql import SparkSession


def test_yarn_values_and_property_sources_are_left_out(spark: SparkSession) -> None:
    session: Any = spark._jsparkSession
    configuration = session.sessionState().newHadoopConf()
    assert configuration.getValByRegex(r"^yarn\.").isEmpty()
    assert 300 < configuration.size() < 700
    assert configuration.getPropertySources("fs.s3a.impl") is None
    expected = {
        "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.hdfs.impl": "org.apache.hadoop.fs.Hdfs",
        "mapreduce.fileoutputcommitter.task.cleanup.enabled": "false",
    }
    assert {key: configuration.get(key) for key in expected} == expected
