"""Table properties that only tune performance on Databricks and never affect rows."""

from collections.abc import Mapping

# Keys in lower case: those that open-source Delta Lake does not know.
_UNKNOWN_TO_DELTA = {
    "delta.targetfilesize",
    "delta.tunefilesizesforrewrites",
    "delta.parquet.compression.codec",
    "delta.workloadbasedcolumns.optimizerstatistics",
}
# Open-source Delta Lake knows the keys, but not these values.
_VALUES = {
    "delta.autooptimize": ("auto", "legacy"),
    "delta.autooptimize.autocompact": ("auto", "legacy"),
    "delta.autooptimize.optimizewrite": ("auto", "legacy"),
    # Databricks' weaker level; without the property a table is Serializable.
    "delta.isolationlevel": ("writeserializable",),
}
_PREFIXES = ("pipelines.autooptimize.",)


def is_tuning(key: str, value: str) -> bool:
    """Whether a property only tunes Databricks and has no effect on open-source Delta Lake."""
    name = key.lower()
    return (
        name in _UNKNOWN_TO_DELTA
        or name.startswith(_PREFIXES)
        or str(value).strip().lower() in _VALUES.get(name, ())
    )


def effective_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a table gets: all but those that only tune Databricks."""
    return {key: value for key, value in properties.items() if not is_tuning(key, value)}
