"""Sends messages to webhooks and mail servers, for alerts and for sinks."""

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import Any

TIMEOUT_SECONDS = 10.0
PAUSES_SECONDS = (1.0, 4.0)
"""Pauses before retries."""
SLACK_TEXT = 2900
"""Maximum number of characters in a section of a message."""
_TEMPORARY = (408, 425, 429)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the message goes to the configured URL only."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post_json(url: str, body: Any, headers: Mapping[str, str]) -> None:
    """POST an object as JSON."""
    if not url.startswith(("https://", "http://")):
        raise ValueError("the webhook is not an http or https URL")
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read(1024)


def slack_text(text: str) -> str:
    """Escape the three characters that Slack reads as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_body(text: str, markup: str) -> dict[str, Any]:
    """The JSON of a message: `text` is for notifications, `markup` is shown."""
    section = {"type": "section", "text": {"type": "mrkdwn", "text": markup}}
    return {"text": text, "blocks": [section]}


def send_mail(
    server: Mapping[str, str],
    recipients: Sequence[str],
    subject: str,
    text: str,
    *,
    message_id: str = "",
) -> None:
    """Send a mail in plain text; `server` is as `AlertTarget.mail`."""
    message = EmailMessage()
    message["Subject"] = " ".join(subject.split())  # a line feed would begin another header
    message["From"] = server.get("from", "penstock@localhost")
    message["To"] = ", ".join(recipients)
    if message_id:
        message["Message-ID"] = message_id
    message.set_content(text)
    host, tls = server.get("host", "localhost"), server.get("tls", "starttls")
    port = int(server.get("port", {"ssl": 465, "starttls": 587}.get(tls, 25)))
    # Without a context, smtplib does not verify certificates and the password could be intercepted.
    context = ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_SECONDS, context=context)
        if tls == "ssl"
        else smtplib.SMTP(host, port, timeout=TIMEOUT_SECONDS)
    ) as connection:
        if tls == "starttls":
            connection.starttls(context=context)
        if server.get("user"):
            connection.login(server["user"], server.get("password", ""))
        connection.send_message(message)


def is_permanent(error: Exception) -> bool:
    """Whether the receiver has refused the message or its sender, so that a retry cannot help."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code not in _TEMPORARY
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPResponseException) and error.smtp_code >= 500
