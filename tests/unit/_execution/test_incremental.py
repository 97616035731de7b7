from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._execution.flow_state import ViewState
from penstock._execution.incremental import NotIncrementalError, _check_cost, reasons
from penstock.errors import FlowError, PlanError
from penstock.quality.split import FAILURE_MARK


def _view(policy: str) -> Any:
    declared = SimpleNamespace(origin=None, refresh_policy=policy)
    return SimpleNamespace(display="gold", declared=declared)


VIEW, STRICT = _view("auto"), _view("incremental_strict")
WRITTEN = (
    "An error occurred while calling o1.write.\n: org.apache.spark.SparkException: Task failed"
    "\nCaused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] zero\n\tat x"
)
VACUUMED = "files of the versions since its last refresh do not exist any more (VACUUM)"
CLEANED = (
    "An error occurred while calling o1.queryChanges.\n: org.apache.spark.sql.delta."
    "DeltaIllegalStateException: [DELTA_MISSING_FILES_UNEXPECTED_VERSION] Delta stream cannot "
    "resume from version 2; transaction log starts at 3. Restart the stream with a new checkpoint"
)
EXPIRED = (
    "An error occurred while calling o1.changedKeys.\n: org.apache.spark.sql.delta."
    "DeltaFileNotFoundException: [DELTA_LOG_FILE_NOT_FOUND] Unable to retrieve the delta log files"
)
SHORTENED = "the log of a source was cleaned up (delta.logRetentionDuration)"
REFUSED = "An error occurred.\n: penstock.delta.QueryChanges$UnsupportedException: no key\n\tat x"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(REFUSED), "no key"),
        (ValueError("bad\nmore"), "the incremental refresh failed: ValueError: bad"),
        (RuntimeError(f"[FAILED_READ_FILE.FILE_NOT_EXIST] {WRITTEN}"), VACUUMED),
        (RuntimeError(CLEANED), SHORTENED),
        (RuntimeError(EXPIRED), SHORTENED),
        (RuntimeError(WRITTEN), "the incremental refresh failed: [DIVIDE_BY_ZERO] zero"),
        (NotIncrementalError("too many"), "too many"),
        (PlanError("X", "y differs"), "the incremental refresh failed: [X] y differs"),
    ],
)
def test_any_failure_is_the_reason_of_a_complete_refresh(error, reason):
    with pytest.raises(NotIncrementalError) as raised, reasons(VIEW):
        raise error
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    "error",
    [
        FlowError("X", "y", flow="gold"),
        RuntimeError("Job 3 cancelled as part of ..."),
        RuntimeError(f'[USER_RAISED_EXCEPTION] {FAILURE_MARK}{{"rules":["known"],"row":"{{}}"}}'),
    ],
)
def test_pipeline_error_rule_or_stop_does_not_cause_a_complete_refresh(error):
    with pytest.raises(type(error)) as raised, reasons(VIEW):
        raise error
    assert raised.value is error


def test_strict_incremental_view_fails_with_the_error_of_an_invalid_value():
    with pytest.raises(RuntimeError, match="DIVIDE_BY_ZERO"), reasons(STRICT):
        raise RuntimeError(WRITTEN)


def test_strict_incremental_view_fails_with_the_reason():
    message = r"REFRESH_NOT_INCREMENTAL.*but no key"
    with pytest.raises(PlanError, match=message), reasons(STRICT):
        raise RuntimeError(REFUSED)


def _state(full: float | None, last: float | None, *, share: float | None = None) -> ViewState:
    return ViewState(
        fingerprint="",
        sources={},
        table_version=1,
        rows=1_000_000,
        full_seconds=full,
        incremental_seconds=last,
        incremental_share=share,
    )


def _changes(rows: float, share: float, *, linear: bool = False) -> Any:
    size = SimpleNamespace(rows=lambda: rows, share=lambda: share)
    return SimpleNamespace(sizes=lambda: [size], isLinear=lambda: linear, selectsRows=lambda: True)


def test_complete_refresh_is_chosen_when_the_last_incremental_took_longer():
    few = _changes(1000, 0.001)
    for full, last in ((None, None), (3.0, None), (3.0, 2.9)):
        assert _check_cost(_state(full, last), "GROUP_AGGREGATE", few) == pytest.approx(0.001)
    with pytest.raises(NotIncrementalError, match=r"took 3\.1 s"):
        _check_cost(_state(3.0, 3.1), "GROUP_AGGREGATE", few)


def test_slow_refresh_of_many_changes_does_not_prevent_a_refresh_of_few():
    slow = _state(3.0, 4.0, share=0.01)
    _check_cost(slow, "GROUP_AGGREGATE", _changes(1000, 0.001))
    with pytest.raises(NotIncrementalError, match=r"took 4\.0 s"):
        _check_cost(slow, "GROUP_AGGREGATE", _changes(9000, 0.009))


@pytest.mark.parametrize(
    ("technique", "rows", "share", "linear", "reason"),
    [
        # The view has 1,000,000 rows, and the table of the first case has five times as many.
        ("GROUP_AGGREGATE", 500_000, 0.1, False, "about 409510 of 1000000 groups changed"),
        ("GROUP_AGGREGATE", 100_000, 0.02, False, None),
        ("GROUP_AGGREGATE", 100_000_000, 1.0, False, "about 1000000 of 1000000 groups changed"),
        ("ROW_BASED", 500_000, 0.1, False, "about 41% of its rows may have changed"),
        ("ROW_BASED", 100_000, 0.02, False, None),
        ("ROW_BASED", 150_000, 0.15, True, None),
        ("ROW_BASED", 250_000, 0.25, True, "about 25% of its rows may have changed"),
        # A joined table with fewer rows than the view.
        ("ROW_BASED", 100, 0.01, True, None),
        ("ROW_BASED", 3000, 0.3, True, "about 30% of its rows may have changed"),
        # Without statistics.
        ("ROW_BASED", -1, 0.3, True, "about 30% of its rows may have changed"),
        ("ROW_BASED", -1, 0.001, True, None),
    ],
)
def test_refresh_is_chosen_by_the_estimated_number_of_changed_rows(
    technique, rows, share, linear, reason
):
    changes = _changes(rows, share, linear=linear)
    if reason is None:
        assert _check_cost(_state(3.0, None), technique, changes) == pytest.approx(share)
        return
    with pytest.raises(NotIncrementalError, match=f"^{reason}$"):
        _check_cost(_state(3.0, None), technique, changes)


def test_few_groups_are_merged_regardless_of_the_added_rows():
    view = replace(_state(3.0, None), rows=10_000)
    _check_cost(view, "GROUP_AGGREGATE", _changes(500_000, 0.1))
