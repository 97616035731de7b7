"""Substituted values do not change the line numbers of a file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._sql.source import Edit, SqlSource


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_all_line_endings(end):
    source = SqlSource.of(f"a{end}{end}b{end}c", file="f.sql", first_line=10)
    assert source.line(source.text.index("a")) == 10
    assert source.line(source.text.index("b")) == 12
    assert source.line(source.text.index("c")) == 13


def test_line_numbers_are_kept_when_values_change_the_number_of_lines():
    source = SqlSource.of("a\n${x}\nb ${y\n} c\nd", file="f.sql")
    text = source.text
    edits = [
        Edit(text.index("${x"), text.index("${x") + 4, "1\n2\n3"),
        Edit(text.index("${y"), text.index("} c") + 1, ""),
    ]
    filled = source.replaced(edits)
    assert filled.text == "a\n1\n2\n3\nb  c\nd"
    assert [filled.line(filled.text.index(word)) for word in ("a", "3", "b", "c", "d")] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip


def test_part_of_a_source_keeps_its_lines_and_columns():
    source = SqlSource.of("a\n  b\nc d", file="f.sql", first_line=3)
    part = source.section(source.text.index("b"), len(source.text))
    assert part.text == "b\nc d"
    assert part.line(0) == 4
    assert part.line(part.text.index("d")) == 5
    assert part.column(part.text.index("d")) == 2
    assert str(part.origin(0)) == "f.sql:4"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text("ab\n", max_size=5), st.text("xy\n", max_size=4)), max_size=6),
    st.text("ab\n", max_size=5),
)
def test_text_beside_replacements_keeps_its_line(pieces, last):
    text, edits, kept = "", [], []
    for before, value in pieces:
        kept.append((len(text), before))
        text += before
        edits.append(Edit(len(text), len(text) + 1, value))
        text += "#"
    kept.append((len(text), last))
    text += last
    source = SqlSource.of(text, file="f.sql")
    filled = source.replaced(edits)
    shift = 0
    for number, (start, piece) in enumerate(kept):
        for offset in range(start, start + len(piece)):
            assert filled.line(offset + shift) == source.line(offset)
        if number < len(edits):
            shift += len(edits[number].text) - 1
