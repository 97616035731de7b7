"""Who may ask: the checks before any request, and the headers on every response."""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "penstock_token"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MAX_PATH = 4096
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class Guard:
    """ASGI middleware: only GET and HEAD, only from our own pages, only for our own name.

    Without a token, the Host header must name the loopback interface: a foreign name that resolves
    to it (DNS rebinding) is refused. With a token every request needs it, as a `Bearer`, or as the
    cookie that the first visit with `?token=` sets.

    Args:
        app: What it guards.
        host: The address that the server listens on.
        token: What to ask for; required where the address is not a loopback one.
    """

    def __init__(self, app: App, *, host: str, token: str | None) -> None:
        if not is_loopback(host) and not token:
            raise ValueError("an address that others can reach needs a token")
        self._app = app
        self._checks_host = is_loopback(host)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if refusal := self._refusal(scope, headers):
            await _respond(with_headers, *refusal)
            return
        if self._token is not None:
            given = _given_tokens(scope, headers)
            if not any(
                hmac.compare_digest(one.encode(), self._token.encode()) for one in given.values()
            ):
                await _respond(with_headers, 401, "open the address with its token")
                return
            if "query" in given and scope["method"] == "GET":
                await _respond(with_headers, 303, "", self._signed_in(scope))
                return
        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "the dashboard only reads"
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "the dashboard takes no body"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_PATH:
            return 414, "the address is too long"
        host = headers.get("host", "")
        if self._checks_host and _name_of(host) not in _LOOPBACK:
            return 421, "this server answers to localhost only"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "not for pages from elsewhere"
        site = headers.get("sec-fetch-site", "same-origin")
        is_page = headers.get("sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not is_page:
            return 403, "not for pages from elsewhere"
        return None

    def _signed_in(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        rest = [
            (key, value)
            for key, value in parse_qsl(scope["query_string"].decode("latin-1"))
            if key != "token"
        ]
        # Only the path: a redirect never leads elsewhere.
        place = "/" + scope["path"].lstrip("/").encode("ascii", "ignore").decode()
        place = place.replace("\\", "").replace("\r", "").replace("\n", "")
        if rest:
            place += "?" + urlencode(rest)
        cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        return [(b"location", place.encode()), (b"set-cookie", cookie.encode())]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    name = host.partition(":")[0].lower()
    return "127.0.0.1" if name.startswith("127.") and name.replace(".", "").isdigit() else name


def _given_tokens(scope: Scope, headers: dict[str, str]) -> dict[str, str]:
    given = {}
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        given["bearer"] = value.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    if cookie is not None:
        given["cookie"] = cookie.value
    for key, text in parse_qsl(scope["query_string"].decode("latin-1")):
        if key == "token":
            given["query"] = text
    return given


async def _respond(
    send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = text.encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                *(headers or ()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
