"""Reads tables, their logs and checkpoints, mostly without Spark."""
