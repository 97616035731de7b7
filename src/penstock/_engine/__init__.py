"""Who touches Spark: session, analysis, name resolution, start and stop of flows."""
