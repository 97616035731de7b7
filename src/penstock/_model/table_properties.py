"""Table properties of Databricks that Penstock accepts and open-source Delta Lake does not."""

from collections.abc import Mapping

# Keys (in lower case) that open-source Delta Lake does not support.
_UNKNOWN_TO_DELTA = {
    "delta.targetfilesize",
    "delta.tunefilesizesforrewrites",
    "delta.parquet.compression.codec",
    "delta.workloadbasedcolumns.optimizerstatistics",
}
# Open-source Delta Lake supports the keys, but not these values.
_VALUES = {
    "delta.autooptimize.optimizewrite": ("auto", "legacy"),
    # Weaker isolation level of Databricks; without the property a table is Serializable.
    "delta.isolationlevel": ("writeserializable",),
}
# Read by the maintenance of the pipeline; not stored.
_OF_MAINTENANCE = {
    "delta.autooptimize": ("auto", "legacy"),
    "delta.autooptimize.autocompact": ("auto", "legacy"),
}
_KEYS_OF_MAINTENANCE = ("pipelines.autooptimize.managed", "pipelines.autooptimize.zordercols")
_PREFIXES = ("pipelines.autooptimize.",)


def is_tuning(key: str, value: str) -> bool:
    """Whether a property only tunes Databricks and has no effect here."""
    name = key.lower()
    if name in _KEYS_OF_MAINTENANCE:
        return False
    return name in _UNKNOWN_TO_DELTA or name.startswith(_PREFIXES) or _has(_VALUES, name, value)


def effective_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that are stored with a table."""
    return {
        key: value
        for key, value in properties.items()
        if not is_tuning(key, value)
        and key.lower() not in _KEYS_OF_MAINTENANCE
        and not _has(_OF_MAINTENANCE, key.lower(), value)
    }


def _has(values: Mapping[str, tuple[str, ...]], name: str, value: str) -> bool:
    return str(value).strip().lower() in values.get(name, ())
