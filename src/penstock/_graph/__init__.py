"""How the parts hang together: nodes, edges, order, integrity. No Spark."""
