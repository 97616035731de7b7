"""Tokens of SQL text with their offsets; at least as tolerant as Spark's lexer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class TokenKind(StrEnum):
    WORD = "word"
    """A keyword or a bare identifier."""
    QUOTED = "quoted"
    """An identifier in backticks."""
    STRING = "string"
    """A string in single or double quotes, optionally raw."""
    NUMBER = "number"
    SYMBOL = "symbol"
    COMMENT = "comment"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `word` is upper case, and empty unless it is a word or a symbol."""

    kind: TokenKind
    text: str
    start: int
    end: int
    word: str = ""


class UnclosedError(Exception):
    """A string, an identifier or a comment is not closed."""

    def __init__(self, start: int, what: str, closing: str) -> None:
        self.start = start
        self.what = what
        self.closing = closing
        super().__init__(what)


# Quantifiers are possessive: an unclosed string must fail in linear time.
_TOKEN = re.compile(
    r"""
      (?P<space>[\s\ufeff]++)
    | (?P<line>--(?:\\\r?\n|[^\r\n])*+)
    | (?P<block>/\*)
    | (?P<string>
          [rR]'[^']*+'
        | [rR]"[^"]*+"
        | '[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'
        | "[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*+"
      )
    | (?P<quoted>`(?:[^`]|``)*+`)
    | (?P<number>\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+(?:[LSYFDlsyfd]|[bB][dD])?+(?!\w))
    | (?P<word>\w++)
    | (?P<symbol><=>|::|=>|->|<=|>=|<>|!=|==|\|\||\|>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))|''|\"\"", re.DOTALL
)
_CONTROL = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_LIKE_ESCAPES = "%_"


def tokens_of(text: str) -> Iterator[Token]:
    """Yield the tokens of SQL text, including comments, without whitespace.

    Raises `UnclosedError` after yielding all tokens before the unclosed one.
    """
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None  # the last alternative takes any character
        kind, end = match.lastgroup, match.end()
        if kind == "block":
            end = _end_of_comment(text, position)
        if kind in ("line", "block"):
            yield Token(TokenKind.COMMENT, text[position:end], position, end)
        elif kind == "symbol":
            sign = match.group()
            if sign in ("'", '"', "`"):
                what = "identifier" if sign == "`" else "string"
                raise UnclosedError(position, f"the {what} that begins here", sign)
            yield Token(TokenKind.SYMBOL, sign, position, end, sign)
        elif kind == "word":
            word = match.group()
            yield Token(TokenKind.WORD, word, position, end, word.upper())
        elif kind != "space":
            yield Token(TokenKind(str(kind)), match.group(), position, end)
        position = end


def _end_of_comment(text: str, start: int) -> int:
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    raise UnclosedError(start, "the comment that begins here", "*/")


def text_value(token: Token) -> str:
    text = token.text
    if text[0] in "rR":
        return text[2:-1]
    quote = text[0]

    def decode(match: re.Match[str]) -> str:
        code = match.group(1) or match.group(2)
        if code:
            number = int(code, 16)
            return chr(number) if number < 0x110000 else match.group()
        if match.group(3):
            return chr(int(match.group(3), 8))
        if match.group(4):
            sign = match.group(4)
            return match.group() if sign in _LIKE_ESCAPES else _CONTROL.get(sign, sign)
        return quote if match.group()[0] == quote else match.group()

    return _ESCAPE.sub(decode, text[1:-1])
