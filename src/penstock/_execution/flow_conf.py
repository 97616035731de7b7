"""Session confs of a flow (`spark_conf`), while its query is built and while it runs."""

import contextlib
import threading
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from penstock._graph.dataflow import DataflowGraph, FlowNode
from penstock._tables.jvm import dataframe
from penstock._tables.session_conf import own_session, session_conf


class FlowConfs:
    """Confs of flows and their tables on the shared session; a flow overrides its table.

    `lock` is held while a query is built and started, because its functions may set confs and
    temporary views.
    """

    def __init__(self, spark: SparkSession, graph: DataflowGraph) -> None:
        self.lock = threading.Lock()
        self._spark = spark
        self._graph = graph

    def of(self, node: FlowNode) -> dict[str, str]:
        """The confs of a flow, without `pipelines.*`."""
        dataset = self._graph.datasets.get(node.target)
        return node.flow.session_confs({} if dataset is None else dataset.declared.spark_conf)

    @contextlib.contextmanager
    def applied(self, node: FlowNode) -> Iterator[None]:
        """Hold the lock, with the confs of a flow set on the shared session."""
        with self.lock, session_conf(self._spark, self.of(node)):
            yield

    def bound(self, df: DataFrame, node: FlowNode) -> DataFrame:
        """The DataFrame, always computed with the confs of a flow.

        A streaming query is returned unchanged: it copies the session when it starts.
        """
        conf = self.of(node)
        if not conf or df.isStreaming:
            return df
        return dataframe(own_session(self._spark, conf), df._jdf.logicalPlan())
