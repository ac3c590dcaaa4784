"""A web server of the test's own on this machine, in a thread: refuses on demand, prints nothing.

Role: `LocalServer` and `LocalHandler` are what a test's stand-in derives from; `serving` runs one. Rule: a port that was free, and
nothing of it lives on after `serving`. Non-goals: what is answered; servers inside a desktop (`stand_in_web`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class LocalHandler(BaseHTTPRequestHandler):
    """One request."""

    server: LocalServer

    def refused(self) -> bool:
        """True when the server was told to refuse this request, and it was."""
        if not self.server.statuses:
            return False
        self.send_error(self.server.statuses.pop(0))
        return True

    def answer(self, status: int, content: bytes) -> None:
        """Send one whole answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


class LocalServer(ThreadingHTTPServer):
    """Listens from its making on; `statuses`: what the next requests are refused with."""

    def __init__(self, handler: type[LocalHandler], address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), handler)
        self.statuses: list[int] = []

    @property
    def place(self) -> str:
        """Its address and port."""
        return f"{self.server_address[0]!s}:{self.server_port}"


Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Answers requests until the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
