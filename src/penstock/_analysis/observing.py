"""Evaluators that record reads, plans and expectations."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock._analysis.context import Evaluation
from penstock._analysis.evaluation import Evaluator
from penstock._analysis.hooks import own_read
from penstock._analysis.query_facts import query_facts
from penstock._analysis.reader_hooks import Reader, reader_state
from penstock._model.expectation import Expectation
from penstock._model.flow import Flow
from penstock._model.origin import capture_origin
from penstock._model.query_facts import QueryFacts, ReadFacts, RuleFacts
from penstock._spark.plans import analyzed, kind_of, walk
from penstock._tables.jvm import iterate
from penstock.errors import PenstockError
from penstock.quality.rules import condition_column
from penstock.sources.base import NOWHERE, Position

_IDS = re.compile(r"#\d+L?")
_EMPTY_SOURCE = re.compile(r"FileSource\[[^\]]*/penstock-analysis-[^\]/]*/([^\]/]*)\]")
_MAX_WIDTH = 200
# The functions for NULL (nvl, ifnull, ...) are rewritten to these in the plan.
_MENTIONS_NULL = ("IsNull", "IsNotNull", "Coalesce")


@dataclass
class Observations:
    """Facts about the last evaluation of each flow.

    `reads` are in the order of the reads; those of a view belong to the view. `rules` are the facts
    about the expectations of a flow's target, by name.
    """

    reads: dict[str, list[ReadFacts]] = field(default_factory=lambda: defaultdict(list))
    queries: dict[str, QueryFacts] = field(default_factory=dict)
    rules: dict[str, dict[str, RuleFacts]] = field(default_factory=dict)


class PlanTexts(Evaluator):
    """Stores the analysed plan of each query as text, without ids of expressions."""

    def __init__(self, texts: dict[str, str], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts = texts

    def evaluate(
        self, flow: Flow, position: Position = NOWHERE, *, is_triggered: bool = True
    ) -> tuple[DataFrame, Evaluation]:
        df, evaluation = super().evaluate(flow, position, is_triggered=is_triggered)
        text = _IDS.sub("", str(analyzed(df).toString()))
        source: Any = self._source
        text = _EMPTY_SOURCE.sub(lambda match: source.dataset_at(match[1]) or match[0], text)
        lines = [line.rstrip() for line in text.splitlines()]
        self._texts[flow.name] = "\n".join(
            line if len(line) <= _MAX_WIDTH else f"{line[: _MAX_WIDTH - 3]}..."
            for line in lines
            if line
        )
        return df, evaluation


class ObservingEvaluator(Evaluator):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen = Observations()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-lint-")

    def close(self) -> None:
        """Remove the empty folder that is read to analyse expectations."""
        self._folder.cleanup()

    def evaluate(
        self, flow: Flow, position: Position = NOWHERE, *, is_triggered: bool = True
    ) -> tuple[DataFrame, Evaluation]:
        self.seen.reads.pop(flow.name, None)
        df, evaluation = super().evaluate(flow, position, is_triggered=is_triggered)
        with own_read():
            self.seen.queries[flow.name] = query_facts(df)
            self.seen.rules[flow.name] = self._rule_facts(df, flow)
        return df, evaluation

    def table(self, name: str, reader: Reader) -> DataFrame | None:
        dataset = self._find(name) or self._find_by_end(name)
        shown = name.replace("`", "") if dataset is None else self.index.display(dataset.name.key)
        self._read(reader, "table", name=shown, is_own=dataset is not None)
        return super().table(name, reader)

    def load(self, reader: Reader, spark_load: Callable[[], DataFrame]) -> DataFrame:
        self._read(reader, reader_state(reader).format)
        return super().load(reader, spark_load)

    def _read(self, reader: Reader, source: str, **more: Any) -> None:
        state = reader_state(reader)
        self.seen.reads[self._stack.get()[-1][0]].append(
            ReadFacts(
                source=source.lower(),
                is_streaming=isinstance(reader, DataStreamReader),
                options=state.folded_options,
                has_schema=state.schema is not None,
                origin=capture_origin(),
                **more,
            )
        )

    # -- expectations --------------------------------------------------------------------------

    def _rule_facts(self, df: DataFrame, flow: Flow) -> dict[str, RuleFacts]:
        dataset = self.index.datasets.get(self.index.flow_targets[flow.name])
        facts = {}
        for rule in dataset.declared.expectations if dataset is not None else ():
            if rule.unique or rule.rows is not None:
                continue
            try:
                facts[rule.name] = self._facts_of(df, rule)
            except (PenstockError, PySparkException):
                continue  # the analysis reports the error
        return facts

    def _facts_of(self, df: DataFrame, rule: Expectation) -> RuleFacts:
        # Rows are read from an empty folder, so that Spark only folds constants and NULL.
        folder = Path(self._folder.name).as_uri()
        rows = self._spark.read.schema(df.schema).format("parquet").load(folder)
        condition = condition_column(self._spark, rule)
        selected = rows.select(condition.alias("rule"))
        expression = selected._jdf.queryExecution().analyzed().projectList().head()
        used = {a.name(): bool(a.nullable()) for a in iterate(expression.references().toSeq())}
        constant = _folded(selected) or ("never true" if _is_never_true(rows, condition) else "")
        mentioned = {
            str(attribute.name())
            for part in walk(expression)
            if kind_of(part) in _MENTIONS_NULL
            for attribute in iterate(part.references().toSeq())
        }
        passes, breaks = [], []
        for name, is_nullable in used.items() if not constant else ():
            column = next(field for field in df.schema if field.name == name)
            without = rows.withColumn(name, F.lit(None).cast(column.dataType))
            if _is_never_true(without, condition):
                breaks += [name] if is_nullable else []
            elif _folded(without.select(condition.alias("rule"))) == "true":
                passes.append(name)
        return RuleFacts(
            constant=constant,
            passes=tuple(passes),
            breaks=tuple(breaks),
            mentioned=tuple(sorted(mentioned)),
        )


def _is_never_true(rows: DataFrame, condition: Column) -> bool:
    plan = rows.where(condition)._jdf.queryExecution().optimizedPlan()
    return kind_of(plan) == "LocalRelation"


def _folded(selected: DataFrame) -> str:
    plan = selected._jdf.queryExecution().optimizedPlan()
    if kind_of(plan) != "Project":
        return ""
    expression = plan.projectList().head()
    if kind_of(expression) == "Alias":
        expression = expression.child()
    if kind_of(expression) != "Literal":
        return ""
    return str(expression.toString()).lower()
