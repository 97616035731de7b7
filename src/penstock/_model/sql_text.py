"""Strings, names and tables in SQL text."""


def literal(text: str) -> str:
    """Return a string in single quotes that Spark's parser reads as this text.

    Not for other databases: most of them take a backslash as it is.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(*parts: str) -> str:
    """Return a name whose parts are identifiers in backticks."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def delta_table(path: str) -> str:
    """Return the name of the Delta table at a path."""
    return quoted("delta", path)
