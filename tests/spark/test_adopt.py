"""A job processes some rows, then the adopted pipeline the other rows: each row once."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from adopted_job import run_and_adopt
from stored_rows import stored_rows
from tutorial_job import PROGRAM

import penstock
from penstock._cli.main import main
from penstock._observe.events import UpdateState

JOB = """
SCHEMA = "id BIGINT, amount INT"
orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json("@root/data")
bronze = (
    orders.writeStream.format("delta")
    .option("checkpointLocation", "@root/checkpoints/bronze")
    .trigger(availableNow=True)
    .start("@root/delta/bronze")
)
bronze.awaitTermination()
large = spark.readStream.format("delta").load("@root/delta/bronze").where("amount > 10")
silver = (
    large.writeStream.format("delta")
    .option("checkpointLocation", "@root/checkpoints/silver")
    .trigger(availableNow=True)
    .start("@root/delta/silver")
)
archive = (
    orders.writeStream.format("json")
    .option("checkpointLocation", "@root/checkpoints/archive")
    .trigger(availableNow=True)
    .start("@root/archive")
)
silver.awaitTermination()
archive.awaitTermination()
"""
STATEFUL = """

@dp.table(output_mode="update")
def counts():
    return spark.readStream.table("bronze").groupBy("id").count()
"""


def add(number: int) -> None:
    rows = [{"id": number * 10 + at, "amount": at * 10} for at in range(3)]
    Path(f"data/{number}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_each_row_is_written_once_after_a_job_is_adopted(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for number in (1, 2):
        add(number)
    resets = run_and_adopt(JOB.replace("@root", str(tmp_path)), spark, capsys)
    assert len(resets) == 3
    shutil.copytree("checkpoints/bronze", "checkpoints/open")
    max(Path("checkpoints/open/commits").glob("[0-9]*")).unlink()
    assert main([word.replace("checkpoints/bronze", "checkpoints/open") for word in resets[0]]) == 2
    assert "[RESET_WOULD_DOUBLE]" in capsys.readouterr().err
    for command in resets:
        assert main(command) == 0
    copied = Path(".penstock/checkpoints").glob("*/*/metadata")
    copies = [file.read_text("utf-8") for file in copied]
    originals = {file.read_text("utf-8") for file in Path("checkpoints").glob("*/metadata")}
    assert len(set(copies) - originals) == len(copies) == 3, "ids of queries are shared"
    for number in (3, 4):
        add(number)
    for _ in range(2):
        assert penstock.run("job_pipeline.py").state is UpdateState.COMPLETED
    ids = sorted(number * 10 + at for number in (1, 2, 3, 4) for at in range(3))
    assert [row[0] for row in stored_rows(spark, Path("delta/bronze"), "id")] == ids
    assert [row[0] for row in stored_rows(spark, Path("delta/silver"), "id")] == [
        number for number in ids if number % 10 == 2
    ]
    archived = Counter(row["id"] for row in spark.read.json(str(tmp_path / "archive")).collect())
    assert archived == Counter(ids)
    assert main(resets[0]) == 2  # the flow has already run
    with Path("job_pipeline.py").open("a") as file:
        file.write(STATEFUL)
    assert main([word.replace("bronze", "counts") for word in resets[0]]) == 2
    errors = capsys.readouterr().err
    for condition in ("[RESET_WOULD_DOUBLE]", "[CHECKPOINT_NOT_FOUND]"):
        assert condition in errors
    assert "let the program finish" not in errors  # it has already finished
    assert main(["counts" if word == "bronze" else word for word in resets[0]]) == 2
    assert "[RESET_NOT_POSSIBLE]" in capsys.readouterr().err


def test_dry_run_plans_the_adopted_tutorial_job(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(PROGRAM.replace("@servers", "localhost:9092"), encoding="utf-8")
    assert main(["adopt", "job.py"]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if " reset " in line]
    assert len(commands) == 3  # the other two queries have state
    plan = penstock.dry_run("job_pipeline.py")
    assert set(plan.graph.flows) == {
        *("orders_bronze", "silver.filtered_orders", "events_agg", "clicked", "to_process_batch")
    }
