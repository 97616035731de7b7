"""Whole updates: sinks by function, event hooks, dependencies, rules about whole tables."""

import json
from pathlib import Path

import pytest
from update_project import Project

from penstock._observe.events import UpdateState
from penstock.errors import DefinitionErrors, ExpectationFailedError

pytestmark = pytest.mark.spark


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark)


def amounts(*values: int, start: int = 0) -> list[dict]:
    return [{"id": start + at, "amount": value} for at, value in enumerate(values)]


def test_sinks_hooks_and_dependencies_work_together_in_one_update(project: Project):
    project.source(
        """
import json
from pathlib import Path

@dp.on_event_hook(max_allowable_consecutive_failures=2)
def remember(event):
    with Path("seen.jsonl").open("a") as out:
        out.write(json.dumps([event["event_type"], event["message"]]) + "\\n")

@dp.on_event_hook
def broken(event):
    raise ValueError("the hook is broken")

@dp.table
def bronze():
    return rows()

@dp.table
def second():
    return rows()

@dp.foreach_batch_sink
def archive(df, batch_id):
    df.write.mode("append").json(f"archive/{batch_id}")
    df.write.mode("append").saveAsTable("main.logs.archived")
    assert spark.table("main.logs.archived").count() > 0

@dp.append_flow(target="archive", depends_on=["second"])
def to_archive():
    return dp.read_stream("bronze")

@dp.foreach_batch_sink(name="totals")
def keep_totals(df, batch_id):
    found = [[row.k, row.n] for row in df.collect()]
    Path("totals.json").write_text(json.dumps(sorted(found)))

@dp.update_flow(target="totals")
def counted():
    return dp.read_stream("bronze").groupBy((F.col("id") % 2).alias("k")).agg(
        F.count("*").alias("n")
    )
"""
    ).add("a.json", amounts(1, 2, 3))
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    archived = project.spark.read.json(str(project.root / "archive" / "*"))
    assert sorted(row.id for row in archived.collect()) == [0, 1, 2]
    assert json.loads((project.root / "totals.json").read_text()) == [[0, 2], [1, 1]]
    seen = [json.loads(line) for line in (project.root / "seen.jsonl").open()]
    types = [kind for kind, _ in seen]
    assert types[0] == "create_update"
    assert seen[-1] == ["update_progress", seen[-1][1]]
    assert "hook_progress" not in types
    failed = list(project.log("hook_progress"))
    assert len(failed) == len(seen)
    assert "the hook is broken" in failed[0]["message"]

    project.add("b.json", amounts(4, start=10))
    project.run()
    assert json.loads((project.root / "totals.json").read_text()) == [[0, 3]]


def test_rules_about_a_whole_table_hold_when_a_view_is_refreshed(project: Project):
    project.source(
        """
@dp.materialized_view
@dp.expect_unique("one row per id", ["id"], on_violation="quarantine")
@dp.expect_row_count("enough", minimum=2)
def people():
    return spark.read.schema(ROWS).json("data")

@dp.materialized_view
@dp.expect_unique("no twins", "amount", on_violation="warn")
@dp.expect_row_count("few", maximum=1, on_violation="warn")
def counted():
    return spark.read.schema(ROWS).json("data")
"""
    ).add("a.json", amounts(1, 2, 2) + amounts(5))
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("people", "id") == [(1,), (2,)]
    twice = project.rows("people_quarantine", "id", "_failed_rules")
    assert twice == [(0, ["one row per id"])] * 2
    assert project.table("counted").count() == 4
    rules = {
        rule["name"]: (rule["passed_records"], rule["failed_records"])
        for event in project.log("flow_progress")
        for rule in event["details"]["flow_progress"]
        .get("data_quality", {})
        .get("expectations", ())
    }
    assert rules == {
        "one row per id": (2, 2),
        "enough": (1, 0),
        "no twins": (2, 2),
        "few": (0, 1),
    }

    project.add("b.json", amounts(7, start=1) + amounts(8, start=2))
    result = project.run()
    assert result.state is UpdateState.FAILED
    (failure,) = result.failures
    assert isinstance(failure, ExpectationFailedError)
    assert "has 0 rows, but 'enough' requires at least 2 rows" in str(failure)
    assert project.rows("people", "id") == [(1,), (2,)]


def test_rule_about_a_whole_table_is_refused_when_the_dataset_is_a_stream(project: Project):
    project.source(
        """
@dp.table
@dp.expect_unique("one", ["idd"])
def bronze():
    return rows()
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    assert "which a stream never has" in text
    assert "there is no column 'idd'" in text
    assert "did you mean 'id'?" in text


def test_types_fit_when_flows_differ_in_width_or_have_none(project: Project):
    project.source(
        """
dp.create_streaming_table("ids")

@dp.append_flow(target="ids", once=True)
def narrow():
    return spark.range(1).select(F.lit(99).alias("id"), F.lit(None).alias("note"))

@dp.append_flow(target="ids")
def wide():
    return rows().select("id")

@dp.materialized_view
def shown():
    return dp.read("ids").select("id", "note", F.lit(None).alias("nothing"))
"""
    ).add("a.json", amounts(1, 2))
    assert project.run().state is UpdateState.COMPLETED
    assert project.table("ids").schema.simpleString() == "struct<id:bigint,note:string>"
    assert project.rows("ids", "id") == [(0,), (1,), (99,)]
    assert project.rows("shown") == [(0, None, None), (1, None, None), (99, None, None)]
