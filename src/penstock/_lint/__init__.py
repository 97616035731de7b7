"""Checks of a pipeline before its first run. Rules are pure functions and do not use Spark."""
