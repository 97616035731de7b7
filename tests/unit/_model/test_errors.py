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

HERE = SourceLocation("pipeline.py", 12)


def test_an_error_shows_condition_origin_and_hint_when_it_has_all_of_them():
    error = DefinitionError("SOME_CONDITION", "it went wrong", origin=HERE, hint="do this")
    assert str(error) == (
        "[SOME_CONDITION] it went wrong\n  declared at pipeline.py:12\n  hint: do this"
    )


def test_an_error_is_one_line_when_it_has_only_a_message():
    assert str(SpecError("SOME_CONDITION", "it went wrong")) == "[SOME_CONDITION] it went wrong"


def test_several_errors_show_all_of_them_when_they_are_one():
    errors = DefinitionErrors(
        [
            DefinitionError("FIRST_ONE", "one", origin=HERE),
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


def test_one_error_is_not_called_errors_when_it_is_alone():
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
def test_the_exit_code_tells_whose_turn_it_is_when_an_error_ends_a_command(error, code):
    assert isinstance(error, PenstockError)
    assert error.exit_code == code


def test_a_flow_error_keeps_where_it_happened_when_that_is_known():
    error = FlowError("X", "", flow="orders", batch_id=7, query_id="q", retryable=True)
    assert (error.flow, error.batch_id, error.query_id, error.retryable) == ("orders", 7, "q", True)


@pytest.mark.parametrize("kind", [ExpectationFailedError, CheckpointError])
def test_an_error_is_not_retried_when_the_same_batch_fails_again(kind):
    assert kind("X", "", flow="orders").retryable is False


def test_a_missing_extra_is_an_import_error_when_someone_catches_that():
    assert isinstance(MissingExtraError("X", "", hint="pip install"), ImportError)


def test_a_failed_update_counts_its_flows_when_several_failed():
    failures = [FlowError("X", "", flow="a"), FlowError("Y", "", flow="b")]
    assert UpdateFailedError(failures).message.startswith("2 flow(s) failed")
