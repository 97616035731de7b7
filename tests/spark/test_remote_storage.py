"""Commands for a storage that is not local: a mount of `viewfs://` on a folder."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from update_project import HEADER

from penstock._cli.main import main
from penstock._model.name import DatasetName
from penstock._model.pipeline import PipelineSettings
from penstock._observe.bus import EventBus
from penstock._observe.events import UpdateState
from penstock._project.spec import load_settings
from penstock._tables.layout import StorageLayout, layout_of
from penstock._tables.read.remote_storage import RemoteTables, copy_small_files
from penstock._update import UpdateOptions, run_update

pytestmark = pytest.mark.spark

SOURCE = """
@dp.table
@dp.expect_or_drop("small", "amount < 10")
@dp.expect("has_id", "id IS NOT NULL")
def silver():
    return rows()

@dp.materialized_view
def total():
    return spark.read.table("silver").agg(F.sum("amount").alias("total"))
"""


@pytest.fixture
def storage(spark, tmp_path: Path) -> str:
    """A URI that is no local path, mounted on a folder of the test."""
    name = f"t{uuid.uuid4().hex}"
    (tmp_path / "mounted").mkdir()
    conf = spark._jsc.hadoopConfiguration()
    conf.set(f"fs.viewfs.mounttable.{name}.link./data", (tmp_path / "mounted").as_uri())
    return f"viewfs://{name}/data/shop"


@pytest.fixture
def command(storage: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*arguments, "--storage", storage])
        return code, "".join(capsys.readouterr())

    return call


def test_commands_work_when_the_storage_is_not_local(
    storage: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text(HEADER + SOURCE, encoding="utf-8")
    code, text = command("quarantine", "list")
    assert (code, text.strip()) == (0, "no table has a quarantine yet")
    code, text = command("checkpoint", "list")
    assert (code, text.strip()) == (0, "no flow has a checkpoint yet")
    code, text = command("preview", "silver")
    assert code == 2
    assert "TABLE_NOT_FOUND" in text
    rows = [{"id": 1, "amount": 5}, {"id": 2, "amount": 50}, {"id": 3, "amount": 60}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.json").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    result = run_update(load_settings(tmp_path, storage=storage), UpdateOptions(), bus=EventBus())
    assert result.state is UpdateState.COMPLETED

    code, text = command("quarantine", "list", "--output", "json")
    assert (code, json.loads(text)) == (
        0,
        [{"table": "silver", "rows": 2, "by_rule": {"small": 2}}],
    )
    code, text = command("quarantine", "show", "silver", "--output", "json")
    assert [row["_failed_rules"] for row in json.loads(text)] == ["small", "small"]
    code, text = command("preview", "silver", "--output", "json")
    assert (code, [row["id"] for row in json.loads(text)]) == (0, ["1"])
    code, text = command("preview", "sliver")
    assert "did you mean 'silver'?" in text
    code, text = command("checkpoint", "list", "--output", "json")
    (checkpoint,) = json.loads(text)
    assert checkpoint["flow"] == "silver"
    assert checkpoint["finished_batch"] == 0
    assert checkpoint["path"].startswith(f"{storage}/checkpoints/silver/")
    assert checkpoint["damaged"] == {}
    code, text = command("checkpoint", "inspect", "silver", "--output", "json")
    assert (code, json.loads(text)["path"]) == (0, checkpoint["path"])
    code, text = command("explain", "silver", "--output", "json")
    shown = json.loads(text[text.index("{") :])["flows"][0]["checkpoint"]
    assert (code, shown["path"], shown["last_batch"]) == (0, checkpoint["path"], 0)
    code, text = command("checkpoint", "inspect", "sliver")
    assert code == 2
    assert f"no checkpoint below {storage}/checkpoints" in text
    code, text = command("checkpoint", "doctor")
    assert (code, text.strip()) == (0, "no problems found")
    folder = tmp_path / "mounted/shop/checkpoints/silver"
    (offsets,) = folder.glob("*/offsets/0")
    before = offsets.read_text(encoding="utf-8")
    offsets.write_text("", encoding="utf-8")
    code, text = command("checkpoint", "doctor")
    assert code == 1
    assert "offsets/0 is empty" in text
    assert f"restore {storage}/checkpoints/silver/" in text
    offsets.write_text(before, encoding="utf-8")
    state = tmp_path / "mounted/shop/state/flows/silver.json"
    state.rename(tmp_path / "lost")
    result = run_update(load_settings(tmp_path, storage=storage), UpdateOptions(), bus=EventBus())
    assert [error.condition for error in result.failures] == ["FLOW_STATE_MISSING"]
    (tmp_path / "lost").rename(state)
    # A backfill reads everything again, and adds no row.
    code, text = command("backfill", "silver", "--by", "id", "--yes", "--output", "json")
    assert (code, json.loads(text)["counts"]["added"]) == (0, 0)
    code, text = command(
        "checkpoint",
        "reset",
        "silver",
        "--from",
        "earliest",
        "--truncate",
        "--yes",
        "--output",
        "json",
    )
    assert code == 0
    assert json.loads(text)["old_checkpoint"] == checkpoint["path"]
    code, text = command("preview", "silver", "--output", "json")
    assert (code, json.loads(text)) == (0, [])


def test_storage_that_spark_cannot_open_is_an_error_with_a_hint(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text(HEADER + SOURCE, encoding="utf-8")
    for words in (["preview", "silver"], ["quarantine", "list"], ["checkpoint", "list"]):
        assert main([*words, "--storage", "abfss://a@b.invalid/x"]) == 2
        text = "".join(capsys.readouterr())
        assert "STORAGE_NOT_READABLE" in text
        assert "calling o" not in text
        assert "spark.jars" in text


def test_checkpoint_files_of_a_flow_named_state_are_copied(
    spark: SparkSession, storage: str, tmp_path: Path
):
    checkpoint = "pipelines/shop/checkpoints/state/e1"
    for name in ("metadata", "state/0/0/1.delta"):
        file = tmp_path / "mounted/shop" / checkpoint / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("content", encoding="utf-8")
    layout = StorageLayout(storage, f"{storage}/pipelines/shop")
    copy_small_files(spark, layout, tmp_path / "copy")
    copied = tmp_path / "copy" / checkpoint
    assert (copied / "metadata").read_text(encoding="utf-8") == "content"
    assert (copied / "state/0/0/1.delta").read_bytes() == bytes(7)


def test_table_is_read_when_a_column_has_a_backtick(
    spark: SparkSession, storage: str, tmp_path: Path
):
    settings = PipelineSettings(name="shop", storage=storage, root=str(tmp_path))
    path = layout_of(settings).table_path(DatasetName("spark_catalog", "default", "t"))
    spark.range(1).toDF("a`b").write.format("delta").save(path)
    preview = RemoteTables(spark, settings).read_table("t", 5)
    assert (preview.columns, preview.rows) == (("a`b",), (("0",),))
