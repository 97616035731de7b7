"""Shrinks the Hadoop configuration, which every Spark job copies and sends to its tasks."""

from typing import Any

from pyspark.sql import SparkSession

_OF_SERVERS = (
    r"^(yarn|ha|hadoop\.(http|registry)|ipc\.(server|\[port_number\])"
    r"|mapreduce\.(jobhistory|reduce|shuffle))\."
)
"""Defaults of YARN, of Hadoop's servers, and of the reducers of MapReduce."""


def shrink_hadoop_configuration(spark: SparkSession) -> None:
    """Remove unused values from the Hadoop configuration of a new session.

    Each value is sent together with the compressed name of the file that it comes from, which
    only Hadoop's own diagnostics show; and on a local master most of the 1,150 values are defaults
    of YARN and of servers. Without both, a small batch needs a fifth less processor time. If Hadoop
    loads further default files later, it reloads all values, which is slower but correct.
    """
    jvm: Any = spark._jvm
    configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
    # Both add their default files to all configurations.
    jvm.org.apache.hadoop.mapred.JobConf()
    jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("file", configuration)
    of_class = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration")

    def private(name: str) -> Any:
        field = of_class.getDeclaredField(name)
        field.setAccessible(True)
        return field.get(configuration)

    if str(spark.sparkContext.master).startswith("local"):
        unread = configuration.getValByRegex(_OF_SERVERS).keySet()
        private("properties").keySet().removeAll(unread)
    # `clear` of a py4j map makes a JVM call per entry.
    private("updatingResource").keySet().retainAll(jvm.java.util.Collections.emptySet())
