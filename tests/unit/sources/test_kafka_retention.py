"""When Kafka deletes unread rows of a partition, or that this is unknown."""

from penstock.sources.kafka.lag import LossRisk, Retention, Risk, StartRate, risk_of

WEEK = Retention(deletes=True, milliseconds=604_800_000, size=-1)
SIZED = Retention(deletes=True, milliseconds=-1, size=1000)
BOTH = Retention(deletes=True, milliseconds=100_000, size=1000)


def risk(retention, *, offset=50, earliest=10, latest=90, oldest=0, now=40_000, rate=None) -> Risk:
    return risk_of(
        offset,
        earliest=earliest,
        latest=latest,
        oldest_ms=oldest,
        retention=retention,
        now_ms=now,
        start_rate=rate,
    )


def test_deletion_time_follows_from_age_and_size():
    assert (risk(WEEK).loss, risk(WEEK).seconds, risk(WEEK).by) == ("expected", 604_760.0, "age")
    assert risk(BOTH, now=500_000).seconds == 0.0
    assert (risk(SIZED, rate=2.0).seconds, risk(SIZED, rate=2.0).by) == (20.0, "size")
    # The earlier deletion time is returned.
    assert (risk(BOTH, rate=4.0).seconds, risk(BOTH, rate=4.0).by) == (10.0, "size")
    assert (risk(BOTH, rate=0.1).seconds, risk(BOTH, rate=0.1).by) == (60.0, "age")


def test_deleted_rows_are_reported_with_all_settings():
    result = risk(None, offset=50, earliest=70)
    assert (result.loss, result.seconds, result.lost_records) == (LossRisk.HAPPENED, 0.0, 20)


def test_no_deletion_time_without_unread_or_deleted_rows():
    assert risk(WEEK, latest=50).loss is LossRisk.NONE
    assert risk(Retention(deletes=False, milliseconds=1, size=1)).loss is LossRisk.NONE
    assert risk(Retention(deletes=True, milliseconds=-1, size=-1)).loss is LossRisk.NONE


def test_unknown_deletion_time_is_neither_never_nor_now():
    for result in (
        risk(None),
        risk(WEEK, oldest=None),
        risk(SIZED, rate=None),
        risk(WEEK, earliest=None),
        risk(WEEK, latest=None),
    ):
        assert (result.loss, result.seconds) == (LossRisk.UNKNOWN, None)
    assert risk(WEEK, earliest=None).lost_records is None


def test_rate_is_known_once_the_earliest_offset_has_moved():
    rate = StartRate()
    rate.note(0.0, 100)
    assert rate.offsets_per_second is None
    rate.note(10.0, 100)
    assert rate.offsets_per_second is None
    rate.note(20.0, 140)
    assert rate.offsets_per_second == 2.0
    for second in range(30, 8000, 10):
        rate.note(float(second), 140)
    assert rate.offsets_per_second is None
    assert len(rate.seen) < 200
