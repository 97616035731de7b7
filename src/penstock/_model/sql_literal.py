"""Text as a string in SQL."""


def literal(text: str) -> str:
    """Return a string in single quotes that Spark's parser reads as this text.

    Not for other databases: most of them take a backslash as it is.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
