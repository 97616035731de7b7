"""`_metadata` of files in SQL.

A temporary view hides the metadata column of its source, and files that SQL reads become such a
view. For a query that references `_metadata`, the view therefore has it as an ordinary column with
another name, the query uses that name, and the columns that `*` adds are dropped from the result.
"""

import re

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SHOWN = "__penstock_metadata"
_NAME = "_metadata"
# Strings and comments are skipped; a name may be in backticks.
_TOKENS = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|`_metadata`|\b_metadata\b",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_COLUMN = re.compile(r"\s*(?:,|FROM\b|$)", re.IGNORECASE)
_BEFORE_STAR = re.compile(r"(?:(?!\bFROM\b).)*,\s*(?:\w+\.)?\*", re.IGNORECASE | re.DOTALL)


def named_in(text: str) -> bool:
    """Whether a query references the metadata of files."""
    return any(_is_name(match) for match in _TOKENS.finditer(text))


def showing(df: DataFrame) -> DataFrame:
    """The rows of files with their metadata, if any, as an additional column."""
    try:
        return df.select("*", F.col(_NAME).alias(SHOWN))
    except AnalysisException:
        return df


def using_shown(text: str) -> str:
    """Replace `_metadata` in a query by the name of that column."""
    return _TOKENS.sub(lambda match: SHOWN if _is_name(match) else match.group(), text)


def without_shown(df: DataFrame, text: str) -> DataFrame:
    """A query's result without the columns that `*` added."""
    positions = [position for position, name in enumerate(df.columns) if name == SHOWN]
    if not positions:
        return df
    names = list(df.columns)
    for position in positions:
        names[position] = f"{SHOWN}_{position}"
    ends = [match.end() for match in _TOKENS.finditer(text) if _is_name(match)]
    ends = [end for end in ends if _END_OF_COLUMN.match(text, end)]
    if ends:
        is_first = _BEFORE_STAR.match(text, ends[0])
        names[positions.pop(0 if is_first else -1)] = _NAME
    return df.toDF(*names).drop(*(names[position] for position in positions))


def _is_name(match: re.Match[str]) -> bool:
    return match.group().strip("`").lower() == _NAME
