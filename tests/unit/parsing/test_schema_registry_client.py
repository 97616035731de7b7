"""The client of the schema registry with rare failures of a local server."""

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock._model.redaction import redact
from penstock.errors import ConnectorError
from penstock.parsing.avro import PayloadError
from penstock.parsing.confluent import decode_confluent
from penstock.parsing.registry import SchemaRegistry, UnknownSchemaError

LONG = json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": "long"}]})


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.responses: list[tuple[int, object]] = []
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        responses = self.server.responses
        status, body = responses.pop(0) if len(responses) > 1 else responses[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    http_server = Server()
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,))
    thread.start()
    yield http_server
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", schema_id) + body


def test_schema_is_fetched_once_with_credentials(server):
    server.responses = [(200, {"schema": LONG})]
    registry = SchemaRegistry(server.url + "/", auth="user:s3cret-pass")
    assert decode_confluent(framed(3, b"\x0e"), registry) == {"x": 7}
    assert decode_confluent(framed(3, b"\x10"), registry) == {"x": 8}
    assert server.requests == [("/schemas/ids/3", "Basic dXNlcjpzM2NyZXQtcGFzcw==")]
    assert "s3cret" not in repr(registry)
    assert "s3cret" not in redact("auth user:s3cret-pass")


def test_request_is_retried_when_a_registry_is_busy_or_down(server):
    server.responses = [(503, b"busy"), (429, {}), (200, {"schema": LONG})]
    registry = SchemaRegistry(f"http://127.0.0.1:1,{server.url}")
    assert registry.schema(4).text == LONG
    assert len(server.requests) == 3


def test_query_fails_when_the_registry_is_unreachable(server):
    server.responses = [(500, b"")]
    registry = SchemaRegistry(server.url, attempts=2)
    with pytest.raises(ConnectorError, match="status 500") as raised:
        decode_confluent(framed(5, b"\x0e"), registry)
    assert raised.value.condition == "SCHEMA_REGISTRY_UNREACHABLE"
    assert len(server.requests) == 2


def test_row_has_an_error_when_the_registry_does_not_know_its_id(server):
    server.responses = [(404, {"error_code": 40403, "message": "not found"})]
    registry = SchemaRegistry(server.url)
    for _ in range(2):
        with pytest.raises(PayloadError, match="no schema with id 6"):
            decode_confluent(framed(6, b"\x0e"), registry)
    assert len(server.requests) == 1  # one request for both payloads
    with pytest.raises(UnknownSchemaError):
        registry.latest("none-value")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((401, {"error_code": 401}), "access was denied"),
        ((403, b""), "access was denied"),
        ((404, b"<html>"), "status 404"),
        ((200, b"<html>"), "not that of a schema registry"),
        ((200, []), "not that of a schema registry"),
    ],
)
def test_query_fails_when_the_registry_denies_access_or_responds_invalidly(
    server, response, reason
):
    server.responses = [response]
    with pytest.raises(ConnectorError, match=reason) as raised:
        SchemaRegistry(server.url).schema(7)
    assert raised.value.condition == "SCHEMA_REGISTRY_REFUSED"
    assert len(server.requests) == 1


@pytest.mark.parametrize("payload", [b"", b"\x00\x00", b"\x01\x00\x00\x00\x01x", b'{"id":1}'])
def test_row_has_an_error_when_its_payload_has_no_header(payload):
    with pytest.raises(PayloadError, match="does not begin with a schema id"):
        decode_confluent(payload, SchemaRegistry("http://127.0.0.1:1", attempts=1))


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": ""},
        {"url": "registry:8081"},
        {"url": "http://user:pass@registry"},
        {"url": "http://registry", "auth": "no-colon"},
    ],
)
def test_invalid_registry_url_or_credentials_are_refused(arguments):
    with pytest.raises(ConnectorError) as raised:
        SchemaRegistry(**arguments)
    assert raised.value.condition == "SCHEMA_REGISTRY_INVALID"
