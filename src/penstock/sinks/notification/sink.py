"""The sinks `webhook` and `mail`: their options, and how messages are sent."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import urlsplit

from penstock._model.flow import OutputMode
from penstock._model.similar import suggested
from penstock._observe.transport import post_json, send_mail
from penstock.errors import ConnectorError
from penstock.sinks.base import OpenedSink, Sink, Write, option
from penstock.sinks.notification.message import Message
from penstock.sinks.notification.writer import NotificationWriter, invalid, listed

_HEADER = "header.name"  # any name
_ADDRESS = r"[!-+\--~]+@[!-+\--~]+"
_Rules = Mapping[str, tuple[str, str]]  # a pattern, and its description
_SHARED: _Rules = {
    "columns": (".*", "one line"),
    "mask": (".*", "one line"),
    "max_rows": (r"\d{1,3}|1000", "a number from 0 to 1000"),
    "max_per_minute": (r"[1-9]\d{0,2}", "a number from 1 to 999"),
}


class _NotificationSink(Sink):
    refused_modes: ClassVar[Mapping[OutputMode, str]] = {
        OutputMode.COMPLETE: "every batch would send the whole result again"
    }
    instead = 'output_mode="update" sends the groups that changed'
    rules: ClassVar[_Rules] = {}  # the first option is required

    def check_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Refuse also unknown options: with a misspelled `mask`, values would be sent unmasked."""
        kind, rules, required = self.formats[0], {**self.rules, **_SHARED}, next(iter(self.rules))
        if not option(options, required).strip():
            message = f"a {kind} sink needs option `{required}`"
            raise ConnectorError("SINK_OPTION_MISSING", message)
        for name, value in options.items():
            rule = rules.get(_HEADER if _is_header(name) else name.lower())
            if rule is None:
                hint = suggested(name, rules, f"options: {', '.join(rules)}")
                raise invalid(f"a {kind} sink has no option `{name}`", hint)
            if not re.fullmatch(rule[0], value):
                raise invalid(f"option `{name}` of a {kind} sink must be {rule[1]}")
        return dict(options)

    def check_query(
        self, options: Mapping[str, str], columns: Mapping[str, str], mode: OutputMode
    ) -> None:
        known = set(map(str.lower, columns))
        for kind in ("columns", "mask"):
            for name in listed(options, kind):
                # Fields of structs can also be masked.
                column = name.partition(".")[0] if kind == "mask" else name
                if known.isdisjoint((name.lower(), column.lower())):
                    message = f"option `{kind}` names {name}, which is not a column of the query"
                    raise invalid(message)


class WebhookSink(_NotificationSink):
    """POST requests to a URL, as JSON or in Slack's format."""

    formats = ("webhook",)
    rules: ClassVar[_Rules] = {
        "url": (r"https?://[^\s/?#@]+([/?#][!-~]*)?", "an http or https URL without a user"),
        "format": ("json|slack", "json or slack"),
        _HEADER: ("[ -~]*", "ASCII text"),
    }

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        url = option(options, "url")
        return [urlsplit(url).netloc] if url and "${" not in url and "@" not in url else []

    def open(self, write: Write) -> OpenedSink:
        url, is_slack = option(write.options, "url"), option(write.options, "format") == "slack"
        headers = {n.partition(".")[2]: v for n, v in write.options.items() if _is_header(n)}

        def send(message: Message) -> None:
            body = message.slack() if is_slack else message.body
            post_json(url, body, {**headers, "Idempotency-Key": message.key})

        return NotificationWriter(write, send, hidden=url)


class MailSink(_NotificationSink):
    """Mails in plain text."""

    formats = ("mail",)
    rules: ClassVar[_Rules] = {
        "to": (rf"{_ADDRESS}(\s*,\s*{_ADDRESS})*", "mail addresses, separated by commas"),
        "from": (r"[ -~]*@[ -~]+", "a mail address"),
        "host": ("[!-~]+", "the name of a host"),
        "port": (r"\d{1,5}", "a number"),
        "user": (".*", "one line"),
        "password": (".*", "one line"),
        "tls": ("starttls|ssl|none", "starttls, ssl or none"),
    }

    def endpoints(self, options: Mapping[str, str]) -> Sequence[str]:
        host = option(options, "host") or "localhost"
        return [] if "${" in host else [host]

    def open(self, write: Write) -> OpenedSink:
        server = {name: value for name in self.rules if (value := option(write.options, name))}
        recipients = listed(write.options, "to")

        def send(message: Message) -> None:
            identity = f"<{message.key}@penstock>"
            send_mail(server, recipients, message.subject, message.text(), message_id=identity)

        return NotificationWriter(write, send)


def _is_header(name: str) -> bool:
    return re.fullmatch(r"header\.[A-Za-z0-9-]+", name, re.IGNORECASE) is not None
