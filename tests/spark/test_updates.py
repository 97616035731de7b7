"""Whole updates in this process: what a user's pipeline does to tables, events and checkpoints."""

from pathlib import Path

import pytest
from update_project import ContinuousRun, Project

from penstock._observe.events import UpdateState
from penstock.errors import (
    CheckpointError,
    DefinitionErrors,
    ExpectationFailedError,
    PlanError,
    SpecError,
)

pytestmark = pytest.mark.spark

CHAIN = """
@dp.table
def bronze():
    return rows()


@dp.table(comment="checked", table_properties={"quality": "silver"})
@dp.expect_or_drop("positive", "amount > 0")
@dp.expect("small", "amount < 100")
def silver():
    return dp.read_stream("bronze")


@dp.materialized_view
def gold():
    return dp.read("silver").groupBy((F.col("id") % 2).alias("k")).agg(F.sum("amount").alias("s"))
"""


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, spark)


def orders(*amounts: "int | None", start: int = 0) -> list[dict]:
    return [
        {"id": start + i, "amount": amount, "ts": f"2026-01-01T00:{i:02d}:00Z"}
        for i, amount in enumerate(amounts)
    ]


def test_rows_flow_to_gold_and_bad_ones_to_quarantine_when_triggered(project):
    project.source(CHAIN).add("a.json", orders(10, 20, -1, None, 500))
    result = project.run()
    assert result.state is UpdateState.COMPLETED
    assert project.rows("bronze", "id") == [(0,), (1,), (2,), (3,), (4,)]
    assert project.rows("silver", "id", "amount") == [(0, 10), (1, 20), (4, 500)]
    assert project.rows("gold") == [(0, 510), (1, 20)]


def test_null_is_a_violation_with_its_rule_and_counts_equal_rows_when_logged(project):
    project.source(CHAIN).add("a.json", orders(10, None, -5, 200))
    project.run()
    quarantined = project.table("silver_quarantine").collect()
    assert sorted((row["id"], tuple(row["_failed_rules"])) for row in quarantined) == [
        (1, ("positive",)),
        (2, ("positive",)),
    ]
    logged = {"positive": [0, 0], "small": [0, 0]}
    dropped = quarantined_logged = 0
    for event in project.log("flow_progress"):
        quality = event["details"]["flow_progress"].get("data_quality", {})
        dropped += quality.get("dropped_records", 0)
        quarantined_logged += quality.get("quarantined_records", 0)
        for rule in quality.get("expectations", ()):
            logged[rule["name"]][0] += rule["passed_records"]
            logged[rule["name"]][1] += rule["failed_records"]
    assert logged == {"positive": [2, 2], "small": [2, 2]}
    assert dropped == quarantined_logged == len(quarantined) == 2


def test_nothing_is_written_when_nothing_is_new(project):
    project.source(CHAIN).add("a.json", orders(1, 2))
    project.run()
    before = {name: project.version(name) for name in ("bronze", "silver", "gold")}
    assert project.run().state is UpdateState.COMPLETED
    assert {name: project.version(name) for name in before} == before
    assert (
        next(e.details for e in project.events if e.event_type == "planning_information")[
            "planning_information"
        ]["technique_information"][0]["maintenance_type"]
        == "MAINTENANCE_TYPE_NO_OP"
    )


def test_only_new_rows_are_added_when_files_come(project):
    project.source(CHAIN).add("a.json", orders(1, 2))
    project.run()
    project.add("b.json", orders(3, start=10))
    project.run()
    assert project.rows("silver", "id") == [(0,), (1,), (10,)]
    assert project.rows("gold") == [(0, 4), (1, 2)]


def test_the_batch_is_not_written_and_other_branches_finish_when_a_fail_rule_breaks(project):
    project.source(
        """
@dp.table
def bronze():
    return rows()

@dp.table
@dp.expect_or_fail("has_amount", "amount IS NOT NULL")
def strict():
    return dp.read_stream("bronze")

@dp.table
def below():
    return dp.read_stream("strict")

@dp.table
def other():
    return dp.read_stream("bronze")
"""
    ).add("a.json", orders(1, None))
    result = project.run()
    assert result.state is UpdateState.FAILED
    (failure,) = result.failures
    assert isinstance(failure, ExpectationFailedError)
    text = str(failure)
    assert "has_amount" in text and '"amount":null' in text and "batch 0" in text
    assert "pipeline.py:" in text
    assert result.skipped == ("below",)
    assert project.rows("strict") == []
    assert len(project.rows("other")) == 2


def test_output_modes_when_aggregating(project):
    project.source(
        """
@dp.table
def totals():
    return rows().groupBy("id").agg(F.sum("amount").alias("s"))

@dp.table(output_mode="update")
def merged():
    return rows().groupBy("id").agg(F.sum("amount").alias("s"))

@dp.table
def windows():
    return (
        rows().withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.count("*").alias("n"))
    )
"""
    )
    project.add("a.json", [{"id": 1, "amount": 5, "ts": "2026-01-01T00:00:00Z"}])
    assert project.run().state is UpdateState.COMPLETED
    project.add(
        "b.json",
        [
            {"id": 1, "amount": 7, "ts": "2026-01-01T00:00:30Z"},
            {"id": 2, "amount": 1, "ts": "2026-01-01T00:10:00Z"},
        ],
    )
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("totals") == [(1, 12), (2, 1)]
    assert project.rows("merged") == [(1, 12), (2, 1)]
    assert project.rows("windows", "n") == [(2,)]


def test_one_time_and_several_flows_fill_one_table(project):
    project.source(
        """
dp.create_streaming_table("all_rows")

@dp.append_flow(target="all_rows", once=True)
def history():
    return spark.createDataFrame([(100, 1)], "id BIGINT, amount INT")

@dp.append_flow(target="all_rows")
def first():
    return rows().select("id", "amount")

@dp.append_flow(target="all_rows")
def second():
    return rows("more").select("id", "amount")
"""
    )
    project.add("a.json", orders(1)).add("b.json", orders(2, start=50), folder="more")
    assert project.run().state is UpdateState.COMPLETED
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("all_rows", "id") == [(0,), (50,), (100,)]


def test_rows_and_quarantine_are_rebuilt_when_fully_refreshed(project):
    project.source(CHAIN).add("a.json", orders(1, -1))
    project.run()
    project.run(full_refresh_all=True)
    assert project.rows("silver", "id") == [(0,)]
    assert [row["id"] for row in project.table("silver_quarantine").collect()] == [1]
    assert project.rows("gold") == [(0, 1)]


def test_a_reset_is_done_again_when_it_was_cut_off(project):
    project.source(CHAIN).add("a.json", orders(1, 2))
    project.run()
    state = project.root / ".penstock" / "state" / "flows" / "silver.json"
    assert '"reset_pending": false' in state.read_text()
    state.write_text(state.read_text().replace('"reset_pending": false', '"reset_pending": true'))
    project.run()
    assert project.rows("silver", "id") == [(0,), (1,)]
    assert '"reset_pending": false' in state.read_text()


def test_a_protected_table_is_refused_when_named_and_kept_when_everything_is_reset(project):
    project.source(
        """
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def kept():
    return rows()
"""
    ).add("a.json", orders(1))
    project.run()
    with pytest.raises(PlanError, match="TABLE_NOT_RESETTABLE"):
        project.run(full_refresh=("kept",))
    (project.root / "data" / "a.json").unlink()
    project.run(full_refresh_all=True)
    assert project.rows("kept", "id") == [(0,)]


def test_an_unknown_name_is_refused_when_selected(project):
    project.source(CHAIN).add("a.json", orders(1))
    with pytest.raises(SpecError, match="did you mean 'silver'"):
        project.run(refresh=("slver",))


def test_only_the_selection_is_updated_when_refreshing(project):
    project.source(CHAIN).add("a.json", orders(1))
    project.run()
    project.add("b.json", orders(2, start=5))
    project.run(refresh=("bronze",))
    assert len(project.rows("bronze")) == 2
    assert len(project.rows("silver")) == 1


def test_the_checkpoint_is_refused_when_a_stateful_operator_changed(project):
    query = """
@dp.table
def unique():
    return rows().withWatermark("ts", "1 hour").dropDuplicates([{keys}])
"""
    project.source(query.format(keys='"id", "ts"')).add("a.json", orders(1))
    assert project.run().state is UpdateState.COMPLETED
    project.source(query.format(keys='"id", "amount", "ts"'))
    result = project.run()
    (failure,) = result.failures
    assert isinstance(failure, CheckpointError)
    assert failure.condition == "STATEFUL_QUERY_CHANGED"
    assert "--full-refresh unique" in str(failure)
    assert project.run(full_refresh=("unique",)).state is UpdateState.COMPLETED


def test_new_columns_are_added_and_type_changes_refused_when_the_query_changes(project):
    table = "@dp.table\ndef t():\n    return rows().select({columns})\n"
    project.source(table.format(columns='"id"')).add("a.json", orders(1))
    project.run()
    project.source(table.format(columns='"id", "amount"')).add("b.json", orders(7, start=3))
    assert project.run().state is UpdateState.COMPLETED
    assert project.table("t").orderBy("id").collect() == [(0, None), (3, 7)]
    project.source(table.format(columns='F.col("ts").alias("id"), "amount"'))
    project.add("c.json", orders(9, start=4))
    result = project.run()
    assert result.state is UpdateState.FAILED
    assert result.failures[0].condition == "SCHEMA_INCOMPATIBLE"
    assert "--full-refresh" in str(result.failures[0])


@pytest.mark.parametrize("kind", ["stateless", "stateful"])
def test_no_row_is_doubled_when_the_newest_commit_entry_is_lost(project, kind):
    extra = (
        '.withWatermark("ts", "1 hour").dropDuplicates(["id", "ts"])' if kind == "stateful" else ""
    )
    project.source(f"@dp.table\ndef t():\n    return rows(){extra}\n")
    project.add("a.json", orders(1, 2)).run()
    project.add("b.json", orders(3, 4, start=20)).run()
    version = project.version("t")
    commits = project.commits_folder("t")
    newest = max(int(f.name) for f in commits.iterdir() if f.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    assert project.run().state is UpdateState.COMPLETED
    assert project.version("t") == version
    assert project.rows("t", "id") == [(0,), (1,), (20,), (21,)]


def test_the_view_keeps_its_rows_when_its_upstream_fails(project):
    text = """
@dp.table
@dp.expect_or_fail("ok", "amount > 0")
def silver():
    return rows()

@dp.materialized_view
def gold():
    return dp.read("silver").groupBy().agg(F.sum("amount").alias("s"))
"""
    project.source(text).add("a.json", orders(4))
    project.run()
    project.add("b.json", orders(-1, start=9))
    result = project.run()
    assert result.state is UpdateState.FAILED and result.skipped == ("gold",)
    assert project.rows("gold") == [(4,)]


def test_a_view_is_recomputed_when_its_query_changed(project):
    view = """
@dp.table
def t():
    return rows()

@dp.materialized_view
def v():
    return dp.read("t").select(F.{f}("amount").alias("x"))
"""
    project.source(view.format(f="max")).add("a.json", orders(3, 9))
    project.run()
    project.source(view.format(f="min"))
    project.run()
    assert project.rows("v") == [(3,)]


def test_confs_of_a_table_hold_while_it_is_computed_and_for_it_alone(project):
    project.source(
        """
TOKYO = {"spark.sql.session.timeZone": "Asia/Tokyo"}

@dp.table(spark_conf=TOKYO)
def streamed():
    return rows().select("id", F.current_timezone().alias("zone"))

@dp.materialized_view(spark_conf=TOKYO)
def computed():
    return spark.read.table("streamed").select("zone", F.current_timezone().alias("own"))

@dp.materialized_view
def plain():
    return spark.read.table("streamed").select("zone", F.current_timezone().alias("own"))
"""
    )
    project.add("a.json", [{"id": 1}])
    assert project.run().state is UpdateState.COMPLETED
    here = project.spark.conf.get("spark.sql.session.timeZone")
    assert project.rows("streamed", "zone") == [("Asia/Tokyo",)]
    assert project.rows("computed") == [("Asia/Tokyo", "Asia/Tokyo")]
    assert project.rows("plain") == [("Asia/Tokyo", here)]
    assert here != "Asia/Tokyo"


def test_temporary_views_filter_by_their_rules_when_read(project):
    project.source(
        """
@dp.temporary_view
@dp.expect_or_drop("positive", "amount > 0")
def clean():
    return rows()

@dp.table
def t():
    return spark.readStream.table("clean").select("id")

@dp.table
def from_sql():
    return spark.sql("SELECT id FROM STREAM(LIVE.t)")
"""
    ).add("a.json", orders(1, -1, None))
    assert project.run().state is UpdateState.COMPLETED
    assert project.rows("t") == [(0,)]
    assert project.rows("from_sql") == [(0,)]


def test_every_error_is_reported_at_once_when_the_pipeline_is_wrong(project):
    project.source(
        """
@dp.table
def silver():
    return rows()

@dp.table
def gold():
    return dp.read("sliver")

@dp.table
@dp.expect("rule", "amuont > 0")
def third():
    return rows()

@dp.append_flow(target="nowhere")
def lost():
    return rows()
"""
    )
    with pytest.raises(DefinitionErrors) as caught:
        project.run()
    text = str(caught.value)
    assert [e.condition for e in caught.value.errors] == [
        "DATASET_NOT_FOUND",
        "EXPECTATION_INVALID",
        "FLOW_TARGET_NOT_FOUND",
    ]
    assert "did you mean 'silver'" in text and "did you mean 'amount'" in text
    assert text.count("pipeline.py:") == 3


def test_a_sink_gets_the_rows_of_its_flow(project):
    project.source(
        f"""
dp.create_sink("outside", "delta", {{"path": "{project.root}/sink"}})

@dp.table
def t():
    return rows()

@dp.append_flow(target="outside")
def to_outside():
    return dp.read_stream("t").select("id")
"""
    ).add("a.json", orders(1, 2))
    assert project.run().state is UpdateState.COMPLETED
    assert project.spark.read.format("delta").load(f"{project.root}/sink").count() == 2


def test_rows_keep_flowing_and_it_stops_cleanly_when_continuous(project):
    project.source(
        CHAIN.replace(
            "@dp.materialized_view",
            '@dp.materialized_view(spark_conf={"pipelines.trigger.interval": "1 second"})',
        )
    )
    project.add("a.json", orders(1))
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("silver")) == 1)
    project.add("b.json", orders(2, -2, start=10))
    run.wait_until(lambda: len(project.rows("silver")) == 2)
    run.wait_until(lambda: project.rows("gold") == [(0, 3)])
    result = run.stop()
    assert result.failures == ()
    assert not result.interrupted
    assert project.run().state is UpdateState.COMPLETED
    assert len(project.rows("bronze")) == 3


def test_the_other_branch_goes_on_when_a_flow_fails_in_a_continuous_update(project):
    project.source(
        """
@dp.table
@dp.expect_or_fail("ok", "amount > 0")
def strict():
    return rows()

@dp.table
def free():
    return rows()
"""
    ).add("a.json", orders(1))
    run = ContinuousRun(project)
    run.wait_until(lambda: len(project.rows("strict")) == 1 and len(project.rows("free")) == 1)
    project.add("b.json", orders(-1, start=5))
    run.wait_until(lambda: len(project.rows("free")) == 2)
    project.add("c.json", orders(8, start=6))
    run.wait_until(lambda: len(project.rows("free")) == 3)
    result = run.stop()
    assert result.state is UpdateState.FAILED
    assert [f.condition for f in result.failures] == ["EXPECTATION_VIOLATED"]
    assert len(project.rows("strict")) == 1
