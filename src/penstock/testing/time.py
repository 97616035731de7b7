"""A fixed current time in the queries and expectations of a pipeline."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock._model.dataset import Dataset
from penstock._model.expectation import Expectation
from penstock._spark.plans import analyzed
from penstock._sql.tokens import tokens_of
from penstock._tables.jvm import dataframe

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CALL = re.compile(r"\s*\(\s*\)")


@dataclass(frozen=True)
class FrozenTime:
    """A time that replaces the current time in queries and expectations."""

    time: datetime
    spark: SparkSession

    def query(self, function: Callable[[], DataFrame]) -> Callable[[], DataFrame]:
        """A query function whose DataFrame has the time as a literal."""

        def frozen() -> DataFrame:
            plan = analyzed(function())
            # A Scala map is a partial function, here from expressions to their replacements.
            plan = plan.transformAllExpressionsWithSubqueries(self._literals())
            return dataframe(self.spark, plan)

        return frozen

    def dataset(self, dataset: Dataset) -> Dataset:
        """A dataset whose expectations have the time as a literal."""
        rules = tuple(map(self._expectation, dataset.expectations))
        return replace(dataset, expectations=rules)

    def _expectation(self, rule: Expectation) -> Expectation:
        if not isinstance(rule.condition, str):
            return rule
        text, parts, end = rule.condition, list[str](), 0
        for token in tokens_of(text):
            literal = self._literal(token.word)
            call = _CALL.match(text, token.end)
            if literal and (call or token.word.startswith("CURRENT_")):
                parts += [text[end : token.start], literal]
                end = call.end() if call else token.end
        return replace(rule, condition="".join([*parts, text[end:]]))

    def _literals(self) -> Any:
        """A Scala map from expressions of the current time to their literals."""
        jvm: Any = self.spark._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        types = jvm.org.apache.spark.sql.types.DataTypes
        zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
        micros = (self.time - _EPOCH) // timedelta(microseconds=1)
        dates = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
        days = dates.microsToDays(micros, dates.getZoneId(zone))
        time = expressions.Literal(micros, types.TimestampType)
        today = expressions.CurrentDate(jvm.scala.Some(zone))
        literals = jvm.scala.collection.immutable.HashMap()
        literals = literals.updated(expressions.CurrentTimestamp(), time)
        literals = literals.updated(expressions.Now(), time)
        return literals.updated(today, expressions.Literal(days, types.DateType))

    def _literal(self, word: str) -> str:
        time = f"TIMESTAMP'{self.time.isoformat()}'"
        if word in ("CURRENT_TIMESTAMP", "NOW"):
            return time
        return f"CAST({time} AS DATE)" if word in ("CURRENT_DATE", "CURDATE") else ""
