"""The calling end of the channel against a peer that breaks RFC 6455 to make it hold memory or lose its place."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from dart_server.wire import messages
from dart_server.wire.messages import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, MessageSocket, SocketClosed

MIB = 2**20
LIMIT_NBYTES = 2 * MIB
Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    length = len(payload)
    if length < 126:
        head = bytes((final << 7 | opcode, length))
    elif length < 65536:
        head = bytes((final << 7 | opcode, 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((final << 7 | opcode, 127)) + length.to_bytes(8, "big")
    return head + payload


async def connected(place: Path, attack: Attack) -> tuple[asyncio.Server, MessageSocket]:
    """A server that shakes hands and then attacks, and the socket that is attacked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line[19:] for line in request.split("\r\n") if line.lower().startswith("sec-websocket-key: "))
        accept = base64.b64encode(hashlib.sha1(key.encode() + messages.GUID, usedforsecurity=False).digest()).decode()
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        try:
            await attack(reader, writer)
            await reader.read()
        except ConnectionError:
            pass  # the attacked end hung up, as it should
        finally:
            writer.close()

    path = str(place / "s")
    connect = partial(asyncio.get_running_loop().create_unix_connection, path=path)
    server = await asyncio.start_unix_server(serve, path)
    return server, await MessageSocket.open(connect, "peer", "/", timeout_s=5.0, message_limit_nbytes=LIMIT_NBYTES)


async def attacked(place: Path, attack: Attack) -> tuple[SocketClosed, int, list[bytes]]:
    """What ended the connection, how many bytes the attack reached in memory at most, and the messages that were delivered."""
    received: list[bytes] = []
    server, socket = await connected(place, attack)
    async with server, asyncio.timeout(30):
        tracemalloc.start()
        try:
            while True:
                received.append(bytes(await socket.receive()))
        except SocketClosed as closed:
            return closed, tracemalloc.get_traced_memory()[1], received
        finally:
            tracemalloc.stop()
            await socket.aclose()


async def test_the_limit_holds_for_the_sum_of_all_fragments(tmp_path: Path) -> None:
    sent = 0

    async def fragments(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        piece = frame(CONTINUATION, bytes(MIB // 4), final=False)
        writer.write(frame(BINARY, bytes(MIB // 4), final=False))
        for _ in range(400):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    closed, peak_nbytes, received = await attacked(tmp_path, fragments)
    assert closed.code == messages.TOO_LARGE
    assert not received
    assert sent < 40 * MIB
    assert peak_nbytes < 5 * LIMIT_NBYTES


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "one byte"])
async def test_fragments_that_carry_next_to_nothing_end_the_connection(tmp_path: Path, content: bytes) -> None:
    async def fragments(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(TEXT, b"a", final=False))
        for _ in range(100):
            writer.write(frame(CONTINUATION, content, final=False) * 2_000)
            await writer.drain()
        writer.write(frame(CONTINUATION, b"b") + frame(CLOSE, (4000).to_bytes(2, "big")))

    closed, peak_nbytes, received = await attacked(tmp_path, fragments)
    assert (closed.code, received) == (messages.PROTOCOL_ERROR, [])
    assert "next to nothing" in closed.reason
    assert peak_nbytes < MIB


async def test_a_message_may_come_in_many_fragments_of_a_useful_size(tmp_path: Path) -> None:
    async def fragments(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(BINARY, bytes(1024), final=False))
        writer.write(frame(CONTINUATION, bytes(1024), final=False) * 1_000)
        writer.write(frame(CONTINUATION) + frame(CLOSE, (4000).to_bytes(2, "big")))

    closed, _, received = await attacked(tmp_path, fragments)
    assert (closed.code, [len(one) for one in received]) == (4000, [1024 * 1001])


async def test_messages_that_nobody_asked_for_wait_outside_once_they_fill_the_limit(tmp_path: Path) -> None:
    sent = 0

    async def unasked(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(40):
            writer.write(frame(BINARY, bytes(LIMIT_NBYTES)))
            await writer.drain()
            sent += LIMIT_NBYTES

    server, socket = await connected(tmp_path, unasked)
    async with server:
        await asyncio.sleep(0.3)
        assert sent <= 4 * LIMIT_NBYTES
        assert len(await socket.receive()) == LIMIT_NBYTES
        await socket.aclose()


@pytest.mark.parametrize(
    "bytes_sent",
    [
        frame(PING, bytes(126)),
        frame(CLOSE, bytes(126)),
        frame(PONG, bytes(70_000)),
        frame(PING, b"x", final=False),
        frame(CONTINUATION, b"x"),
        frame(TEXT, b"x", final=False) + frame(TEXT, b"y"),
        frame(3, b"x"),
        frame(11, b"x"),
        bytes((0xC1, 0)),
        bytes((0x81, 0x80, 0, 0, 0, 0)),
    ],
    ids=[
        "long ping",
        "long close",
        "long pong",
        "ping in parts",
        "continued without a begin",
        "begun twice",
        "data frame without a meaning",
        "control frame without a meaning",
        "reserved bit",
        "masked",
    ],
)
async def test_a_frame_that_rfc_6455_forbids_ends_the_connection(tmp_path: Path, bytes_sent: bytes) -> None:
    async def forbidden(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes_sent)

    closed, _, received = await attacked(tmp_path, forbidden)
    assert (closed.code, received) == (messages.PROTOCOL_ERROR, [])


async def test_a_flood_of_pings_ends_the_connection(tmp_path: Path) -> None:
    async def pings(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            writer.write(frame(PING, bytes(125)) * 500)
            await writer.drain()

    closed, peak_nbytes, _ = await attacked(tmp_path, pings)
    assert closed.code == messages.PROTOCOL_ERROR
    assert "next to nothing" in closed.reason
    assert peak_nbytes < MIB
