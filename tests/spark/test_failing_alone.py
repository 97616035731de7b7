"""Failures do not spread: a flow that cannot be started, a definition that is not selected."""

from pathlib import Path
from typing import Any

import pytest
from update_project import Project

from penstock._analysis.ansi_fallback import text_numbers
from penstock._execution.admission import BatchAdmission
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._update import UpdateOptions, plan_update
from penstock.errors import DefinitionErrors

SOURCE = """
@dp.table
def bronze():
    return rows()


@dp.table
def ordered():
    return dp.read_stream("bronze").orderBy("id")


@dp.table
def below():
    return dp.read_stream("ordered")


@dp.table
def silver():
    return dp.read_stream("bronze").where("id > 1")


def texts():
    return spark.readStream.schema("q STRING").json("texts").selectExpr("q * 0.05 AS fee")


@dp.table
def strict():
    return texts()


@dp.table(spark_conf={"spark.sql.ansi.enabled": "false"})
def lenient():
    # The analysis without ANSI mode accepts a cast that it refuses otherwise.
    return texts().selectExpr("*", "cast(DATE'2026-01-01' AS INT) AS empty")

"""
TYPO = """
@dp.table
def typo():
    return dp.read_stream("bronze").select("amuont")


@dp.table
def below_typo():
    return dp.read_stream("typo")

@dp.table(spark_conf={"spark.executor.memory": "2g"})
def resized():
    return dp.read_stream("bronze")
"""


def test_a_flow_that_cannot_run_does_not_fail_other_flows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, spark).source(SOURCE)
    project.add("a.json", [{"id": 1}, {"id": 2}])
    project.add("a.json", [{"q": "10"}, {"q": "n/a"}], folder="texts")

    result = project.run(full_refresh_all=True)
    assert result.state is UpdateState.FAILED
    errors = {error.condition: error for error in result.failures}
    assert set(errors) == {"OUTPUT_MODE_NOT_SUPPORTED", "FLOW_FAILED"}
    assert "'ordered'" in errors["OUTPUT_MODE_NOT_SUPPORTED"].message
    assert set(result.skipped) == {"below"}
    assert set(result.completed) == {"bronze", "silver", "lenient"}
    assert project.rows("silver", "id") == [(2,)]
    assert not project.path("ordered").exists()
    assert not project.path("below").exists()

    assert "'strict'" in errors["FLOW_FAILED"].message
    hint = errors["FLOW_FAILED"].hint
    assert hint is not None
    assert "query of strict" in hint
    assert "spark.sql.ansi.enabled" in hint
    fees = {row["fee"] for row in project.table("lenient").collect()}
    assert {None if fee is None else float(fee) for fee in fees} == {0.5, None}

    options = UpdateOptions(refresh=("strict",))
    notes = plan_update(load_settings(tmp_path), options)[1].notes
    assert any("query of strict uses strings as numbers: q in" in note for note in notes)
    with pytest.raises(DefinitionErrors) as refused:
        plan_update(load_settings(tmp_path), UpdateOptions())
    assert [error.condition for error in refused.value.errors] == ["OUTPUT_MODE_NOT_SUPPORTED"]

    project.source(SOURCE + TYPO).add("b.json", [{"id": 3}])
    result = project.run(refresh=("silver", "bronze"))
    assert result.state is UpdateState.COMPLETED, result.failures
    assert project.rows("silver", "id") == [(2,), (3,)]
    with pytest.raises(DefinitionErrors) as wrong:
        project.run(refresh=("silver", "below_typo"))
    assert ["amuont" in error.message for error in wrong.value.errors] == [True]
    with pytest.raises(DefinitionErrors, match=r"(?s)`spark_conf` of .resized.*only at its start"):
        project.run(refresh=("silver", "resized"))


def test_strings_that_spark_casts_to_numbers_are_detected(spark: Any) -> None:
    frame = spark.createDataFrame([("1", 2, 3.5)], "q STRING, n INT, d DOUBLE")

    def texts(*columns: str) -> tuple[str, ...]:
        return text_numbers(frame.selectExpr(*columns))

    assert [
        len(texts(query)) for query in ("q * 0.05", "avg(q)", "round(q)", "q > 5", "q % n")
    ] == [1] * 5
    assert texts("sum(q) AS total") == ("q in sum(q)",)
    assert texts("try_cast(q AS DOUBLE) * 2", "CAST(q AS INT) + n") == ()
    assert texts("n * d", "n + 1L", "q || n", "q = 'x'", "length(q) * 2") == ()
    assert text_numbers(frame.select((frame.q.cast("double") * 2).alias("x"))) == ()
    assert text_numbers(frame.where("q > 5").groupBy("n").agg({"q": "avg"})) != ()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert texts("q * 0.05") == ()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_a_query_ends_when_its_flow_fails_after_its_start(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, spark).source("""
@dp.table
def one_by_one():
    return spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json("data")
""")
    for number in range(60):
        project.add(f"{number}.json", [{"id": number}])

    def fails(*_: object, **__: object) -> None:
        raise TypeError

    monkeypatch.setattr(BatchAdmission, "attach", fails)
    result = project.run()
    assert result.state is UpdateState.FAILED
    assert [query.name for query in spark.streams.active] == []
