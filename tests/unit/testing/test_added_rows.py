"""The datasets and tables that the added rows of a test replace. No update is run."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import IntegerType, StructType

from penstock._analysis.external_tables import ExternalTables
from penstock._model.pipeline import EventHook, PipelineDefinition
from penstock._observe.events import UpdateState
from penstock._runtime.update import UpdateResult
from penstock._tables.layout import layout_of
from penstock.errors import SpecError
from penstock.testing import PipelineTest

SPEC = """
catalog: main
schema: shop
storage: production
defer_to: ./deployed
tables: {main.ref.names: /data/of/production}
"""
SCHEMA = StructType().add("id", IntegerType()).add("amount", IntegerType())


@pytest.fixture
def update(tmp_path, monkeypatch, draft):
    """A test of `draft` with a stub of its updates, which read the tables of `reads`."""
    (tmp_path / "penstock.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "pipeline.py").write_text("import dlt\n", encoding="utf-8")
    update = SimpleNamespace(reads=(), hooks=(), spark=MagicMock())

    def run_update(settings, options, *, bus, edit):
        external = ExternalTables(
            update.spark, settings.tables, layout_of(settings), catalog="main", schema="shop"
        )
        parts = {"datasets": tuple(draft.datasets), "flows": tuple(draft.flows)}
        declared = edit(PipelineDefinition(**parts, hooks=update.hooks), external)
        update.settings, update.declared = settings, declared
        update.tables = {name: external.find(name) for name in update.reads}
        return UpdateResult(update_id="1", state=UpdateState.COMPLETED)

    monkeypatch.setattr("penstock.testing.pipeline.run_update", run_update)
    update.test = PipelineTest(tmp_path, tmp_path / "storage", update.spark)
    return update


def readers(update):
    """The flows whose queries were replaced, and whether each reads a stream."""
    return {
        flow.name: flow.function() is update.spark.readStream.format().load()
        for flow in update.declared.flows
        if flow.function.__module__ == "penstock.testing.pipeline"
    }


def refused(update, *sources):
    for source in sources:
        update.test.add_rows(source, [{"id": 1}])
    with pytest.raises(SpecError) as caught:
        update.test.run()
    assert caught.value.condition == "TEST_ROWS_REFUSED"
    return caught.value.message


def test_a_test_reads_no_deployed_storage_and_calls_no_event_hooks(update, draft):
    update.hooks = (EventHook(name="page", function=print, origin=draft.here()),)
    assert update.test._settings.defer is not None
    update.test.run()
    assert update.settings.defer is None
    assert update.declared.hooks == ()


def test_values_are_assigned_by_name_in_any_order_of_keys(update):
    update.test.add_rows("x", [{"id": 1, "amount": 5}, {"amount": -1, "id": 2}])
    update.spark.createDataFrame.assert_called_once_with([(1, 5), (2, -1)], ["id", "amount"])


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([{"id": 1}, {"id": 2, "amount": 1}], None, "not all rows have `amount`"),
        ([{"id": 1, "amount": 1}, {"id": 2}], None, "not all rows have `amount`"),
        ([{"id": 1, "amuont": 1}], SCHEMA, "has no `amuont`"),
    ],
)
def test_rows_are_refused_when_their_keys_differ(update, rows, schema, message):
    with pytest.raises(SpecError, match=message) as caught:
        update.test.add_rows("x", rows, schema)
    assert caught.value.condition == "TEST_ROWS_REFUSED"


@pytest.mark.parametrize("source", ["raw", "RAW", "LIVE.raw", "shop.raw", "main.shop.`Raw`"])
def test_dataset_of_added_rows_is_matched_in_any_spelling(update, draft, source):
    draft.table("raw")
    draft.table("other.raw")
    update.reads = ("raw",)
    update.test.add_rows(source, [{"id": 1}]).run()
    assert readers(update) == {"raw": True}
    assert update.tables["raw"] is None  # other readers of that name must not get the rows


def test_unqualified_name_matches_the_only_dataset_with_it(update, draft):
    draft.table("bronze.raw")
    update.test.add_rows("raw", [{"id": 1}]).run()
    assert readers(update) == {"bronze.raw": True}


def test_unqualified_name_of_two_datasets_is_refused(update, draft):
    draft.table("bronze.orders")
    draft.table("silver.orders")
    message = refused(update, "orders")
    assert "'main.bronze.orders' or 'main.silver.orders'" in message


def test_rows_for_one_dataset_under_two_names_are_refused(update, draft):
    draft.table("bronze.raw")
    assert "under two names" in refused(update, "raw", "bronze.raw")


def test_table_of_added_rows_is_matched_in_any_spelling(update):
    update.reads = ("main.shop.prices", "main.ref.names")
    update.test.add_rows("prices", [{"id": 1}]).add_rows("`main`.ref.NAMES", [{"id": 1}]).run()
    assert [table.path for table in update.tables.values()] == [
        str(update.test._storage / "_rows" / name) for name in update.reads
    ]


def test_rows_for_an_unknown_dataset_fail_the_test(update, draft):
    draft.table("raw_orders")
    update.test.add_rows("raw_order", [{"id": 1}])
    update.test.run("raw_orders")  # another part of the pipeline may read it
    with pytest.raises(AssertionError, match=r"neither declares nor reads \['raw_order'\]"):
        update.test.run()


def test_added_rows_are_read_like_the_query_reads_the_dataset(update, draft):
    draft.table("raw")
    draft.view("names", streaming=False)
    draft.materialized_view("days")
    for target in ("old", "windows", "new"):
        draft.empty_table(target)
    draft.append_flow("first", "old", once=True)
    draft.append_flow("window", "windows", replace_where="day > 1")
    draft.append_flow("one", "new")
    draft.append_flow("two", "main.shop.new")
    for source in ("raw", "days", "old", "windows", "new"):
        update.test.add_rows(source, [{"id": 1}])
    update.test.add_rows("names", [{"id": 1}], batch=True).add_rows("names", [{"id": 2}]).run()
    streams = {name for name, is_stream in readers(update).items() if is_stream}
    assert streams == {"raw", "one"}
    assert set(readers(update)) - streams == {"names", "days", "first", "window"}
    assert [flow.name for flow in update.declared.flows if flow.name == "two"] == []


def test_table_is_read_from_the_folder_of_updates_for_any_name(update, tmp_path):
    folder = f"{tmp_path}/storage/tables/main"
    for name, path in (
        ("Orders", "shop/orders"),
        ("`Größe in m`", "shop/gr=C3=B6=C3=9Fe=20in=20m"),
        ("LIVE.sold.`by day`", "sold/by=20day"),
    ):
        update.test.table(name)
        update.spark.read.format().load.assert_called_with(f"{folder}/{path}")
