"""The number of rows written to a sink, from the progress of the query."""

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
        ({"sink": {"numOutputRows": 3}}, 3),  # real-time mode
        ({"sink": {"numOutputRows": -1}}, None),
    ],
)
def test_row_count_is_read_from_the_observed_metrics_or_spark(progress, rows):
    assert written_records(progress) == rows
