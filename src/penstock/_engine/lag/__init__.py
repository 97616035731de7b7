"""How far a running flow is behind its sources, beyond what Spark's progress says."""
