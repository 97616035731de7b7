"""Checks of a pipeline before its first run. Rules are pure functions, without Spark."""
