"""Slow loris and slow readers: whoever sends or reads in drops is cut off, everybody else is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from dart_server.http.ingress import connections
from dart_server.http.ingress.connections import limited_http_protocol

HEAD_S, GRACE_S, STALLED_S, POLL_INTERVAL_S = 0.3, 0.3, 0.3, 0.05
PATIENCE_S = 10.0
PART = bytes(1 << 20)
PARTS = 64
POST = b"POST /body HTTP/1.1\r\nhost: farm\r\ncontent-length: 100000\r\n\r\n"


class Served:
    """An application behind the guard: it takes bodies, gives a large answer, and knows how much of that was taken from it."""

    def __init__(self) -> None:
        self.port = 0
        self.parts_taken = 0
        self.given_up = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            try:
                for _ in range(PARTS):
                    await send({"type": "http.response.body", "body": PART, "more_body": True})
                    self.parts_taken += 1
                    if (await _now(receive)) == "http.disconnect":
                        return
            finally:
                self.given_up.set()
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] != "http.disconnect":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    async def ask(self) -> bytes:
        """An ordinary request's answer."""
        return await self.talk(b"GET / HTTP/1.1\r\nhost: farm\r\nconnection: close\r\n\r\n")

    async def talk(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """Send these, one after the other; what is answered until the farm hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = asyncio.ensure_future(_answered(reader))
        with contextlib.suppress(OSError):
            for part in parts:
                if answer.done():
                    break
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
        try:
            return await asyncio.wait_for(answer, PATIENCE_S)
        finally:
            writer.close()


async def _answered(reader: asyncio.StreamReader) -> bytes:
    """All that comes. A farm that hangs up on what is still being sent does so with a reset, which takes nothing back."""
    taken = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1 << 16):
            taken += part
    return bytes(taken)


async def _now(receive: Any) -> str:
    waiting = asyncio.ensure_future(receive())
    await asyncio.wait({waiting}, timeout=0)
    if waiting.done():
        return str(waiting.result()["type"])
    waiting.cancel()
    return ""


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(connections, "BODY_GRACE_S", GRACE_S)
    monkeypatch.setattr(connections, "STALLED_S", STALLED_S)
    monkeypatch.setattr(connections, "POLL_INTERVAL_S", POLL_INTERVAL_S)
    made = Served()
    guard = limited_http_protocol(8, header_timeout_s=HEAD_S)
    config = uvicorn.Config(made, port=0, http=guard, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    made.port = server.servers[0].sockets[0].getsockname()[1]
    yield made
    await server.shutdown()


def drops(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


async def test_a_head_that_comes_in_drops_is_cut_off(served: Served) -> None:
    head = b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(60))
    answer = await served.talk(*drops(head), pause_s=0.02)
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b'"error":"invalid"' in answer


async def test_a_connection_that_says_nothing_is_cut_off(served: Served) -> None:
    assert (await served.talk()).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_comes_in_drops_is_cut_off(served: Served) -> None:
    answer = await served.talk(POST, *drops(bytes(200)), pause_s=0.02)
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"too slowly" in answer


async def test_a_body_that_keeps_its_pace_comes_in(served: Served) -> None:
    answer = await served.talk(
        POST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), *[bytes(20_000)] * 5, pause_s=0.1
    )
    assert answer.endswith(b"ok"), answer


async def test_others_are_served_while_slow_ones_are_there(served: Served) -> None:
    slow = [asyncio.ensure_future(served.talk(POST, *drops(bytes(100)), pause_s=0.02)) for _ in range(6)]
    for _ in range(10):
        assert (await served.ask()).endswith(b"ok")
    assert {(await one)[:12] for one in slow} == {b"HTTP/1.1 408"}


async def test_an_answer_that_nobody_reads_is_not_piled_up_and_dropped(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    writer.write(b"GET /large HTTP/1.1\r\nhost: farm\r\n\r\n")
    await asyncio.wait_for(served.given_up.wait(), PATIENCE_S)
    assert served.parts_taken < PARTS // 2, "no more than sockets hold"
    assert (await served.ask()).endswith(b"ok")
    with contextlib.suppress(OSError):
        assert len(await reader.read()) < len(PART) * PARTS
    writer.close()
