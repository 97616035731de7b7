"""JVM names are cached if they exist, and looked up again if they do not."""

from typing import Any

import pytest
from py4j.java_gateway import JavaPackage


def test_a_class_is_looked_up_once_when_it_exists(spark: Any):
    jvm = spark._jvm
    assert jvm.org.apache.spark.sql.Encoders is jvm.org.apache.spark.sql.Encoders
    assert jvm.java.util.HashMap().size() == 0
    # Each constructor call creates a new object.
    assert jvm.java.util.HashMap() is not jvm.java.util.HashMap()
    assert jvm.functions is jvm.functions


def test_a_missing_class_is_looked_up_on_each_access(spark: Any):
    package = spark._jvm.org.example
    assert isinstance(package.Missing, JavaPackage)
    assert package.Missing is not package.Missing
    with pytest.raises(TypeError, match="'JavaPackage' object is not callable"):
        package.Missing()
