"""A cursor over the tokens of a statement, with the basic steps of parsing."""

from collections.abc import Callable, Iterable, Sequence

from penstock._model.similar import suggested
from penstock._observe.masking import shown
from penstock._sql.source import SqlSource
from penstock._sql.tokens import Token, TokenKind, text_value
from penstock.errors import DefinitionError

_OPENING = {"(": ")", "[": "]"}
_CLOSING = {closing: opening for opening, closing in _OPENING.items()}
_LONGEST_SHOWN = 40


class Cursor:
    """Walks over the tokens of one statement without comments; `position` is the current index."""

    def __init__(self, source: SqlSource, tokens: Iterable[Token]) -> None:
        self.source = source
        self._tokens = [token for token in tokens if token.kind is not TokenKind.COMMENT]
        end = self._tokens[-1].end if self._tokens else 0
        self._end = Token(TokenKind.END, "", end, end)
        self.position = 0

    @property
    def current(self) -> Token:
        """The next token; of kind `END` after the last."""
        return self.ahead(0)

    @property
    def is_done(self) -> bool:
        return self.position >= len(self._tokens)

    def ahead(self, count: int) -> Token:
        """Return the token `count` positions ahead, or back if negative."""
        index = self.position + count
        return self._tokens[index] if 0 <= index < len(self._tokens) else self._end

    def at(self, *words: str) -> bool:
        """Whether these keywords or symbols are next."""
        return all(self.ahead(count).word == word for count, word in enumerate(words))

    def accept(self, *words: str) -> bool:
        """Skip these keywords or symbols if they are next; return whether they were."""
        if not self.at(*words):
            return False
        self.position += len(words)
        return True

    def expect(self, *words: str) -> Token:
        """Skip these keywords or symbols, and return the first of them."""
        first = self.current
        for word in words:
            if not self.accept(word):
                raise self.unexpected(f"`{' '.join(words)}`", words)
        return first

    def advance(self) -> Token:
        """Return the current token and skip it."""
        token = self.current
        self.position += 1
        return token

    # -- errors --------------------------------------------------------------------------------

    def error(self, message: str, *, at: Token | None = None, hint: str | None = None) -> Exception:
        """Return a syntax error at a token, by default the current one."""
        token = at or self.current
        return DefinitionError(
            "SQL_SYNTAX", message, origin=self.source.origin(token.start), hint=hint
        )

    def unexpected(self, expected: str, known: Iterable[str] = ()) -> Exception:
        """Return the error for an unexpected current token."""
        return self.error(
            f"expected {expected}, but {self._found()}",
            hint=self._suggestion([word for word in known if word.isalpha()]),
        )

    def _found(self) -> str:
        token = self.current
        if token.kind is TokenKind.END:
            return "the statement ends"
        if token.kind is TokenKind.STRING:
            return "found a string"
        text = shown(token.text)
        text = text[:_LONGEST_SHOWN] + ("..." if len(text) > _LONGEST_SHOWN else "")
        return f"found `{text}`"

    def _suggestion(self, known: Sequence[str]) -> str | None:
        token, before = self.current, self.ahead(-1)
        if before.kind is TokenKind.STRING and before.end == token.start < token.end:
            return "a quote inside of a string is written twice, or as \\'"
        if token.kind is not TokenKind.WORD or token.word in known:
            return None
        return suggested(token.text, known)

    # -- parts --------------------------------------------------------------------------------

    def text(self, what: str) -> str:
        """Parse a quoted string and return its value."""
        if self.current.kind is not TokenKind.STRING:
            raise self.unexpected(f"a quoted string for {what}")
        return text_value(self.advance())

    def identifier(self, what: str) -> str:
        """Parse one part of a name and return it without backticks."""
        token = self.current
        if token.kind is TokenKind.QUOTED and len(token.text) > len("``"):
            self.advance()
            return token.text[1:-1].replace("``", "`")
        # A name may begin with a digit, and so be all digits.
        if token.kind is TokenKind.WORD or (
            token.kind is TokenKind.NUMBER and token.text.isalnum()
        ):
            self.advance()
            return token.text
        raise self.unexpected(what)

    def between(self, start: int) -> str:
        """Return the text from token `start` to before the current one."""
        if self.position <= start:
            return ""
        return self.source.text[self._tokens[start].start : self._tokens[self.position - 1].end]

    def group(self) -> str:
        """Skip a pair of parentheses with its content; return the text inside."""
        opening = self.expect("(")
        first = self.position
        self.skip_while(lambda: not self.at(")"))
        if not self.at(")"):
            raise self.error("the `(` here is never closed", at=opening)
        inner = self.between(first)
        self.advance()
        return inner

    def skip_while(self, condition: Callable[[], bool]) -> None:
        """Skip tokens while the condition is true; it is evaluated outside of brackets only."""
        opened: list[Token] = []
        while not self.is_done and (opened or condition()):
            token = self.advance()
            if token.word in _OPENING:
                opened.append(token)
            elif token.word in _CLOSING:
                if not opened or opened[-1].word != _CLOSING[token.word]:
                    raise self._unmatched(token, opened)
                opened.pop()
        if opened:
            raise self.error(f"the `{opened[-1].text}` here is never closed", at=opened[-1])

    def _unmatched(self, token: Token, opened: Sequence[Token]) -> Exception:
        if not opened:
            return self.error(f"nothing opens the `{token.text}` here", at=token)
        return self.error(
            f"the `{opened[-1].text}` here is never closed before the `{token.text}` "
            f"on line {self.source.line(token.start)}",
            at=opened[-1],
        )
