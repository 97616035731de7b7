"""An evaluator that keeps the text of each query's plan, for people."""

import re
from typing import Any

from pyspark.sql import DataFrame

from penstock._analysis.context import Evaluation
from penstock._analysis.evaluation import Evaluator
from penstock._model.flow import Flow
from penstock._spark.plans import analyzed
from penstock.sources.base import NOWHERE, Position

_IDS = re.compile(r"#\d+L?")
_STAND_IN = re.compile(r"FileSource\[[^\]]*/penstock-analysis-[^\]/]*/([^\]/]*)\]")
_WIDEST = 200


class PlanTexts(Evaluator):
    """Evaluates as always.

    Attributes:
        texts: Analysed plan of each flow, without ids of expressions; set by whoever makes it.
    """

    texts: dict[str, str]

    def evaluate(self, flow: Flow, position: Position = NOWHERE) -> tuple[DataFrame, Evaluation]:
        """See `Evaluator.evaluate`."""
        df, evaluation = super().evaluate(flow, position)
        self.texts[flow.name] = self._text(df)
        return df, evaluation

    def _text(self, df: DataFrame) -> str:
        text = _IDS.sub("", str(analyzed(df).toString()))
        source: Any = self._source
        text = _STAND_IN.sub(lambda match: source.dataset_at(match[1]) or match[0], text)
        lines = [line.rstrip() for line in text.splitlines()]
        return "\n".join(
            line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..." for line in lines if line
        )


def keeping(texts: dict[str, str]) -> Any:
    """What makes an evaluator that puts its plans there."""

    def make(*arguments: Any) -> PlanTexts:
        evaluator = PlanTexts(*arguments)
        evaluator.texts = texts
        return evaluator

    return make
