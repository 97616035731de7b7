"""Tokens cover the whole text; the content of strings and comments is not parsed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._model.sql_text import literal
from penstock._sql.tokens import TokenKind, UnclosedError, text_value, tokens_of


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind.value, token.text) for token in tokens_of(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.`b``c`", [("word", "a"), ("symbol", "."), ("quoted", "`b``c`")]),
        ("'it''s'", [("string", "'it''s'")]),
        (r"'it\'s' 'x\\'", [("string", r"'it\'s'"), ("string", r"'x\\'")]),
        (r"r'a\' R" + '"b;"', [("string", r"r'a\'"), ("string", 'R"b;"')]),
        ("rr'x'", [("word", "rr"), ("string", "'x'")]),
        ('"say ""hi"" -- no"', [("string", '"say ""hi"" -- no"')]),
        ("2020_sales 2fa", [("word", "2020_sales"), ("word", "2fa")]),
        ("1 1.5 1e3 10L 2.5BD", [("number", n) for n in ("1", "1.5", "1e3", "10L", "2.5BD")]),
        ("a::int=>b", [("word", "a"), ("symbol", "::"), ("word", "int"), ("symbol", "=>"),
                       ("word", "b")]),
        ("ARRAY<MAP<a,b>>", [("word", "ARRAY"), ("symbol", "<"), ("word", "MAP"), ("symbol", "<"),
                             ("word", "a"), ("symbol", ","), ("word", "b"), ("symbol", ">"),
                             ("symbol", ">")]),
        ("-- x ; '\r\ny", [("comment", "-- x ; '"), ("word", "y")]),
        ("-- goes on \\\n here\ny", [("comment", "-- goes on \\\n here"), ("word", "y")]),
        ("/* a /* ; */ ' */ b", [("comment", "/* a /* ; */ ' */"), ("word", "b")]),
        ("größe\u00a0名\ufeff", [("word", "größe"), ("word", "名")]),
        ("$ { } \\ \x00", [("symbol", sign) for sign in ("$", "{", "}", "\\", "\x00")]),
    ],
)  # fmt: skip
def test_tokens_are_those_of_spark(text, expected):
    assert kinds(text) == expected


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a /* b /* */", "a 'b\\'", "a 'b''"])
def test_error_names_the_start_of_an_unclosed_token(text):
    seen = []
    with pytest.raises(UnclosedError) as caught:
        seen.extend(tokens_of(text))
    assert caught.value.start == 2
    assert [token.text for token in seen] == ["a"]


def test_huge_unclosed_string_fails_quickly():
    with pytest.raises(UnclosedError):
        list(tokens_of("'" + "a''\\'" * 200_000))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'a\nb\t\\ \'\"'", "a\nb\t\\ '\""),
        ("'it''s'", "it's"),
        ('"it\'\'s ""x"""', "it''s \"x\""),
        (r"'\u00e9 \101 \% \_ \q'", r"é A \% \_ q"),
        (r"'\U0001F600'", "😀"),
        (r"r'a\n'", r"a\n"),
        ("''", ""),
    ],
)
def test_string_escapes_are_decoded_as_in_spark(text, value):
    (token,) = tokens_of(text)
    assert text_value(token) == value


@settings(deadline=None)
@given(st.text())
def test_any_value_can_be_written_as_a_string_literal(value):
    (token,) = tokens_of(literal(value))
    assert token.kind is TokenKind.STRING
    assert text_value(token) == value


@settings(deadline=None)
@given(st.text(alphabet="ab'\"`-*/\\\n\r; ${}r1.", max_size=40))
def test_tokens_and_white_space_are_the_whole_text(text):
    position = 0
    try:
        for token in tokens_of(text):
            assert text[position : token.start].strip() == ""
            assert text[token.start : token.end] == token.text
            position = token.end
        assert text[position:].strip() == ""
    except UnclosedError as error:
        assert text[position : error.start].strip() == ""
