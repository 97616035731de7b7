"""SQL that the parser of the installed Spark does not support, see docs/compatibility.md."""

from penstock._model.spark_version import installed_spark

_UNKNOWN = (" QUALIFY ",) if installed_spark() == "4.1" else ()


def is_known(text: str) -> bool:
    return not any(clause in text for clause in _UNKNOWN)
