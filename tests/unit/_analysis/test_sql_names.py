"""Positions in SQL text that Spark's parser does not return."""

import pytest

from penstock._analysis.sql_names import _closing_parenthesis


@pytest.mark.parametrize(
    "call",
    [
        "read_files('/x')",
        "read_files('/x', -- :)\n format => 'json')",
        "read_files('/x' /* ) /* ) */ ) */, f(')', \"\\\")\", `)`), (1))",
        "read_files(r'\\', ')')",
        "read_files",
    ],
)
def test_call_ends_at_its_matching_parenthesis(call):
    text = f"SELECT (1) FROM {call} AS t (a)"
    start = text.index(call)
    end = len(text) if "(" in call else start + len(call)
    assert text[start : _closing_parenthesis(text, start, end)] == call
