"""A TCP port of the desktop on the loopback interface of this host.

This module accepts local connections and relays each one through its own WebSocket. It listens on 127.0.0.1 only, on
an ephemeral port, and nothing outlives the context. It does not know the protocol inside the tunnel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from dart_envs.errors import DartEnvError
from dart_envs.farm.transport import CONNECT_TIMEOUT_S, Transport, error_from_response

log = logging.getLogger(__name__)

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
CHUNK_NBYTES = 64 * 1024
HALF_CLOSED_S = 30.0
"""How long the desktop may go on answering a client that has nothing more to say."""


async def open_websocket(transport: Transport, path: str, headers: Mapping[str, str]) -> ClientConnection:
    """Open a WebSocket to the farm.

    Args:
        transport: The connection to the farm.
        path: The route of the WebSocket.
        headers: Headers beside those of the transport.

    Returns:
        The open connection.

    Raises:
        DartEnvError: If the farm cannot be reached, or as the refusal's error envelope says.
    """
    address = transport.address
    uri = address.ws_url + path
    options: dict[str, Any] = {
        "additional_headers": {**transport.auth_headers(), **headers},
        "compression": None,
        "max_size": None,
        "ping_interval": None,
        "open_timeout": CONNECT_TIMEOUT_S,
        "close_timeout": 2.0,
    }
    try:
        if address.socket_path:
            return await unix_connect(address.socket_path, uri, **options)
        return await connect(uri, **options)
    except InvalidStatus as refused:
        response = refused.response
        raise error_from_response(response.status_code, bytes(response.body or b""), what=f"WS {path}") from refused
    except (OSError, TimeoutError, WebSocketException) as error:
        raise transport.unreachable(error) from error


@asynccontextmanager
async def serve_loopback(handle: ConnectionHandler) -> AsyncIterator[tuple[str, int]]:
    """Listen on a free port of 127.0.0.1 and run `handle` for every connection, for as long as the context is open.

    Args:
        handle: Serves one connection; it is cancelled when the context ends.

    Yields:
        (host, port) of the listening socket.
    """
    relays: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the one that asyncio makes for a coroutine complains when it is cancelled.
        task = asyncio.create_task(handle(reader, writer))
        relays.add(task)
        task.add_done_callback(relays.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
        for relay in list(relays):
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def open_tunnel(
    transport: Transport, path: str, headers: Callable[[], Mapping[str, str]]
) -> AsyncIterator[tuple[str, int]]:
    """Listen on 127.0.0.1 and relay every connection to the WebSocket at `path`.

    Args:
        transport: The connection to the farm.
        path: The route of the WebSocket.
        headers: Returns the headers of each new WebSocket.

    Yields:
        (host, port) of the listening socket.
    """

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _relay(transport, path, headers(), reader, writer)
        except DartEnvError as error:
            log.warning("A connection through the tunnel failed: %s", error)
        finally:
            writer.close()

    async with serve_loopback(handle) as address:
        yield address


async def _relay(
    transport: Transport,
    path: str,
    headers: Mapping[str, str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    async with await open_websocket(transport, path, headers) as socket:
        inbound = asyncio.create_task(_to_client(socket, writer))
        try:
            while chunk := await reader.read(CHUNK_NBYTES):
                await socket.send(chunk)
        except (ConnectionClosed, ConnectionError):
            return
        finally:
            if reader.at_eof():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(inbound), timeout=HALF_CLOSED_S)
            inbound.cancel()
            await asyncio.gather(inbound, return_exceptions=True)


async def _to_client(socket: ClientConnection, writer: asyncio.StreamWriter) -> None:
    try:
        async for message in socket:
            writer.write(message if isinstance(message, bytes) else message.encode())
            await writer.drain()
    except (ConnectionClosed, ConnectionError):
        return
    finally:
        writer.close()
