"""The definition of a pipeline as frozen dataclasses. No I/O, no Spark."""
