"""Auto CDC in whole updates: declared in a project, run as a user runs it."""

import json
import shutil
import threading
from typing import Any

import pytest
from test_table_maintenance import state_files_after_vacuum
from update_project import ContinuousRun, Project

from penstock._execution import tables
from penstock._runtime.update import UpdateState
from penstock._tables.write import cdc_snapshot
from penstock.errors import DefinitionErrors

CUSTOMERS = """
EVENTS = "id INT, op STRING, seq INT, name STRING, city STRING"

@dp.temporary_view
def changes():
    return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json("data")

dp.create_streaming_table({target!r}{table})
dp.create_auto_cdc_flow(
    target={target!r},
    source="changes",
    keys=["id"],
    sequence_by=F.col("seq"),
    apply_as_deletes=F.expr("op = 'D'"),
    except_column_list=["op", F.col("seq")],
    stored_as_scd_type={scd},
    column_list=None,
    name=None,
)
"""


def rows(project: Project, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return project.rows(table, *columns, key=repr)


def event(
    id: int | None, op: str, seq: int | None, name: str | None = None, city: str | None = None
):
    return {"id": id, "op": op, "seq": seq, "name": name, "city": city}


def customers(target: str = "customers", scd: int | str = 1, table: str = "") -> str:
    return CUSTOMERS.format(target=target, scd=repr(scd), table=table)


def test_rows_follow_the_events_over_two_updates_and_a_full_refresh(project):
    project.source(
        customers(
            table=', expect_all_or_drop={"named": "name IS NOT NULL"}, '
            'schema="id BIGINT, name VARCHAR(6), city STRING"'
        )
        + """
@dp.materialized_view
def cities():
    return dp.read("customers").groupBy("city").count()
"""
    )
    project.add("a.json", [event(1, "I", 1, "Isabel", "Oaxaca"), event(2, "I", 1, None, "Lima")])
    project.add("b.json", [event(3, "I", 2, "Raul", "Lima"), event(3, "D", 5)])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "customers") == [(1, "Isabel", "Oaxaca")]
    (lineage,) = [
        event["details"]["column_lineage"]
        for event in project.log("column_lineage")
        if event["origin"]["dataset_name"].endswith("customers")
    ]
    assert set(lineage["columns"]) == {"id", "name", "city"}
    project.add("c.json", [event(3, "U", 4, "Raul", "Late"), event(1, "U", 3, "Isabel", "Lima")])
    project.add("d.json", [event(None, "U", 4, "Nobody", "x"), event(4, "U", None, "Unknown", "x")])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "customers") == [(1, "Isabel", "Lima")]
    assert rows(project, "cities") == [("Lima", 1)]
    bad = rows(project, "customers_quarantine", "id", "_failed_rules")
    assert bad == [
        (2, ["named"]),
        (4, ["sequence_by is not null"]),
        (None, ["keys are not null"]),
    ]
    progress = [e["details"]["flow_progress"] for e in project.log("flow_progress")]
    metrics = [
        body["metrics"] for body in progress if "num_upserted_rows" in body.get("metrics", {})
    ]
    assert sum(m["num_upserted_rows"] for m in metrics) == 4
    assert sum(m["num_deleted_rows"] for m in metrics) == 1
    assert len(state_files_after_vacuum(project, "customers")) == 1
    project.add("e.json", [event(1, "U", 2, "Isabel", "Late"), event(3, "U", 4, "Raul", "Late")])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "customers") == [(1, "Isabel", "Lima")]
    assert project.run(full_refresh=("customers",)).state is UpdateState.COMPLETED
    assert rows(project, "customers") == [(1, "Isabel", "Lima")]
    assert len(rows(project, "customers_quarantine")) == 3


def test_history_is_kept_and_its_changes_can_be_streamed_when_scd_type_is_2(project):
    project.source(
        customers(
            scd="2",
            table=", schema=\"id INT NOT NULL, name STRING, city STRING COMMENT 'c', "
            '__START_AT INT, __END_AT INT"',
        )
        + """
@dp.table
def audit():
    return spark.readStream.option("readChangeFeed", "true").table("customers")
"""
    )
    project.add("a.json", [event(1, "I", 1, "Isabel", "Oaxaca"), event(2, "I", 2, "Raul", "Lima")])
    assert project.run().state is UpdateState.COMPLETED
    project.add("b.json", [event(1, "U", 5, "Isabel", "Lima"), event(2, "D", 4)])
    assert project.run().state is UpdateState.COMPLETED
    project.add("c.json", [event(1, "U", 3, "Isabel", "Cusco")])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "customers") == [
        (1, "Isabel", "Cusco", 3, 5),
        (1, "Isabel", "Lima", 5, None),
        (1, "Isabel", "Oaxaca", 1, 3),
        (2, "Raul", "Lima", 2, 4),
    ]
    kinds = [row[0] for row in rows(project, "audit", "_change_type")]
    assert "update_postimage" in kinds and "insert" in kinds


def test_every_invalid_declaration_is_reported_with_its_origin(project):
    project.source(
        """
EVENTS = "id INT, op STRING, seq INT, name STRING, tags MAP<STRING, STRING>"

@dp.temporary_view
def changes():
    return spark.readStream.schema(EVENTS).json("data")

@dp.temporary_view
def reserved():
    return dp.read_stream("changes").withColumn("__START_AT", F.lit(1))

def flow(target, source="changes", **parameters):
    dp.create_streaming_table(target, schema=parameters.pop("schema", None))
    options = {"keys": ["id"], "sequence_by": "seq", **parameters}
    dp.create_auto_cdc_flow(target=target, source=source, **options)

flow("a", keys=["idd"])
flow("b", keys=["id"], except_column_list=["ID"])
flow("c", keys=["tags"])
flow("d", sequence_by="tags")
flow("e", apply_as_deletes="op")
flow("f", apply_as_deletes="opp = 'D'")
flow("g", columns_to_update="name")
flow("h", source="reserved")
flow("i", source="chagnes")
flow("j", stored_as_scd_type=2, schema="id INT, op STRING, seq INT, name STRING, "
     "tags MAP<STRING, STRING>, __START_AT INT, __END_AT TIMESTAMP")
flow("k", schema="id INT, op STRING, seq STRING, name STRING, tags MAP<STRING, STRING>")
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    assert sorted(error.condition for error in caught.value.errors) == sorted(
        [
            "CDC_COLUMN_NOT_FOUND",
            "CDC_KEY_NOT_SELECTED",
            "CDC_TYPE_NOT_SUPPORTED",
            "CDC_TYPE_NOT_SUPPORTED",
            "CDC_TYPE_NOT_SUPPORTED",
            "CDC_EXPRESSION_INVALID",
            "CDC_TYPE_NOT_SUPPORTED",
            "COLUMN_NAME_RESERVED",
            "DATASET_NOT_FOUND",
            "CDC_SCHEMA_INCOMPLETE",
            "CDC_TYPE_NOT_SUPPORTED",
        ]
    )
    assert all(error.origin is not None for error in caught.value.errors)
    hints = {error.condition: error.hint or "" for error in caught.value.errors}
    assert "columns of the source: " in hints["CDC_EXPRESSION_INVALID"]


def test_a_table_is_loaded_once_and_then_updated_from_a_stream(project):
    source = """
EVENTS = "id INT, op STRING, seq INT, name STRING, city STRING"

@dp.temporary_view
def before():
    reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    # Refused if two streams of the query read the folder.
    reader = reader.option("cloudFiles.cleanSource", "DELETE")
    return reader.schema(EVENTS).load("before")

@dp.temporary_view
def changes():
    return spark.readStream.schema(EVENTS).json("data")

@dp.table
def loaded():
    return spark.readStream.schema(EVENTS).json("before").withColumn("id", F.expr("id + 100"))

dp.create_streaming_table("customers")
shared = dict(target="customers", keys=["id"], except_column_list=["op", "seq"])
dp.create_auto_cdc_flow(
    name="fill", source="before", sequence_by=F.lit(0), once=True, **shared)
dp.create_auto_cdc_flow(
    name="load", source="loaded", sequence_by="seq", once=True, where="id = 101", **shared)
dp.create_auto_cdc_flow(
    name="follow", source="changes", sequence_by="seq", apply_as_deletes="op = 'D'", **shared)
"""
    project.source(source)
    project.add(
        "a.json",
        [
            event(1, "I", 0, "Isabel", "Oaxaca"),
            event(2, "I", 0, "Raul", "Lima"),
            event(3, "I", 0, "Ana", "Quito"),
        ],
        folder="before",
    )
    project.add("b.json", [event(2, "D", 3), event(1, "U", 2, "Isabel", "Lima")])
    assert project.run().state is UpdateState.COMPLETED
    expected = [(1, "Isabel", "Lima"), (101, "Isabel", "Oaxaca"), (3, "Ana", "Quito")]
    assert rows(project, "customers") == expected
    project.add("c.json", [event(9, "I", 0, "Late", "x")], folder="before")
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "customers") == expected


@pytest.mark.long
def test_snapshot_source_is_compared_in_every_update(project):
    project.source(
        """
@dp.materialized_view
def people():
    return spark.read.schema("id INT, name STRING, city STRING").json("data")

dp.create_streaming_table("followed")
dp.create_auto_cdc_from_snapshot_flow(
    target="followed", source="people", keys=["id"], stored_as_scd_type=2,
    track_history_except_column_list=["city"])

dp.create_streaming_table("newest", table_properties={"delta.columnMapping.mode": "name"})
dp.apply_changes_from_snapshot("newest", "people", ["id"])
"""
    )
    project.add("a.json", [{"id": 1, "name": "a", "city": "x"}, {"id": 2, "name": "b"}])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "newest") == [(1, "a", "x"), (2, "b", None)]
    version = project.version("followed")
    assert project.run().state is UpdateState.COMPLETED
    assert project.version("followed") == version
    project.add(
        "a.json",
        [{"id": 1, "name": "a", "city": "y"}, {"id": 2, "name": "c"}, {"id": 3, "name": "d"}],
    )
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "newest") == [(1, "a", "y"), (2, "c", None), (3, "d", None)]
    actual = rows(project, "followed", "id", "name", "city", "__END_AT IS NULL")
    assert actual == [
        (1, "a", "y", True),
        (2, "b", None, False),
        (2, "c", None, True),
        (3, "d", None, True),
    ]
    project.add("a.json", [{"id": 3, "name": "d"}])
    project.run()
    assert rows(project, "newest") == [(3, "d", None)]
    assert len(rows(project, "followed", "id")) == 4
    project.spark.sql(f"ALTER TABLE delta.`{project.path('newest')}` DROP COLUMN id")
    result = project.run()
    assert [failure.condition for failure in result.failures] == ["SCHEMA_INCOMPATIBLE"]


SELECTED = """
@dp.materialized_view
def people():
    return spark.read.schema("id INT, name STRING").json("data")

@dp.temporary_view
def selected():
    return spark.read.table("people").where("id > {least}")

dp.create_streaming_table("followed")
dp.create_auto_cdc_from_snapshot_flow(target="followed", source="selected", keys=["id"])
"""


def test_snapshot_view_is_compared_again_when_its_query_changed(project, monkeypatch):
    locks: list[Any] = []
    locked: list[bool] = []

    def new_lock() -> Any:
        locks.append(threading.Lock())
        return locks[-1]

    monkeypatch.setattr(tables, "Lock", new_lock)
    monkeypatch.setattr(
        cdc_snapshot, "kill_point", lambda *_: locked.append(any(lock.locked() for lock in locks))
    )
    project.source(SELECTED.format(least=1))
    project.add("a.json", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    assert project.run().state is UpdateState.COMPLETED
    project.source(SELECTED.format(least=0))
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "followed") == [(1, "a"), (2, "b")]
    # A compaction of the table waits until a snapshot is applied.
    assert locked == [True] * 4


FOLLOWING = """
import json
from pathlib import Path

def following(latest):
    versions = sorted(int(p.stem) for p in Path("data").glob("*.json"))
    newer = [v for v in versions if latest is None or v > latest]
    if not newer:
        return None
    return spark.read.schema("id INT, name STRING").json(f"data/{newer[0]}.json"), newer[0]

dp.create_streaming_table("history")
dp.create_auto_cdc_from_snapshot_flow(
    target="history", snapshot_and_version=following, keys=["id"], stored_as_scd_type="2",
    spark_conf={"pipelines.maxFlowRetryAttempts": "0"})
"""


def test_snapshot_function_is_called_until_it_has_no_newer_snapshot(project):
    project.source(FOLLOWING)
    project.add("10.json", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    project.add("20.json", [{"id": 1, "name": "a"}, {"id": 2, "name": "c"}])
    assert project.run().state is UpdateState.COMPLETED
    expected = [(1, "a", 10, None), (2, "b", 10, 20), (2, "c", 20, None)]
    assert rows(project, "history") == expected
    (state,) = (project.root / ".penstock" / "state" / "flows").glob("*.json")
    older = state.read_text("utf-8")
    project.add("30.json", [{"id": 2, "name": "c"}, {"id": 3, "name": None}])
    assert project.run().state is UpdateState.COMPLETED
    expected = [(1, "a", 10, 30), (2, "b", 10, 20), (2, "c", 20, None), (3, None, 30, None)]
    assert rows(project, "history") == expected
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "history") == expected
    # The table also stores versions: they are not applied again if the flow state is lost.
    state.write_text(older, "utf-8")
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "history") == expected
    state.unlink()
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "history") == expected
    assert json.loads(state.read_text("utf-8"))["snapshots"] == {"-1": '["int", 30]'}
    # Snapshot versions that start again at a smaller number would end rows before their start.
    state.unlink()
    (project.root / "data").rename(project.root / "earlier")
    for number in (1, 2):
        project.add(f"{number}.json", [{"id": number, "name": "new"}])
        assert project.run().state is UpdateState.COMPLETED
        assert rows(project, "history") == expected
        warnings = [event.message for event in project.events if event.level == "WARN"]
        assert f"skipped snapshots up to version {number}: the history" in "".join(warnings)
    shutil.rmtree(project.root / "data")
    (project.root / "earlier").rename(project.root / "data")
    assert project.run(full_refresh_all=True).state is UpdateState.COMPLETED
    assert rows(project, "history") == expected
    project.add("40.json", [{"id": 2, "name": "c"}, {"id": 2, "name": "d"}])
    result = project.run()
    assert [failure.condition for failure in result.failures] == ["SNAPSHOT_KEYS_NOT_UNIQUE"]
    states = list((project.root / ".penstock" / "state" / "flows").glob("*.json"))
    (state,) = [json.loads(file.read_text()) for file in states]
    assert state["snapshots"]["2"] == '["int", 30]'


def test_generated_columns_of_versions_are_computed(project):
    columns = "id INT, name STRING, twice INT GENERATED ALWAYS AS (id * 2)"
    columns += ", __START_AT BIGINT, __END_AT BIGINT"
    project.source(FOLLOWING.replace('("history")', f'("history", schema="{columns}")'))
    for number, name in enumerate("abc"):
        project.add(f"{number}.json", [{"id": 1, "name": name}])
    assert project.run().state is UpdateState.COMPLETED
    expected = [("a", 2, 1), ("b", 2, 2), ("c", 2, None)]
    assert project.rows("history", "name", "twice", "__END_AT") == expected


def test_each_snapshot_is_applied_once_when_the_process_crashes_around_its_commit(
    project, monkeypatch
):
    project.source(FOLLOWING)
    project.add("10.json", [{"id": 1, "name": "a"}])
    project.add("20.json", [{"id": 1, "name": "b"}])
    project.add("30.json", [{"id": 2, "name": "c"}])
    first, second = (1, "a", 10, None), [(1, "a", 10, 20), (1, "b", 20, None)]
    for kill_point, remaining in [
        (("before_write", 1), [first]),
        (("after_target_commit", 1), second),
        (("before_write", 2), second),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(cdc_snapshot, "kill_point", _crash_at(*kill_point))
            assert project.run().state is UpdateState.FAILED
        assert rows(project, "history") == remaining
    assert project.run().state is UpdateState.COMPLETED
    expected = [(1, "a", 10, 20), (1, "b", 20, 30), (2, "c", 30, None)]
    assert rows(project, "history") == expected
    commits = [file.read_text() for file in (project.path("history") / "_delta_log").glob("*.json")]
    assert [text.count('"txn"') for text in commits].count(1) == 3


def _crash_at(point: str, number: int) -> Any:
    def crash(step: str, flow: str, batch_id: int | None) -> None:
        if (step, batch_id) == (point, number):
            raise RuntimeError("simulated crash")

    return crash


def test_events_are_applied_by_a_continuous_update(project):
    project.source(customers(scd=2))
    project.add("a.json", [event(1, "I", 1, "Raul", "Oaxaca"), event(2, "I", 1, "Ana", "Lima")])
    columns = ("id", "name", "__START_AT", "__END_AT")
    before = [(1, "Raul", 1, None), (2, "Ana", 1, None)]
    after = [(1, "Raul", 1, 3), (1, "Rosa", 3, None), (2, "Ana", 1, 2)]
    run = ContinuousRun(project)
    try:
        run.wait_until(lambda: rows(project, "customers", *columns) == before)
        project.add("b.json", [event(2, "D", 2), event(1, "U", 3, "Rosa", "Oaxaca")])
        run.wait_until(lambda: rows(project, "customers", *columns) == after)
    finally:
        result = run.stop()
    assert not result.failures
    assert rows(project, "customers", *columns) == after


@pytest.mark.long
def test_a_stream_of_the_target_fails_when_its_rows_change(project):
    project.source(
        """
@dp.temporary_view
def changes():
    return spark.readStream.schema("id INT, seq INT, __START_AT INT").json("data")

dp.create_streaming_table("people")
dp.create_auto_cdc_flow(
    "people", "changes", keys=["id"], sequence_by="seq", except_column_list=["__START_AT"])

@dp.table
def audit():
    return dp.read_stream("people")
"""
    )
    project.add("a.json", [{"id": 1, "seq": 1}, {"id": 2, "seq": 1}, {"id": 1, "seq": 2}])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "audit") == [(1, 2), (2, 1)]
    project.add("b.json", [{"id": 3, "seq": 1}])
    assert project.run().state is UpdateState.COMPLETED
    assert rows(project, "audit") == [(1, 2), (2, 1), (3, 1)]
    project.add("c.json", [{"id": 1, "seq": 3}])
    result = project.run()
    assert [failure.condition for failure in result.failures] == ["SOURCE_ROWS_CHANGED"]
    assert rows(project, "people") == [(1, 3), (2, 1), (3, 1)]
    assert rows(project, "audit") == [(1, 2), (2, 1), (3, 1)]
