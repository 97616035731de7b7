"""How many rows went to a sink that Spark writes, from its progress."""

import pytest

from penstock._execution.listener import WRITTEN, written_records


@pytest.mark.parametrize(
    ("progress", "rows"),
    [
        ({"observedMetrics": {WRITTEN: {WRITTEN: 3}}}, 3),
        ({"observedMetrics": {WRITTEN: {WRITTEN: 0}, "mine": {"x": 5}}}, 0),
        ({"observedMetrics": {"mine": {"x": 5}}}, None),
        ({"observedMetrics": None}, None),
        ({"numInputRows": 3}, None),
    ],
)
def test_rows_are_those_that_the_query_observed(progress, rows):
    assert written_records(progress) == rows
