"""A program in the place of the guest agent, on a socket: the farm's connections into it stay bounded in bytes, in time and in work."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dart_server.guest import limits
from dart_server.guest.client import GuestClient, GuestMalformed, GuestTooLarge, GuestUnreachable
from dart_server.providers import guest_control

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


class FakeHostileAgent:
    """Answers every connection with one attack."""

    def __init__(self, path: Path, attack: Attack) -> None:
        self._path = path
        self._attack = attack
        self._serving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> GuestClient:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await reader.readuntil(b"\r\n\r\n")
                    await self._attack(reader, writer)
                    await reader.read()
            finally:
                writer.transport.abort()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._serving.append(asyncio.ensure_future(serve(reader, writer)))

        self._server = await asyncio.start_unix_server(accept, str(self._path))
        self.client = GuestClient(lambda _port: self.dial(), screen=(64, 48))
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close_connections()
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0.01)  # asyncio closes what was aborted in its next turns

    async def dial(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, str(self._path))
        return connection


def sends(*parts: bytes, forever: bytes = b"") -> Attack:
    async def attack(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()
        while forever:
            writer.write(forever)
            await writer.drain()
            await asyncio.sleep(0)

    return attack


FLOODS: dict[str, Attack] = {
    "interim answers": sends(forever=b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    "a head without end": sends(OK, forever=b"X-Field: " + b"x" * 1_000 + b"\r\n"),
    "fields without names": sends(OK + b": x\r\n\r\n"),
    "no HTTP": sends(b"SSH-2.0-agent\r\n\r\n"),
    "a status of nobody": sends(b"HTTP/1.1 999 Odd\r\n\r\n"),
    "chunks of one byte": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", forever=b"1\r\nx\r\n" * 1_000),
    "a chunk without a length": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
    "a chunk's length without end": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", forever=b"0" * 1_000),
    "a chunk that is longer": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nxyz\r\n0\r\n\r\n"),
    "two lengths": sends(OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"),
    "a negative length": sends(OK + b"Content-Length: -1\r\n\r\n"),
}
TOO_LARGE: dict[str, Attack] = {
    "a length": sends(OK + b"Content-Length: 999999999999\r\n\r\n"),
    "a body without a length": sends(OK + b"\r\n", forever=bytes(64 * 1024)),
    "chunks": sends(OK + b"Transfer-Encoding: chunked\r\n\r\n", forever=b"10000\r\n" + bytes(65536) + b"\r\n"),
}


@pytest.mark.parametrize("attack", FLOODS.values(), ids=FLOODS)
async def test_what_is_not_http_ends_the_call_at_once(tmp_path: Path, attack: Attack) -> None:
    async with FakeHostileAgent(tmp_path / "s", attack) as guest, asyncio.timeout(10):
        with pytest.raises(GuestMalformed):
            await guest.request("GET", "/v1/clock", limits.CLOCK, timeout_s=5.0)


@pytest.mark.parametrize("attack", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_more_than_a_route_answers_is_not_read(tmp_path: Path, attack: Attack) -> None:
    reserved_nbytes = 0

    def reserve(nbytes: int) -> None:
        nonlocal reserved_nbytes
        reserved_nbytes += nbytes

    async with FakeHostileAgent(tmp_path / "s", attack) as guest, asyncio.timeout(10):
        with pytest.raises(GuestTooLarge):
            await guest.request("GET", "/screenshot", guest.frame_limit, timeout_s=5.0, reserve_bytes=reserve)
    assert reserved_nbytes <= guest.frame_limit.nbytes


async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_an_answer_that_drips_has_one_deadline_for_all_of_it(tmp_path: Path) -> None:
    async with FakeHostileAgent(tmp_path / "s", drip) as guest:
        started_s = time.monotonic()
        with pytest.raises(GuestUnreachable) as late:
            await guest.request("GET", "/v1/clock", limits.CLOCK, timeout_s=0.3)
        assert late.value.timed_out
        assert time.monotonic() - started_s < 2.0


@pytest.mark.parametrize(
    "body", [b"[" * 30_000, b'{"ready": ' + b"9" * 5_000 + b"}", b"[]", b"{" + b'"a":0,' * 9_000 + b'"b":0}']
)
async def test_a_hostile_report_of_health_is_no_answer(tmp_path: Path, body: bytes) -> None:
    agent = FakeHostileAgent(tmp_path / "s", sends(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    async with agent:
        with pytest.raises(guest_control.AgentTimeout):
            await guest_control.health(agent.dial, 5.0)


async def test_a_connection_is_kept_for_the_next_call(tmp_path: Path) -> None:
    dialled = 0

    async def honest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        while True:
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")

    async with FakeHostileAgent(tmp_path / "s", honest) as guest:
        for _ in range(5):
            reply = await guest.request("GET", "/v1/clock", limits.CLOCK, timeout_s=5.0)
            assert (reply.status, reply.content) == (200, b"{}")
    assert dialled == 1
