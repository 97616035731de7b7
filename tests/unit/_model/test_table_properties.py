"""Which table properties only tune Databricks."""

import pytest

from penstock._model.table_properties import effective_properties, is_tuning


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.targetFileSize", "64mb"),
        ("delta.TuneFileSizesForRewrites", "true"),
        ("delta.parquet.compression.codec", "ZSTD"),
        ("delta.autoOptimize.optimizeWrite", "legacy"),
        ("delta.isolationLevel", "WriteSerializable"),
        ("pipelines.autoOptimize.other", "id"),
    ],
)
def test_property_that_only_tunes_databricks_is_ignored(key, value):
    assert is_tuning(key, value)
    assert effective_properties({key: value, "quality": "gold"}) == {"quality": "gold"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.autoOptimize.autoCompact", "Auto"),
        ("pipelines.autoOptimize.managed", "true"),
        ("pipelines.autoOptimize.zOrderCols", "id"),
    ],
)
def test_property_is_not_stored_when_only_maintenance_reads_it(key, value):
    assert not is_tuning(key, value)
    assert effective_properties({key: value, "quality": "gold"}) == {"quality": "gold"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta.autoOptimize.autoCompact", "true"),
        ("delta.autoOptimize.autoCompact", "sometimes"),
        ("delta.isolationLevel", "Serializable"),
        ("delta.targetFileSizes", "64mb"),
        ("delta.appendOnly", "true"),
        ("delta.feature.catalogManaged", "supported"),
        ("pipelines.reset.allowed", "false"),
        ("targetFileSize", "64mb"),
    ],
)
def test_property_is_kept_when_it_has_a_meaning_or_is_unknown(key, value):
    assert not is_tuning(key, value)
    assert effective_properties({key: value}) == {key: value}
