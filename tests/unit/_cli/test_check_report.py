"""The report of `check`: counts, missing parts of the project, certain and uncertain problems."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock._check import OpenedProject, ProjectCheck
from penstock._cli.check import _as_text, _needs
from penstock._model.origin import SourceLocation
from penstock._model.pipeline import PipelineSettings
from penstock._project.needs import Need, ProjectNeeds
from penstock.errors import DefinitionError, DefinitionErrors, PenstockError, UserCodeError

AT = SourceLocation("a.py", 3)


def _check(**changes) -> ProjectCheck:
    empty = ProjectCheck(
        settings=PipelineSettings(name="p", storage="file:///s", root="/r"),
        sources=(Path("/r/a.py"),),
        datasets={"bronze": "streaming table"},
        flows=("bronze",),
        planned=("bronze",),
        refused=(),
        unsure={},
        missing=(),
        assumed_settings={},
        servers=(),
        needs=ProjectNeeds(),
        notes=(),
    )
    return replace(empty, **changes)


def test_flow_counts_add_up_when_a_file_is_uncertain():
    wrong = DefinitionError("QUERY_INVALID", "no", origin=AT)
    assert next(line for line in _as_text(_check()) if "flow" in line) == (
        "1 dataset, 1 flow: 1 planned, 0 not certain, 0 refused"
    )
    check = _check(
        datasets={"a": "table", "b": "table", "c": "table"},
        flows=("a", "b", "c", "d"),
        planned=("a",),
        unsure={"b": wrong, "late.py:3": wrong},
        refused=(wrong, wrong, wrong),
    )
    assert list(_as_text(check))[:2] == [
        "pipeline p: 1 source file",
        "3 datasets, 4 flows: 1 planned, 1 not certain, 2 refused",
    ]


def test_each_need_is_listed_once():
    absent = ModuleNotFoundError("no", name="scikit_learn")
    error = UserCodeError("USER_CODE_RAISED", "no", origin=AT)
    error.__cause__ = absent
    needs = ProjectNeeds(
        settings=(Need("k", AT),) * 3,
        secrets=(Need("a/b", AT), Need("a/b", AT), Need("{scope}/b", AT)),
        imports=(Need("scikit_learn", AT),),
        packages=(Need("scikit-learn", AT),),
    )
    check = _check(needs=needs, assumed_settings={"k": "v"}, unsure={"x": error})
    assert [(kind, name) for kind, name, _ in _needs(check)] == [
        ("setting", "k"),
        ("secret", "a/b"),
        ("package", "scikit_learn"),
    ]


def _opened(*errors: PenstockError, failed=None, **changes) -> OpenedProject:
    survey = SimpleNamespace(unsure={}, errors=errors, failed=failed or {}, missing=())
    return OpenedProject(
        loaded=SimpleNamespace(errors=()),  # type: ignore[arg-type]
        index=SimpleNamespace(),  # type: ignore[arg-type]
        survey=survey,  # type: ignore[arg-type]
        notes=(),
        assumed_settings={},
        servers=(),
        guessing=changes.get("guessing", frozenset()),
        assuming=changes.get("assuming", frozenset()),
    )


def _raised(cause: Exception) -> UserCodeError:
    error = UserCodeError("QUERY_FUNCTION_RAISED", "it raised", origin=AT)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "is_certain"), [(ValueError("not JSON"), False), (NameError("x"), True)]
)
def test_error_that_an_assumed_secret_may_cause_is_uncertain(cause, is_certain):
    error = _raised(cause)
    opened = _opened(error, failed={"bronze": error, "gold": error}, assuming={"a.py"})
    refused, unsure = opened.problems()
    assert list(refused) == ([error] if is_certain else [])
    assert sorted(unsure) == ([] if is_certain else ["bronze", "gold"])
    refused, unsure = _opened(error, failed={"bronze": error}, assuming={"b.py"}).problems()
    assert (list(refused), unsure) == ([error], {})


def test_errors_of_several_expectations_are_listed_separately():
    rules = [DefinitionError("EXPECTATION_INVALID", f"rule {n}", origin=AT) for n in (1, 2)]
    refused, _ = _opened(DefinitionErrors(rules)).problems()
    assert list(refused) == rules


def test_files_with_an_unknown_secret_or_setting_are_listed():
    needs = ProjectNeeds(
        settings=(Need("k", SourceLocation("k.py", 1)),),
        secrets=(Need("a/{x}", SourceLocation("computed.py", 1)),),
    )
    assert needs.files_that_assume() == {"k.py", "computed.py"}
