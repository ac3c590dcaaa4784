"""The proxy of a desktop: what is named passes, nothing else does, and some addresses stay closed whoever names them.

Servers of this test stand for the outside; since they listen on loopback, `is_blocked_address` is opened for exactly their address where
needed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from dart_server.providers import egress
from dart_server.providers.egress import Destination, DestinationRefused, EgressProxy, parse_proxy_request
from dart_server.settings import FarmSettings


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A server that answers with what it was sent first."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read(4096))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def ask(proxy: EgressProxy, request: bytes) -> bytes:
    """What the proxy answers until it closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    await proxy.open(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(request)
    async with asyncio.timeout(5.0):
        said = await reader.read()
    writer.close()
    proxy.close()
    return said


def connect(destination: str) -> bytes:
    return f"CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n".encode()


async def test_what_is_named_is_reached(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "is_blocked_address", lambda address: address != "127.0.0.1")
    named = Destination.parse(f"127.0.0.1:{echo}")
    said = await ask(EgressProxy([named]), connect(f"127.0.0.1:{echo}") + b"hello")
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\ngot hello"
    plain = f"GET http://127.0.0.1:{echo}/a?b HTTP/1.1\r\nHost: x\r\nProxy-Authorization: secret\r\nAccept: */*\r\n\r\n".encode()
    assert (
        await ask(EgressProxy([named]), plain)
        == b"got GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    "target", ["example.com:443", "pypi.org:80", "pypi.org.evil.com:443", "10.0.0.1:443", "[::1]:443"]
)
async def test_what_is_not_named_is_refused(target: str) -> None:
    assert b"403 Forbidden" in await ask(EgressProxy([Destination.parse("pypi.org:443")]), connect(target))


async def test_the_hosts_loopback_stays_closed_also_when_it_is_named(echo: int) -> None:
    for name in ("127.0.0.1", "localhost"):
        said = await ask(EgressProxy([Destination.parse(f"{name}:{echo}")]), connect(f"{name}:{echo}"))
        assert b"403 Forbidden" in said


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "169.254.169.254",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1%eth0",
        "224.0.0.1",
        "::ffff:127.0.0.1",
    ],
)
def test_closed_addresses(address: str) -> None:
    assert egress.is_blocked_address(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "10.0.0.5", "2606:4700::1111"])
def test_open_addresses(address: str) -> None:
    assert not egress.is_blocked_address(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1", "::ffff:1.1.1.1"]
)
def test_public_addresses(address: str) -> None:
    assert egress.is_public_address(address)
    assert not egress.is_blocked_address(address)


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1", "CONNECT pypi.org HTTP/1.1", "CONNECT a:99999 HTTP/1.1", "GET ftp://a/ HTTP/1.1", "nonsense",
        "GET http:// HTTP/1.1", "GET http://a:b/ HTTP/1.1", "CONNECT u@pypi.org:443 HTTP/1.1",
    ],
)  # fmt: skip
def test_malformed_requests_are_refused(head: str) -> None:
    with pytest.raises(DestinationRefused):
        parse_proxy_request(head + "\r\n\r\n")


def test_names_are_compared_whole_and_without_case() -> None:
    assert parse_proxy_request("CONNECT PyPI.org:443 HTTP/1.1\r\n\r\n")[0] == Destination.parse("pypi.org:443")
    for text in ("*.org:443", "pypi.org", "http://pypi.org:443", "a b:1", "a:0", ""):
        with pytest.raises(ValueError, match="HOST:PORT"):
            Destination.parse(text)


async def test_a_hang_up_ends_connections_and_leaves_the_door_open(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "is_blocked_address", lambda _address: False)
    proxy = EgressProxy([Destination.parse(f"127.0.0.1:{echo}")])
    listener = socket.create_server(("127.0.0.1", 0))
    await proxy.open(listener)
    for _ in range(2):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(connect(f"127.0.0.1:{echo}"))
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        proxy.close_connections()
        async with asyncio.timeout(5.0):
            assert await reader.read() == b""
        writer.close()
    proxy.close()


def test_settings_name_destinations_of_runc_alone() -> None:
    assert FarmSettings(egress=("pypi.org:443",), provider="runc").egress == ("pypi.org:443",)
    with pytest.raises(ValueError, match="HOST:PORT"):
        FarmSettings(egress=("pypi.org",))
    with pytest.raises(ValueError, match="reach nothing outside"):
        FarmSettings(egress=("pypi.org:443",), provider="sim")
