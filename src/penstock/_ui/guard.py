"""Authorisation of requests, and security headers of responses."""

import hmac
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock._observe.loopback import is_loopback, names_loopback

COOKIE = "penstock_token"
CONTROL_HEADER = "x-penstock-control"
_MAX_PATH = 4096
_MAX_BODY = 4096
_MAX_MARKED = 64 << 10
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
    """ASGI middleware: read-only, same-origin, own host name only.

    Without a token, the Host header must name the loopback interface, which prevents DNS rebinding.
    With a token every request needs it, as a `Bearer` token or as the cookie that the first visit
    with `?token=` sets; the cookie name contains the port because browsers send cookies to every
    port of a host.

    Actions are POST requests with the token, a small JSON body and a header that forms cannot set,
    from a page of this server. Clients without an Origin need the `Bearer` token.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, acts: bool = False) -> None:
        if not is_loopback(host) and not token:
            raise ValueError("an address that is not loopback requires a token")
        if acts and not token:
            raise ValueError("actions require a token")
        self._app = app
        self._acts = acts
        self._checks_host = is_loopback(host)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = [*message.get("headers", ())]
                if not any(name == b"cache-control" for name, _ in sent):
                    sent.append((b"cache-control", b"no-store"))
                message["headers"] = [*sent, *_HEADERS]
            await send(message)

        answer = self._answer(scope, headers) or self._app
        await answer(scope, receive, with_headers)

    def _answer(self, scope: Scope, headers: dict[str, str]) -> PlainTextResponse | None:
        """The response to a request that is not passed to the dashboard; otherwise `None`."""
        if refusal := self._refusal(scope, headers):
            status, text = refusal
            return PlainTextResponse(text, status)
        if self._token is not None:
            tokens = _given_tokens(scope, headers)
            right = {
                way
                for way, token in tokens.items()
                if hmac.compare_digest(token.encode(), self._token.encode())
            }
            if not right:
                return PlainTextResponse("open the URL with its token", 401)
            if scope["method"] == "POST" and (reason := _no_action(headers, right)):
                return PlainTextResponse(reason, 403)
            if "query" in tokens and scope["method"] == "GET":
                return PlainTextResponse("", 303, self._signed_in(scope))
        return None

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        is_action = self._acts and scope["method"] == "POST" and scope["path"].startswith("/api/")
        if scope["method"] not in ("GET", "HEAD") and not is_action:
            return 405, "the dashboard only reads"
        # The body of a replay lists the selected rows.
        longest = _MAX_MARKED if scope["path"].endswith("/replay") else _MAX_BODY
        if not _has_length(headers, longest if is_action else 0):
            return 413, "the body is too long"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_PATH:
            return 414, "the address is too long"
        host = headers.get("host", "")
        if self._checks_host and not names_loopback(host):
            return 421, "this server accepts requests for localhost only"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from other origins are refused"
        site = headers.get("sec-fetch-site", "same-origin")
        is_page = headers.get("sec-fetch-mode") == "navigate" and not is_action
        if site not in ("same-origin", "none") and not is_page:
            return 403, "requests from other origins are refused"
        return None

    def _signed_in(self, scope: Scope) -> dict[str, str]:
        rest = [
            (key, value)
            for key, value in parse_qsl(scope["query_string"].decode("latin-1"))
            if key != "token"
        ]
        # Only the path, quoted and with one leading slash: browsers treat a backslash as a slash
        # and drop control characters, so the redirect could lead to another host.
        path = "/" + quote(scope["path"].lstrip("/"))
        if rest:
            path += "?" + urlencode(rest)
        value = quote(self._token or "", safe="")
        cookie = f"{cookie_name(scope)}={value}; Path=/; HttpOnly; SameSite=Strict"
        return {"location": path, "set-cookie": cookie}


def cookie_name(scope: Scope) -> str:
    """The name of the cookie, with the port: other dashboards on the host use other ports."""
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server else COOKIE


def _has_length(headers: dict[str, str], most: int) -> bool:
    text = headers.get("content-length", "0")
    is_number = text.isdecimal() and len(text) < 10
    return "transfer-encoding" not in headers and is_number and int(text) <= most


def _no_action(headers: dict[str, str], right: set[str]) -> str | None:
    """Why a request with the token may not perform actions; `None` if it may."""
    if headers.get(CONTROL_HEADER) != "1":
        return f"actions require the header {CONTROL_HEADER}"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return "actions require a JSON body"
    # Other origins were refused before; a request without an Origin is not from a browser page.
    if "bearer" not in right and not ("cookie" in right and "origin" in headers):
        return "actions require the token as Bearer, or a page of this server"
    return None


def _given_tokens(scope: Scope, headers: dict[str, str]) -> dict[str, str]:
    tokens = {}
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        tokens["bearer"] = value.strip()
    # Without Python's parser, which stops at invalid cookies (for example JSON): a browser sends
    # the cookies of all ports of a host.
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == cookie_name(scope):
            tokens["cookie"] = unquote(value)
    for key, text in parse_qsl(scope["query_string"].decode("latin-1")):
        if key == "token":
            tokens["query"] = text
    return tokens
