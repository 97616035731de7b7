"""Failures of the data source: raised in Spark's Python processes, only their text comes back."""

import re

FAILURE = re.compile(
    r"\[(KINESIS_[A-Z_]+|STREAM_RECREATED|SOURCE_ROWS_LOST|MISSING_EXTRA)\] ([^\n]+)"
    r"(?:\n +hint: ([^\n]+))?"
)
HINTS = {
    "SOURCE_ROWS_LOST": 'set failOnDataLoss to "false" to continue without them, or --full-refresh '
    "TABLE to read what is there",
    "STREAM_RECREATED": "--full-refresh TABLE reads the new stream from its start; to keep the "
    "rows of the old one, give the flow a new name: it starts with a new checkpoint",
}
MAY_PASS = ("KINESIS_UNREACHABLE",)
