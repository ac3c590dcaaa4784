"""Official getters get files as the host reads them, and everything else from the desktop's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dart_envs.scorer import file_proxy
from dart_envs.scorer.file_proxy import serve_files_from_outside
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_server.wire import EvidenceAnswer

LIE = b"what the desktop says"


@asynccontextmanager
async def desktop_server() -> AsyncIterator[tuple[str, int, list[bytes]]]:
    """The desktop's server, in its policy's hands: it answers every request with `LIE`."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        asked.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(LIE), LIE))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield host, port, asked


@pytest.fixture
def desktop() -> FakeDesktop:
    made = FakeDesktop()
    made.seen_from_outside = {"/large": EvidenceAnswer(error="too_large")}
    made.state.files["/home/user/a b.txt"] = b"\0real\xff"
    return made


async def test_files_come_from_outside_and_the_rest_from_the_desktop(desktop: FakeDesktop) -> None:
    async with httpx.AsyncClient() as client, desktop_server() as (host, port, asked):  # noqa: SIM117 - the inner one needs the outer's
        async with serve_files_from_outside(desktop, (host, port)) as (near, near_port):
            url = f"http://{near}:{near_port}"
            for path in ("/home/user/a b.txt", "~/a b.txt", "a b.txt"):
                reply = await client.post(f"{url}/file", data={"file_path": path})
                assert (reply.status_code, reply.content) == (200, b"\0real\xff")
            for path in ("/none", "/large"):
                assert (await client.post(f"{url}/file", data={"file_path": path})).status_code == 404
            assert asked == []
            body = b"x" * 200_000
            replies = [await client.post(f"{url}/execute", content=body), await client.get(f"{url}/screenshot")]
            assert [reply.content for reply in replies] == [LIE, LIE]
            assert (await client.post(f"{url}/file", data={"file_path": "$HOME/a"})).content == LIE
    assert asked[0].endswith(body)
    assert [request.split(b" ")[1] for request in asked] == [b"/execute", b"/screenshot", b"/file"]
    assert asked[2].endswith(b"file_path=%24HOME%2Fa")


async def test_a_broken_request_ends_its_own_connection_only(desktop: FakeDesktop) -> None:
    async with serve_files_from_outside(desktop, ("127.0.0.1", 1)) as (host, port):
        for broken in (b"\r\n\r\n", b"GET /", b"POST /file HTTP/1.1\r\nContent-Length: 9\r\n\r\nfile", b"x" * 100_000):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(broken)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        async with httpx.AsyncClient() as client:
            reply = await client.post(f"http://{host}:{port}/file", data={"file_path": "/home/user/a b.txt"})
            assert reply.status_code == 200


async def test_a_connection_without_a_request_ends_with_the_server(
    desktop: FakeDesktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, accepted, serve = asyncio.all_tasks(), asyncio.Event(), file_proxy._serve

    async def noted(*parts: Any) -> None:
        accepted.set()
        await serve(*parts)

    monkeypatch.setattr(file_proxy, "_serve", noted)
    async with serve_files_from_outside(desktop, ("127.0.0.1", 1)) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        await asyncio.wait_for(accepted.wait(), 5)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert asyncio.all_tasks() == before
    writer.close()


async def test_where_nobody_looks_from_outside_the_tunnel_is_used(desktop: FakeDesktop) -> None:
    desktop.seen_from_outside = None
    async with serve_files_from_outside(desktop, ("127.0.0.1", 7)) as address:
        assert address == ("127.0.0.1", 7)
