"""The dataflow graph: nodes, edges, order, integrity. Does not import Spark."""
