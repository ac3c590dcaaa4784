"""The listener of a farm that speaks TLS: who begins a handshake is let in to it, who speaks plain HTTP is told so.

Role: accepts connections in place of uvicorn, looks at the first byte without taking it, and hands TLS on. Rule: nothing of a plain request
is obeyed or read as one; who says nothing, or does not end the handshake, is hung up on after `HANDSHAKE_TIMEOUT_S`. Non-goals: the
certificate (`http.ingress.certificate`), requests (`connections`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from dart_server import wire
from dart_server.http.ingress.certificate import ReloadingCertificate
from dart_server.ids import new_id
from dart_server.wire import ErrorCode

HANDSHAKE_TIMEOUT_S = 15.0
HANDSHAKE = 0x16
"""The first byte of a TLS connection: a record of the handshake."""
NO_DESCRIPTOR_S = 0.1
READ_NBYTES = 64 * 1024
"""What is taken of a plain request before it is answered, so that hanging up does not tear the answer away."""


class TlsListener:
    """Accepts on one socket. `protocol` makes what serves a connection under TLS; `most`: connections that may be greeting at a time."""

    def __init__(
        self,
        listening: socket.socket,
        certificate: ReloadingCertificate,
        protocol: Callable[[], asyncio.Protocol],
        most: int,
    ) -> None:
        self._listening = listening
        self._certificate = certificate
        self._protocol = protocol
        self._most = most
        self._greeting: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to accept."""
        self._listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Accept no more; who is still greeting is hung up on."""
        tasks = [*self._greeting, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError:  # no descriptor left, or it hung up already: the next one may fare better
                await asyncio.sleep(NO_DESCRIPTOR_S)
                continue
            if len(self._greeting) >= self._most:
                connection.close()
                continue
            task = loop.create_task(self._greet(connection))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket) -> None:
        handed_on = False
        try:
            connection.setblocking(False)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await _readable(connection)
                first = connection.recv(1, socket.MSG_PEEK)
                if first and first[0] == HANDSHAKE:
                    handed_on = True
                    await asyncio.get_running_loop().connect_accepted_socket(
                        self._protocol,
                        connection,
                        ssl=self._certificate.context,
                        ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                    )
                elif first:
                    await _tell(connection)
        except (
            OSError,
            TimeoutError,
        ):  # hung up, or no handshake that ends (ssl's errors are OSErrors): its own affair
            return
        finally:
            if not handed_on:
                connection.close()


async def _readable(connection: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


async def _tell(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    request_id = new_id("req")
    detail = "this port speaks TLS, and the request came without it"
    hint = "Use https:// (and wss://); nothing that is sent in the clear is private."
    body = wire.ErrorBody(error=ErrorCode.INVALID, detail=detail, hint=hint, request_id=request_id)
    content = body.model_dump_json().encode()
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n"
    head += b"connection: close\r\n\r\n"
    await loop.sock_recv(connection, READ_NBYTES)
    await loop.sock_sendall(connection, head % (len(content), request_id.encode()) + content)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
