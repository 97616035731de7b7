"""Runs flows on Spark: start, batches, checkpoints, stop."""
