"""The one way out of a desktop: a forward proxy on its own loopback that leads to named destinations and nowhere else.

Role: `Destination` (what a pool allows), `EgressProxy` (one desktop's proxy: HTTP, and CONNECT for everything else). The proxy listens
inside the desktop's network and runs unprivileged here, outside. Rule: a destination is named as `HOST:PORT`, exactly; its name is looked
up here, and the address that was looked at is the one that is connected to. A name leads to public addresses only, also where one IPv6
address stands for an IPv4 one; a private address has to be named itself, or its network. The host's loopback, link-local addresses,
metadata services and multicast stay closed whoever names them. Non-goals: looking into what is sent, caching, names as patterns.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)

PROXY_PORT = 3128
"""Where the proxy listens inside a desktop."""
MAX_HEADER_BYTES = 32 * 1024
HEADER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64
"""Per desktop; more are refused."""
_CHUNK_BYTES = 64 * 1024
_DESTINATION_PATTERN = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(\d{1,5})")
_HOP_HEADERS = {"connection", "proxy-connection", "proxy-authorization", "keep-alive"}


class DestinationRefused(Exception):
    """A request that does not pass; `status` is the HTTP status of the answer."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Destination:
    """A host by name or address, in lower case and without brackets, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Destination:
        """`HOST:PORT`. Raises ValueError with the fix."""
        found = _DESTINATION_PATTERN.fullmatch(text)
        if not found or not 0 < int(found[3]) < 65536:
            raise ValueError(f"{text!r} is not a destination: write HOST:PORT, like pypi.org:443")
        return cls(found[1].strip("[]").lower(), int(found[3]))


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA = (ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200"))
"""Metadata services of clouds that are not link-local."""
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""NAT64: the last four bytes are an IPv4 address."""
_LOCALLY_TRANSLATED = ipaddress.IPv6Network("64:ff9b:1::/48")
"""NAT64 for a site's own use: where the IPv4 address stands in it is the site's choice."""
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def parse_network(text: str) -> Network:
    """A network in CIDR notation. Raises ValueError with the fix."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no network: write ADDRESS/BITS, like 10.1.0.0/16 ({error})") from error


def _meant_addresses(address: str) -> list[Address]:
    """An address, and the IPv4 addresses that an IPv6 one leads to (mapped, compatible, 6to4, Teredo, NAT64)."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return [found]
    inner: list[Address] = [part for part in (found.ipv4_mapped, found.sixtofour, *(found.teredo or ())) if part]
    if found in _TRANSLATED or (found in _COMPATIBLE and int(found) > 1):
        inner.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
    return inner if found.ipv4_mapped else [found, *inner]


def is_blocked_address(address: str) -> bool:
    """Whether an address stays closed whoever names it."""
    return any(
        meant.is_loopback or meant.is_link_local or meant.is_unspecified or meant.is_multicast or meant in METADATA
        for meant in _meant_addresses(address)
    )


def is_public_address(address: str) -> bool:
    """Whether an address, and every address that it stands for, is one of the public internet."""
    if ipaddress.ip_address(address.partition("%")[0]) in _LOCALLY_TRANSLATED:
        return False
    meant = _meant_addresses(address)
    # Of a translated address only what it is translated to tells whether it is public.
    judged = [one for one in meant if len(meant) == 1 or one not in _TRANSLATED]
    return all(one.is_global and not (one.version == 6 and one.is_site_local) for one in judged)


class EgressProxy:
    """The proxy of one desktop. `open` serves on a listening socket until `close`. networks: private ones that names may lead to."""

    def __init__(self, allowed: Iterable[Destination], networks: Iterable[Network] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._networks = tuple(networks)
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def open(self, listener: socket.socket) -> None:
        """Serve on a socket that listens inside the desktop."""
        self._server = await asyncio.start_server(self._handle_connection, sock=listener, limit=MAX_HEADER_BYTES)

    def close_connections(self) -> None:
        """End every connection, and go on."""
        for task in self._running:
            task.cancel()

    def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        self.close_connections()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if len(self._running) > MAX_CONNECTIONS:
                raise DestinationRefused("503 Service Unavailable", f"more than {MAX_CONNECTIONS} connections")
            await self._serve(reader, writer)
        except DestinationRefused as refused:
            body = f"{refused}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            with contextlib.suppress(OSError):
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            return  # either side went away, or the desktop does: nothing is left to say
        finally:
            self._running.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEADER_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise DestinationRefused("400 Bad Request", "no complete request") from error
        destination, forwarded_head = parse_proxy_request(head)
        upstream_reader, upstream_writer = await self._connect(destination)
        try:
            if forwarded_head:
                upstream_writer.write(forwarded_head)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, upstream_writer))
                both.create_task(_pump(upstream_reader, writer))
        except* OSError as broken:
            log.debug("a connection of a desktop broke: %s", broken.exceptions)
        finally:
            upstream_writer.close()

    def _is_open(self, destination: Destination, address: str) -> bool:
        """Whether a destination may lead to an address: a public one, or one that is named itself or by its network."""
        if is_blocked_address(address):
            return False
        plain = ipaddress.ip_address(address.partition("%")[0])
        with contextlib.suppress(ValueError):  # a name
            if ipaddress.ip_address(destination.host) == plain:
                return True
        return any(plain in network for network in self._networks) or is_public_address(address)

    async def _connect(self, destination: Destination) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if destination not in self._allowed:
            raise DestinationRefused(
                "403 Forbidden", f"{destination.host}:{destination.port} is not among the destinations of this pool"
            )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await loop.getaddrinfo(destination.host, destination.port, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
                if not all(self._is_open(destination, address) for address in addresses):
                    raise DestinationRefused(
                        "403 Forbidden", f"{destination.host} leads to an address that is closed to desktops"
                    )
                for address in addresses:
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection(address, destination.port)
        except (OSError, TimeoutError) as error:
            log.debug("a destination of a desktop was not reached: %s", error)
        raise DestinationRefused("502 Bad Gateway", f"{destination.host}:{destination.port} does not answer")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until the end, then tell the other side."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def parse_proxy_request(head: str) -> tuple[Destination, bytes]:
    """(where to, what to send on): nothing for CONNECT, else the request in the form that the server itself expects.

    Raises ProxyRequestDenied for what is neither.
    """
    line, *fields = head[:-4].split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise DestinationRefused("400 Bad Request", "not an HTTP/1 request")
    method, target, version = words
    try:
        if method == "CONNECT":
            return Destination.parse(target), b""
        parts = urllib.parse.urlsplit(target)
        if parts.scheme != "http" or not parts.hostname:
            raise DestinationRefused("400 Bad Request", "a proxy is asked for whole http:// addresses")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        destination = Destination.parse(f"{host}:{parts.port or 80}")
    except ValueError as error:
        raise DestinationRefused("400 Bad Request", str(error)) from error
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    kept = [field for field in fields if field.partition(":")[0].strip().lower() not in _HOP_HEADERS]
    return destination, "\r\n".join([f"{method} {path} {version}", *kept, "Connection: close", "", ""]).encode(
        "latin-1"
    )
