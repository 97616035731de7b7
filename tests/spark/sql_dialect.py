"""SQL that the parser of the installed Spark does not know, as in docs/compatibility.md."""

from penstock._model.spark_version import installed_spark

_SINCE_42 = (" QUALIFY ",)
_SINCE_41 = (" WATERMARK ", " WITH (", "WITH RECURSIVE", "parse_json(body):")
_UNKNOWN = {"4.0": _SINCE_41 + _SINCE_42, "4.1": _SINCE_42, "4.2": ()}[installed_spark()]


def is_known(text: str) -> bool:
    return not any(clause in text for clause in _UNKNOWN)
