"""The forms of a message with rows: JSON, text, Slack."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._observe.transport import SLACK_TEXT, slack_body, slack_text

_AROUND = 600  # characters of a Slack message reserved for text other than rows


@dataclass(frozen=True)
class Message:
    """A message with rows; `body` is its JSON form, see docs/sinks.md."""

    body: Mapping[str, Any]

    @property
    def key(self) -> str:
        return str(self.body["idempotency_key"])

    @property
    def subject(self) -> str:
        count = _rows(self.body["row_count"] + self.body["earlier_rows"])
        return f"[{self.body['pipeline']}] {self.body['sink']}: {count}"

    def text(self, escape: Callable[[str], str] = str, limit: int | None = None) -> str:
        """The message as text: one line of JSON per row; rows beyond the limit are only counted."""
        body, lines, size = self.body, list[str](), 0
        for row in body["rows"]:
            line = escape(json.dumps(row, ensure_ascii=False))
            size += len(line) + 1
            if limit is not None and size > limit:
                break
            lines.append(line)
        if more := body["row_count"] - len(lines):
            lines.append(f"{_rows(more, 'more ')} in this batch")
        if earlier := body["earlier_rows"]:
            lines.append(f"{_rows(earlier, 'more ')} since {body['earlier_since']}")
        where = f"flow {body['flow']}, batch {body['batch_id']}, message {self.key}"
        return "\n".join([*lines, escape(where)]) + "\n"

    def slack(self) -> dict[str, Any]:
        """The message for Slack; in the code block of rows, only `&`, `<`, `>` and ` are markup."""
        text = self.text(lambda line: slack_text(line.replace("`", "'")), SLACK_TEXT - _AROUND)
        subject = slack_text(self.subject)
        return slack_body(subject, f"{subject}\n```\n{text}```")


def _rows(count: int, word: str = "") -> str:
    return f"{count} {word}{'row' if count == 1 else 'rows'}"
