"""Table properties that follow from the declaration of a pipeline."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._execution.tables import PipelineTables
from penstock._tables.layout import StorageLayout

PEOPLE, EVENTS = "spark_catalog.default.people", "spark_catalog.default.events"


@pytest.mark.parametrize(("streams", "feed"), [((EVENTS,), None), ((EVENTS, PEOPLE), "true")])
def test_change_feed_is_enabled_only_when_a_reader_streams_the_table(draft, streams, feed):
    draft.table("events")
    draft.empty_table("people")
    draft.cdc_flow("follow", "people", "events")
    draft.table("joined", "events", "people")
    draft.analyses["joined"] = replace(draft.analyses["joined"], streams=streams)
    graph = draft.graph()
    settings: Any = SimpleNamespace(metastore=None, shared_storage=False, configuration={})
    spark: Any = None
    state: Any = None
    tables = PipelineTables(spark, graph, StorageLayout("file:///nowhere"), settings, state)
    spec = tables.spec(graph.datasets[PEOPLE], [graph.flows["follow"]])
    assert spec.properties.get("delta.enableChangeDataFeed") == feed
