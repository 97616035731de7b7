"""What to do about errors that only jobs have."""

from penstock._spark.failures import is_refused_by_ansi

_EXISTS = "[LOCATION_ALREADY_EXISTS]"
_EXISTS_HINT = (
    "only Delta tables are registered again for the next run: move the folder and the checkpoint "
    'of the table away, then add `.format("delta")` to the writer, or set '
    "`spark.sql.sources.default: delta` below `configuration` in penstock.yaml"
)
_ANSI_HINT = (
    "Spark 4 has ANSI mode by default; if the program works with an older Spark, run it with "
    "`--conf spark.sql.ansi.enabled=false`"
)


def job_hint(message: str) -> str | None:
    """The hint for a message: about a table of an earlier run, or about ANSI mode."""
    if _EXISTS in message:
        return _EXISTS_HINT
    return _ANSI_HINT if is_refused_by_ansi(message) else None
