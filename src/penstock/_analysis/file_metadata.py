"""`_metadata` of files in SQL.

A temporary view hides the metadata column of what is below it, and files that SQL reads become such
a view. So a view for a query that names `_metadata` shows it as an ordinary column of another name,
the query uses that name, and what `*` takes along of it is dropped from the result.
"""

import re

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SHOWN = "__penstock_metadata"
_NAME = "_metadata"
# Texts and comments are stepped over; a name may stand in backticks.
_TOKENS = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|`_metadata`|\b_metadata\b",
    re.IGNORECASE | re.DOTALL,
)
_END_OF_COLUMN = re.compile(r"\s*(?:,|FROM\b|$)", re.IGNORECASE)


def named_in(text: str) -> bool:
    """Whether a query names the metadata of files."""
    return any(_is_name(match) for match in _TOKENS.finditer(text))


def showing(df: DataFrame) -> DataFrame:
    """The rows of files with their metadata as one more column; as they are if they have none."""
    try:
        return df.select("*", F.col(_NAME).alias(SHOWN))
    except AnalysisException:
        return df


def using_shown(text: str) -> str:
    """A query with the column's name for `_metadata`."""
    return _TOKENS.sub(lambda match: SHOWN if _is_name(match) else match.group(), text)


def without_shown(df: DataFrame, text: str) -> DataFrame:
    """A query's result without what `*` took along.

    Args:
        df: The result.
        text: As the user wrote it: one that selects `_metadata` as a whole keeps it.
    """
    places = [place for place, name in enumerate(df.columns) if name == SHOWN]
    if not places:
        return df
    kept = places[-1] if _is_selected(text) else None
    names = [f"{SHOWN}_{place}" if place in places else name
             for place, name in enumerate(df.columns)]  # fmt: skip
    if kept is not None:
        names[kept] = _NAME
    dropped = [names[place] for place in places if place != kept]
    return df.toDF(*names).drop(*dropped)


def _is_selected(text: str) -> bool:
    return any(
        _is_name(match) and _END_OF_COLUMN.match(text, match.end()) is not None
        for match in _TOKENS.finditer(text)
    )


def _is_name(match: re.Match[str]) -> bool:
    return match.group().strip("`").lower() == _NAME
