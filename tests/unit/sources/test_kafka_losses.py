from penstock.sources.kafka.reader import describe_loss, missing_ranges


def lost(start, end, rows, earliest):
    source = {"startOffset": start, "endOffset": end}
    found = missing_ranges(source, rows, lambda topic, _: earliest.get(topic, {}))
    return [(r.topic, r.partition, r.first, r.end) for r in found]


def test_range_is_lost_when_rows_are_missing_and_the_partition_begins_later():
    start, end = {"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 9}}
    assert lost(start, end, 3, {"t": {0: 8, 1: 7}}) == [("t", 0, 5, 8)]
    assert lost(start, end, 0, {"t": {0: 90, 1: 90}}) == [("t", 0, 5, 9), ("t", 1, 7, 9)]


def test_nothing_is_lost_when_all_rows_came_or_offsets_hold_no_rows():
    start, end = {"t": {"0": 5}}, {"t": {"0": 9}}
    assert lost(start, end, 4, {"t": {0: 9}}) == []
    assert lost(start, end, 3, {"t": {0: 5}}) == []
    assert lost(None, end, 0, {}) == []


def test_partition_is_lost_when_it_is_gone():
    assert lost({"t": {"0": 5}}, {"t": {}}, 0, {}) == [("t", 0, 5, None)]


def test_loss_is_described_in_one_line():
    source = {"startOffset": {"t": {str(n): 1 for n in range(7)}}, "endOffset": {}}
    text = describe_loss(missing_ranges(source, 0, lambda *_: {}))
    assert text.startswith("rows were lost: t-0 from 1 to its end, t-1 from 1 to its end")
    assert "and 2 more" in text
