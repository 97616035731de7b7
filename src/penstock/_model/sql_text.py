"""Strings, names and tables in SQL text."""


def literal(text: str) -> str:
    """Return a string as a SQL literal of Spark, in single quotes.

    Not for other databases: most of them do not treat a backslash as an escape character.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(*parts: str) -> str:
    """Return a name whose parts are identifiers in backticks."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def delta_table(path: str) -> str:
    """Return the name of the Delta table at a path."""
    return quoted("delta", path)
