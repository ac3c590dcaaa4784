"""Names that lead into the host's own networks: the egress proxy connects to none of their addresses."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dart_server.providers import egress
from dart_server.providers.egress import Destination, EgressProxy, parse_network

PRIVATE = (
    "10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "198.18.0.1", "192.0.2.1", "240.0.0.1", "fd12:3456::1", "2001:db8::1",
    "::ffff:10.0.0.5", "::10.0.0.5", "64:ff9b::a00:5", "64:ff9b::c0a8:101", "64:ff9b:1::101:101", "2002:a00:5::1", "2002:c0a8:101::",
    "2001:0:a00:5::1", "fec0::1",
)  # fmt: skip
ALWAYS_CLOSED = (
    "127.0.0.1", "0.0.0.0", "169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fe80::1", "::1", "ff02::1", "224.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "64:ff9b::7f00:1", "::ffff:100.100.100.200",
)  # fmt: skip
NAMED = Destination.parse("looks-public.example:443")


async def refused(
    proxy: EgressProxy, monkeypatch: pytest.MonkeyPatch, addresses: list[str], target: Destination
) -> bool:
    """Whether the proxy refuses a destination whose name leads to these addresses; nothing is ever connected."""
    connected: list[str] = []

    async def lookup(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, target.port)) for address in addresses]

    async def connect(address: str, port: int, **_: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "getaddrinfo", lookup)
        patch.setattr(asyncio, "open_connection", connect)
        with pytest.raises(egress.DestinationRefused) as caught:
            await proxy._connect(target)
    assert not connected or caught.value.status.startswith("502")
    return not connected


@pytest.mark.parametrize("address", [*PRIVATE, *ALWAYS_CLOSED])
async def test_a_name_does_not_lead_inside(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    proxy = EgressProxy([NAMED])
    assert await refused(proxy, monkeypatch, [address], NAMED)
    assert await refused(proxy, monkeypatch, ["1.1.1.1", address], NAMED), "one of several is enough"
    assert not await refused(proxy, monkeypatch, ["1.1.1.1"], NAMED)


@pytest.mark.parametrize("address", ["10.0.0.5", "fd12:3456::1"])
async def test_a_private_address_is_reached_where_it_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    literal = Destination(address, 80)
    assert not await refused(EgressProxy([literal]), monkeypatch, [address], literal)
    by_network = EgressProxy([NAMED], [parse_network("10.0.0.0/8"), parse_network("fd12::/16")])
    assert not await refused(by_network, monkeypatch, [address], NAMED)
    assert await refused(by_network, monkeypatch, ["192.168.1.1"], NAMED)


@pytest.mark.parametrize("address", ALWAYS_CLOSED)
async def test_what_is_always_closed_is_so_when_it_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    literal = Destination(address, 80)
    everything = [parse_network("0.0.0.0/0"), parse_network("::/0")]
    assert await refused(EgressProxy([literal], everything), monkeypatch, [address], literal)
