"""Tells people about alerts, on a thread of its own: no event waits for a network."""

import json
import queue
import smtplib
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

from penstock._model.alert import AlertSettings, AlertTarget
from penstock._model.redaction import redact
from penstock._observe.alerts import HEARD, AlertBook, Notice
from penstock._observe.bus import EventBus
from penstock._observe.events import ErrorInfo, Event, EventOrigin, alert_progress

_EVENT_TYPE = "alert_progress"
_TICK_SECONDS = 1.0
_TIMEOUT_SECONDS = 10.0
_PAUSES_SECONDS = (1.0, 4.0)
"""Between tries."""
_DRAIN_SECONDS = 20.0

Send = Callable[[AlertTarget, Notice], None]


class Alerts:
    """Watches the events of an update and tells whom it concerns. Subscribe it to the bus.

    Each notice becomes an `alert_progress` event, which says to whom it was told and what failed.

    Args:
        bus: Takes those events.
        origin: Of those events.
        settings: What to look out for, and whom to tell.
        resolve_secrets: Fills `${secret:...}` in, when something is told.
        pauses_seconds: Before each further try.
        schemas: See `AlertBook`.
    """

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        settings: AlertSettings,
        *,
        resolve_secrets: Callable[[str], str] = str,
        pauses_seconds: tuple[float, ...] = _PAUSES_SECONDS,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self._bus = bus
        self._origin = origin
        self._settings = settings
        self._resolve = resolve_secrets
        self._pauses_seconds = pauses_seconds
        self._book = AlertBook(
            settings.rules, repeat_seconds=settings.repeat_seconds, schemas=schemas
        )
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alerts", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event; any thread, never blocks."""
        if event.event_type in HEARD:
            self._events.put(event)

    def close(self, timeout_seconds: float = _DRAIN_SECONDS) -> None:
        """Tell what is left to be told; after the timeout it is left out."""
        self._events.put(None)
        self._hurry.set()
        self._thread.join(timeout_seconds)

    def _watch(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                notices = self._book.tick(datetime.now(UTC))
            else:
                if event is None:
                    return
                notices = self._book.observe(event)
            for notice in notices:
                self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        told, errors = [], []
        for target in self._settings.targets:
            error = self._try(target, notice)
            if error is None:
                told.append(target.label)
            else:
                errors.append(f"{target.label}: {error}")
        info = None
        if errors:
            info = ErrorInfo(
                condition="ALERT_NOT_DELIVERED",
                class_name="AlertError",
                message="; ".join(errors),
                fatal=False,
            )
        body = {**notice.as_json(), "told": told, "not_told": errors}
        text = f"alert {notice.alert} is {notice.state}: {notice.message}"
        self._bus.emit(alert_progress(self._origin, redact(text), body, info))

    def _try(self, target: AlertTarget, notice: Notice) -> str | None:
        for pause in (*self._pauses_seconds, None):
            try:
                deliver(target, notice, self._resolve)
            except Exception as error:
                # Its text may hold the URL.
                reason = f"{type(error).__name__}: {redact(str(error))}"
                if pause is None or self._hurry.is_set():
                    return reason.replace(target.webhook, "...") if target.webhook else reason
                self._hurry.wait(pause)
            else:
                return None
        return None


def deliver(target: AlertTarget, notice: Notice, resolve_secrets: Callable[[str], str]) -> None:
    """Tell one target; raises whatever goes wrong."""
    if target.webhook:
        _post(target, notice, resolve_secrets)
    elif target.command:
        subprocess.run(  # noqa: S603 - the program that the settings of the pipeline name
            target.command,
            input=json.dumps(notice.as_json()),
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    else:
        _mail(target, notice, resolve_secrets)


def slack_form(notice: Notice) -> dict[str, Any]:
    """The notice as an incoming webhook of Slack takes it."""
    sign = ":rotating_light:" if notice.state == "firing" else ":white_check_mark:"
    text = f"{sign} *{notice.pipeline}*: {notice.alert} is {notice.state}"
    # Slack reads three characters as markup.
    safe = notice.message.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {
        "text": f"{text}: {safe}",
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"{text}\n{safe}"[:2900]}}
        ],
    }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere, with the alert in hand."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(target: AlertTarget, notice: Notice, resolve: Callable[[str], str]) -> None:
    url = resolve(target.webhook)
    if not url.startswith(("https://", "http://")):
        raise ValueError("the webhook is no http or https URL")
    body = slack_form(notice) if target.slack else notice.as_json()
    headers = {key: resolve(value) for key, value in target.headers.items()}
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
        answer.read(1024)


def _mail(target: AlertTarget, notice: Notice, resolve: Callable[[str], str]) -> None:
    settings = {key: resolve(value) for key, value in target.mail.items()}
    message = EmailMessage()
    message["Subject"] = f"[{notice.pipeline}] {notice.alert} is {notice.state}"
    message["From"] = settings.get("from", "penstock@localhost")
    message["To"] = ", ".join(target.mail_to)
    message.set_content(
        f"{notice.message}\n\n{json.dumps(notice.as_json(), indent=2, ensure_ascii=False)}\n"
    )
    host, tls = settings.get("host", "localhost"), settings.get("tls", "starttls")
    kind = smtplib.SMTP_SSL if tls == "ssl" else smtplib.SMTP
    port = int(settings.get("port", {"ssl": 465, "starttls": 587}.get(tls, 25)))
    with kind(host, port, timeout=_TIMEOUT_SECONDS) as server:
        if tls == "starttls":
            server.starttls()
        if settings.get("user"):
            server.login(settings["user"], settings.get("password", ""))
        server.send_message(message)
