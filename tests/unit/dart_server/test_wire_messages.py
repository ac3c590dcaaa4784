"""The calling end of the channel against real WebSocket servers: sizes, pieces, pings, closes, refusals, floods."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.http11 import Request, Response

from dart_server.wire import messages
from dart_server.wire.messages import HandshakeRefused, MessageSocket, SocketClosed

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def served(
    place: Path, handler: Handler, **options: object
) -> AsyncIterator[Callable[..., Awaitable[MessageSocket]]]:
    path = str(place / "s")
    connect = partial(asyncio.get_running_loop().create_unix_connection, path=path)
    async with unix_serve(handler, path, **options):  # type: ignore[arg-type]
        yield partial(MessageSocket.open, connect, "peer", "/channel?a=b", timeout_s=5.0)


async def echo(peer: ServerConnection) -> None:
    async for text in peer:
        assert isinstance(text, str)
        await peer.send(text.encode())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 3_000_000])
async def test_messages_of_every_length_come_back(tmp_path: Path, size: int) -> None:
    async with served(tmp_path, echo, max_size=None) as opened:
        socket = await opened()
        for text in ("ü" * (size // 2) + "x" * (size % 2), "again"):
            socket.send(text)
            assert await socket.receive() == text.encode()
        await socket.aclose()
        await socket.aclose()
        with pytest.raises(SocketClosed):
            socket.send("too late")


async def test_fragments_pings_and_messages_that_come_together_are_told_apart(tmp_path: Path) -> None:
    parts = [os.urandom(70_000), b"", os.urandom(3)]

    async def talk(peer: ServerConnection) -> None:
        await peer.send(b"first")
        await peer.send(parts)
        await asyncio.wait_for(await peer.ping(b"alive?"), 5)
        await peer.send(b"pong seen")
        await peer.close(4000, "enough")

    async with served(tmp_path, talk) as opened:
        socket = await opened()
        assert await socket.receive() == b"first"
        assert await socket.receive() == b"".join(parts)
        assert await socket.receive() == b"pong seen"
        with pytest.raises(SocketClosed) as over:
            await socket.receive()
        assert (over.value.code, over.value.reason) == (4000, "enough")
        assert socket.closed
        await socket.aclose()


async def test_the_handshake_carries_headers_and_a_refusal_its_body(tmp_path: Path) -> None:
    body = b"x" * (messages.HEAD_NBYTES + 5_000)

    def look(peer: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("X-Key") == "good" and request.path == "/channel?a=b":
            return None
        response = peer.respond(403, "")
        response.headers["Content-Length"] = str(len(body))
        response.body = body
        return response

    async with served(tmp_path, echo, process_request=look) as opened:
        with pytest.raises(HandshakeRefused) as refused:
            await opened()
        assert refused.value.status == 403
        assert refused.value.body.endswith(body[-5_000:])
        socket = await opened(headers={"X-Key": "good"})
        await socket.aclose()
        with pytest.raises(ValueError, match="one line"):
            await opened(headers={"X-Key": "good\r\nX-More: bad"})


async def test_a_peer_that_hangs_up_or_sends_too_much_ends_the_connection(tmp_path: Path) -> None:
    async def talk(peer: ServerConnection) -> None:
        await peer.send(bytes(5_000))
        await peer.wait_closed()

    async with served(tmp_path, talk) as opened:
        socket = await opened(message_limit_nbytes=4_999)
        with pytest.raises(SocketClosed, match="more than is read here"):
            await socket.receive()
        await socket.aclose()

    async def leave(peer: ServerConnection) -> None:
        peer.transport.abort()

    async with served(tmp_path, leave) as opened:
        socket = await opened()
        with pytest.raises(SocketClosed):
            await socket.receive()
        await socket.aclose()


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 101 X\r\nSec-WebSocket-Accept: no\r\n\r\n", b"", bytes(20_000)]
)
async def test_what_is_no_websocket_is_an_error_at_once(tmp_path: Path, reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    path = str(tmp_path / "s")
    connect = partial(asyncio.get_running_loop().create_unix_connection, path=path)
    async with await asyncio.start_unix_server(answer, path):
        with pytest.raises(SocketClosed):
            await MessageSocket.open(connect, "peer", "/", timeout_s=5.0)


async def test_a_reader_that_is_behind_makes_the_peer_wait(tmp_path: Path) -> None:
    sent = 0

    async def flood(peer: ServerConnection) -> None:
        nonlocal sent
        while sent < 200:
            await peer.send(sent.to_bytes(4, "big") * 25_000)
            sent += 1
        await peer.wait_closed()

    async with served(tmp_path, flood) as opened:
        socket = await opened()
        assert (await socket.receive())[:4] == bytes(4)
        await asyncio.sleep(0.3)
        assert sent < 100
        for number in range(1, 200):
            message = await socket.receive()
            assert message == number.to_bytes(4, "big") * 25_000
        await socket.aclose()
