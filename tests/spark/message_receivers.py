"""A web server and a mail server on this machine that store received messages."""

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Receiver:
    """A webhook server; `answers` are the status codes of the next requests, then 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[int] = []
        self.on_request: Callable[[], object] = lambda: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), json.loads(body)))
                outer.on_request()
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class MailServer:
    """Receives mails without encryption; `lines` contains all lines that clients sent."""

    def __init__(self, port: int) -> None:
        self.port = str(port)
        self.lines: list[str] = []


@contextlib.contextmanager
def mail_server(*, refuses: str = "") -> Iterator[MailServer]:
    """A mail server that always refuses one command, such as `RCPT`."""

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                mails.lines.append(line)
                if refuses and line.upper().startswith(refuses):
                    self.wfile.write(b"550 no\r\n")
                    continue
                if line.upper() == "DATA":
                    self.wfile.write(b"354 send it\r\n")
                    while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        mails.lines.append(line)
                self.wfile.write(b"250 ok\r\n" if line.upper() != "QUIT" else b"221 bye\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        mails = MailServer(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield mails
        server.shutdown()
