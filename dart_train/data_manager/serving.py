"""Where the data manager listens: its Unix socket, and a TCP address behind a key.

Role: the two listeners, the check of the key, and one HTTP server over each. Rule: the Unix socket has mode 0600 and needs no key; over TCP
every request needs it; beyond loopback plain HTTP is refused unless that was waived, because TLS is a proxy's. No key is in a log.
Non-goals: routes (`app`), operations (`service`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.data_client.address import LOOPBACK
from dart_agent.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

MAX_SOCKET_PATH_BYTES = 107
SHUTDOWN_GRACE_S = 2
BACKLOG = 128
log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyGuard:
    """An application that answers 401 where the key is missing or wrong.

    Args:
        app: The application behind it.
        key: The key.
    """

    def __init__(self, app: AsgiApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        from starlette.responses import JSONResponse

        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        refusal = {"error": "unauthenticated", "detail": "the key of the data manager is missing or wrong"}
        await JSONResponse(refusal, status_code=401)(scope, receive, send)


@contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket with mode 0600; an old socket file is removed, because the lock of the database is held.

    Args:
        path: The socket.

    Yields:
        The listening socket.

    Raises:
        ConfigError: The path is too long for a Unix socket.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket path {path} is longer than {MAX_SOCKET_PATH_BYTES} bytes: choose a shorter directory"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        previous = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(previous)
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def tcp_listener(listen: str, *, insecure_plain_http: bool = False) -> socket.socket:
    """Listen on a TCP address.

    Args:
        listen: `HOST:PORT`; port 0 takes a free one.
        insecure_plain_http: Whether an address beyond loopback is allowed.

    Returns:
        The listening socket.

    Raises:
        ConfigError: It is no address, is beyond loopback, or is taken.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal():
        raise ConfigError(f"data.listen: {listen!r} is not of the form HOST:PORT, such as 127.0.0.1:8790")
    if host not in LOOPBACK:
        if not insecure_plain_http:
            raise ConfigError(
                f"data.listen: {host} is beyond loopback, where the key would be readable by others: listen on 127.0.0.1 behind a proxy "
                "with TLS or an SSH tunnel, and set data.url; or waive it with data.insecure_plain_http = true"
            )
        log.warning("plain HTTP on %s: the key and all trajectories cross the network readable by others", host)
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"data.listen: cannot listen on {listen}: {error.strerror}; choose another port") from error


async def serve_app(app: FastAPI, listeners: Sequence[tuple[AsgiApp, socket.socket]]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        app: The application, whose lifespan surrounds all servers.
        listeners: What is served on which listening socket: the application, or a guard in front of it.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to us: uvicorn would raise them again after its end, and a clean stop would look like a death."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    servers = [
        Server(
            uvicorn.Config(
                served,
                log_level="warning",
                access_log=False,
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                lifespan="off",
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
            )
        )
        for served, _ in listeners
    ]

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    async with app.router.lifespan_context(app), asyncio.TaskGroup() as group:
        for server, (_, listener) in zip(servers, listeners, strict=True):
            group.create_task(server.serve(sockets=[listener]))
