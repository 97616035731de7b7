"""A target, its quarantine and writers for them; shared by the writer's tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock._model.expectation import Expectation, OnViolation
from penstock._model.origin import SourceLocation
from penstock._tables.files import StorageFiles
from penstock._tables.layout import DECISION_FILE, TableRef
from penstock._tables.write.decision import DecisionFile
from penstock._tables.write.prepare import prepare_quarantine, prepare_table
from penstock._tables.write.table_spec import TableSpec
from penstock._tables.write.upsert import UpsertWriter
from penstock._tables.write.writer import FlowWriter
from penstock.quality.split import RowSplit, split_rows


def rule(name: str, condition: Any, action: str = "drop") -> Expectation:
    return Expectation(
        name=name,
        condition=condition,
        on_violation=OnViolation(action),
        origin=SourceLocation("pipeline.py", 7),
    )


def decision_file(spark: SparkSession, root: Path, app_id: str) -> DecisionFile:
    """The file in which a writer records its decisions."""
    path = root / "checkpoints" / app_id / DECISION_FILE
    return DecisionFile(StorageFiles(spark), str(path))


class Harness:
    """One target with its quarantine, and writers for it."""

    def __init__(self, spark: SparkSession, root: Path, name: str = "orders") -> None:
        self.spark = spark
        self.root = root
        self.target = TableRef(str(root / name), name)
        self.quarantine = TableRef(str(root / f"{name}_quarantine"), f"{name}_quarantine")
        self.split: RowSplit | None = None
        self._keep = True

    def prepare(
        self,
        df: DataFrame,
        rules: Sequence[Expectation] = (),
        *,
        quarantine: bool = True,
        **spec: Any,
    ) -> DataFrame:
        """Make the tables for a query; returns the DataFrame to write."""
        self._keep = quarantine
        spec.setdefault("schema", df.schema)
        state = prepare_table(self.spark, self.target, TableSpec(**spec))
        self.split = split_rows(df, rules, quarantine=quarantine)
        if self.split is None:
            return df
        if self.split.quarantine:
            prepare_quarantine(
                self.spark,
                self.quarantine,
                state,
                replace_schema=spec.get("replace_schema", False),
            )
        return self.split.df

    def writer(self, **options: Any) -> FlowWriter:
        options.setdefault("flow", "orders")
        options.setdefault("app_id", "p/orders/writer/1")
        options.setdefault("decisions", decision_file(self.spark, self.root, options["app_id"]))
        return FlowWriter(
            self.spark,
            target=self.target,
            split=self.split,
            quarantine=options.pop("quarantine", self.quarantine),
            **options,
        )

    def upserter(self, keys: Sequence[str], **options: Any) -> UpsertWriter:
        options.setdefault("decisions", decision_file(self.spark, self.root, "p/orders/writer/1"))
        return UpsertWriter(
            self.spark,
            flow="orders",
            app_id="p/orders/writer/1",
            target=self.target,
            keys=keys,
            split=self.split,
            quarantine=self.quarantine,
            **options,
        )

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.target.path)

    def bad(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.quarantine.path)
