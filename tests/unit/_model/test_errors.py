import pytest

from penstock._model.origin import SourceLocation
from penstock.errors import (
    CheckpointError,
    DefinitionError,
    DefinitionErrors,
    ExpectationFailedError,
    FlowError,
    InternalError,
    MissingExtraError,
    PenstockError,
    PlanError,
    SetupError,
    SpecError,
    UpdateFailedError,
)

ORIGIN = SourceLocation("pipeline.py", 12)


def test_error_shows_condition_origin_and_hint():
    error = DefinitionError("SOME_CONDITION", "it went wrong", origin=ORIGIN, hint="do this")
    assert str(error) == (
        "[SOME_CONDITION] it went wrong\n  declared at pipeline.py:12\n  hint: do this"
    )


def test_an_error_is_one_line_when_it_has_only_a_message():
    assert str(SpecError("SOME_CONDITION", "it went wrong")) == "[SOME_CONDITION] it went wrong"


def test_combined_error_shows_all_its_errors():
    errors = DefinitionErrors(
        [
            DefinitionError("FIRST_ONE", "one", origin=ORIGIN),
            DefinitionError("SECOND_ONE", "two", hint="mend it"),
        ]
    )
    assert str(errors).splitlines() == [
        "[FIRST_ONE] one",
        "  declared at pipeline.py:12",
        "[SECOND_ONE] two",
        "  hint: mend it",
    ]
    assert errors.message == "the pipeline has 2 errors"


def test_message_is_singular_when_there_is_one_error():
    assert DefinitionErrors([DefinitionError("X", "one")]).message == "the pipeline has 1 error"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DefinitionError("X", ""), 2),
        (SpecError("X", ""), 2),
        (PlanError("X", ""), 2),
        (FlowError("X", "", flow="f"), 1),
        (UpdateFailedError([]), 1),
        (SetupError("X", ""), 3),
        (InternalError("X", ""), 70),
    ],
)
def test_each_error_class_has_its_exit_code(error, code):
    assert isinstance(error, PenstockError)
    assert error.exit_code == code


def test_flow_error_has_flow_batch_and_query():
    error = FlowError("X", "", flow="orders", batch_id=7, query_id="q", retryable=True)
    assert (error.flow, error.batch_id, error.query_id, error.retryable) == ("orders", 7, "q", True)


@pytest.mark.parametrize("kind", [ExpectationFailedError, CheckpointError])
def test_expectation_and_checkpoint_errors_are_not_retryable(kind):
    assert kind("X", "", flow="orders").retryable is False


def test_missing_extra_error_is_an_import_error():
    assert isinstance(MissingExtraError("X", "", hint="pip install"), ImportError)


def test_update_failed_error_counts_the_failed_flows():
    failures = [FlowError("X", "", flow="a"), FlowError("Y", "", flow="b")]
    assert UpdateFailedError(failures).message.startswith("2 flows failed")
