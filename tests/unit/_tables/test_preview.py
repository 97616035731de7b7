"""Previews of tables for the command line, without Spark."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock._model.pipeline import PipelineSettings
from penstock._tables.read.preview import list_quarantines, read_quarantine, read_table
from penstock.errors import SpecError


@pytest.fixture
def settings(tmp_path: Path) -> PipelineSettings:
    return PipelineSettings(name="p", storage=str(tmp_path), root=str(tmp_path))


@pytest.fixture
def table(settings: PipelineSettings) -> Path:
    return Path(settings.storage) / "tables" / "spark_catalog" / "default" / "orders"


def test_rows_of_the_newest_file_come_first(settings, table):
    at = datetime(2026, 3, 4, 10, tzinfo=UTC)
    for number in range(3):
        body = {"id": [10 * number, 10 * number + 1], "at": [at, None], "ok": [True, False]}
        write_deltalake(str(table), pa.table({**body, "tags": [["a", "b"], []]}), mode="append")
    preview = read_table(settings, "orders", 3)
    assert preview.columns == ("id", "at", "ok", "tags")
    assert preview.rows[:2] == (
        ("20", "2026-03-04 10:00:00+00:00", "true", "a, b"),
        ("21", None, "false", ""),
    )
    assert (len(preview.rows), preview.total) == (3, 6)
    assert read_table(settings, "orders", 0).rows == ()


def test_times_outside_the_years_of_python_are_shown(settings, table):
    micros = [-62135596800_000_000 - 1, 253402300800_000_000, 0, None]
    times = pa.array(micros).cast(pa.timestamp("us", "UTC"))
    days = pa.array([-719163, 2932897, 0, None], pa.int32()).cast(pa.date32())
    nested = pa.StructArray.from_arrays([days], ["day"])
    write_deltalake(str(table), pa.table({"at": times, "day": days, "s": nested}))
    assert read_table(settings, "orders", 4).rows == (
        ("0000-12-31 23:59:59.999999+00:00", "0000-12-31", "{'day': '0000-12-31'}"),
        ("+10000-01-01 00:00:00+00:00", "+10000-01-01", "{'day': '+10000-01-01'}"),
        ("1970-01-01 00:00:00+00:00", "1970-01-01", "{'day': '1970-01-01'}"),
        (None, None, "{'day': None}"),
    )


def test_column_mapping_is_read_when_delta_rs_cannot(settings, table):
    write_deltalake(str(table), pa.table({"col-1": [1, 2], "col-2": ["a", "b"]}))
    log = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    features = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        }
        for number, (name, kind) in enumerate((("id", "long"), ("customer name", "string")), 1)
    ]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        if "metaData" in action:
            action["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
            action["metaData"]["configuration"] = {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "2",
            }
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    preview = read_table(settings, "orders", 5)
    assert preview.columns == ("id", "customer name")
    assert (preview.rows, preview.total) == ((("1", "a"), ("2", "b")), 2)


def test_error_has_a_hint_when_a_table_cannot_be_read(settings, table):
    with pytest.raises(SpecError) as caught:
        read_table(settings, "orders", 1)
    assert caught.value.condition == "TABLE_NOT_FOUND"
    write_deltalake(str(table), pa.table({"x": [1]}))
    with pytest.raises(SpecError) as caught:
        read_quarantine(settings, "orders", 1)
    assert caught.value.condition == "QUARANTINE_NOT_FOUND"
    with pytest.raises(SpecError, match="no table 'orderz'") as caught:
        read_quarantine(settings, "orderz", 1)
    assert caught.value.hint == "did you mean 'orders'?"
    features = {"readerFeatures": ["fromTomorrow"], "writerFeatures": ["fromTomorrow"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    newest = table / "_delta_log" / f"{1:020}.json"
    newest.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(SpecError) as caught:
        read_table(settings, "orders", 1)
    assert caught.value.condition == "TABLE_NOT_READABLE"
    assert caught.value.message.count("without Spark") == 1
    assert "spark.read" in (caught.value.hint or "")
    newest.unlink()
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(SpecError) as caught:
        read_table(settings, "orders", 1)
    assert caught.value.condition == "TABLE_NOT_READABLE"


@pytest.mark.parametrize(
    "name", ["orders", "order items", "`order items`", "order items_quarantine"]
)
def test_rows_in_quarantine_are_counted_by_rule(settings, table, name):
    plain = name.strip("`").removesuffix("_quarantine")
    table = table.with_name(plain.replace(" ", "=20"))
    rules = pa.array([["a", "b"], ["a"], None], pa.list_(pa.string()))
    body = {"_failed_rules": rules, "_row": ["{}"] * 3, "_source": ["x"] * 3, "id": [1, 2, 3]}
    write_deltalake(f"{table}_quarantine", pa.table(body))
    (summary,) = list_quarantines(settings)
    assert (summary.table, summary.rows, dict(summary.by_rule)) == (plain, 3, {"a": 2, "b": 1})
    shown = read_quarantine(settings, name, 1)
    assert shown.columns == ("_failed_rules", "_source", "_row")
    assert shown.rows == (("a, b", "x", "{}"),)
